"""Cross-entropy of rows of logits on a GPU: the loss of each row, its gradient written where the logits were.

`plait.ops.linear_cross_entropy` says what is computed. One program a row: once through it for the log-sum-exp, once
more (from cache) for the gradient.

Letters: C rows of a chunk, V vocabulary, W its width in memory (W >= V, rows begin at aligned addresses).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8


@triton.jit
def _rows(logits, targets, nll, V, W, ignore, GRADIENTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * W
    target = tl.load(targets + row)
    here = tl.arange(0, BLOCK)
    if target == ignore:
        tl.store(nll + row, 0.0)
        if GRADIENTS:
            for first in range(0, W, BLOCK):
                at = first + here
                tl.store(begin + at, tl.zeros((BLOCK,), dtype=logits.dtype.element_ty), mask=at < W)
    else:
        largest = tl.full((), float("-inf"), dtype=tl.float32)
        total = tl.zeros((), dtype=tl.float32)
        for first in range(0, V, BLOCK):
            at = first + here
            x = tl.load(begin + at, mask=at < V, other=float("-inf")).to(tl.float32)
            larger = tl.maximum(largest, tl.max(x, axis=0))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), axis=0)
            largest = larger
        lse = largest + tl.log(total)
        # A target that is no token has no loss, instead of a read anywhere.
        known = (target >= 0) & (target < V)
        tl.store(nll + row, lse - tl.load(begin + target, mask=known, other=float("nan")).to(tl.float32))
        if GRADIENTS:
            tl.debug_barrier()
            for first in range(0, W, BLOCK):
                at = first + here
                x = tl.load(begin + at, mask=at < V, other=float("-inf")).to(tl.float32)
                p = tl.exp(x - lse) - tl.where(at == target, 1.0, 0.0)
                tl.store(begin + at, p.to(logits.dtype.element_ty), mask=at < W)


def cross_entropy_rows(
    logits_CW: Tensor, targets_C: Tensor, nll_C: Tensor, vocab: int, ignore: int, gradients: bool
) -> None:
    """Fill `nll_C`; with `gradients` the logits become softmax − one-hot, zero in unscored rows and beyond `vocab`."""
    wide = logits_CW.shape[1]
    _rows[(len(logits_CW),)](
        logits_CW, targets_C.contiguous(), nll_C, vocab, wide, ignore, GRADIENTS=gradients, BLOCK=BLOCK, num_warps=WARPS
    )
