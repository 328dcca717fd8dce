"""SwiGLU's gate, rotary positions and the cross-entropy of logits on a GPU, each in a single pass over memory.

`plait.ops.elementwise` defines what is computed. A compiler would compute the gradients of both halves of a product
twice and select; here each is computed once and written where the preceding product reads it. For cross-entropy
(`plait.ops.linear_cross_entropy`), one program handles a row: one pass for the log-sum-exp, and another, from cache,
for the gradient, which overwrites the logits.

Letters: N rows, W width of the gate; C rows of a chunk of logits, V vocabulary, W its width in memory (W >= V); B
batch, T time, H query heads, G key/value heads, A = H + 2G, P head width, I = P/2 (`half` in the kernels).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
ROW_BLOCK, ROW_WARPS = 4096, 8  # of cross-entropy


@triton.jit
def _swiglu(x, y, W, BLOCK: tl.constexpr):
    row, w = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = w < W
    gate = tl.load(x + row * 2 * W + w, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * W + W + w, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * W + w, (gate * tl.sigmoid(gate) * up).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward(x, dy, dx, W, BLOCK: tl.constexpr):
    row, w = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = w < W
    gate = tl.load(x + row * 2 * W + w, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * W + W + w, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(dy + row * W + w, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    tl.store(dx + row * 2 * W + w, (grad * up * s * (1 + gate * (1 - s))).to(dx.dtype.element_ty), mask=inside)
    tl.store(dx + row * 2 * W + W + w, (grad * gate * s).to(dx.dtype.element_ty), mask=inside)


def swiglu_forward(x_NV: Tensor) -> Tensor:
    rows, width = x_NV.shape[0], x_NV.shape[1] // 2
    y_NW = x_NV.new_empty(rows, width)
    if rows:
        _swiglu[(rows, triton.cdiv(width, BLOCK))](x_NV, y_NW, width, BLOCK=BLOCK)
    return y_NW


def swiglu_backward(x_NV: Tensor, dy_NW: Tensor) -> Tensor:
    rows, width = dy_NW.shape
    dx_NV = torch.empty_like(x_NV)
    if rows:
        _swiglu_backward[(rows, triton.cdiv(width, BLOCK))](x_NV, dy_NW, dx_NV, width, BLOCK=BLOCK)
    return dx_NV


@triton.jit
def _split(
    packed, cos, sin, q, k, v, N, T,
    H: tl.constexpr, G: tl.constexpr, half: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    head, i = j // half, j % half
    inside = (head < H + 2 * G) & (row < N)
    turns = inside & (head < H + G)
    at = (row * (H + 2 * G) + head) * (2 * half) + i
    first = tl.load(packed + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(packed + at + half, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row % T * half + i, mask=turns, other=1.0)
    s = tl.load(sin + row % T * half + i, mask=turns, other=0.0)
    low, high = (first * c - second * s).to(q.dtype.element_ty), (second * c + first * s).to(q.dtype.element_ty)
    to_q, to_k, to_v = turns & (head < H), turns & (head >= H), inside & (head >= H + G)
    at_q, at_k = (row * H + head) * (2 * half) + i, (row * G + head - H) * (2 * half) + i
    at_v = (row * G + head - H - G) * (2 * half) + i
    tl.store(q + at_q, low, mask=to_q)
    tl.store(q + at_q + half, high, mask=to_q)
    tl.store(k + at_k, low, mask=to_k)
    tl.store(k + at_k + half, high, mask=to_k)
    tl.store(v + at_v, low, mask=to_v)
    tl.store(v + at_v + half, high, mask=to_v)


@triton.jit
def _join(
    dq, dk, dv, cos, sin, packed, N, T, qb, qt, qh, kb, kt, kh, vb, vt, vh,
    H: tl.constexpr, G: tl.constexpr, half: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    b, t = row // T, row % T
    head, i = j // half, j % half
    inside = (head < H + 2 * G) & (row < N)
    turns = inside & (head < H + G)
    of_q, of_k, of_v = turns & (head < H), turns & (head >= H), inside & (head >= H + G)
    at_q, at_k = b * qb + t * qt + head * qh + i, b * kb + t * kt + (head - H) * kh + i
    at_v = b * vb + t * vt + (head - H - G) * vh + i
    low = tl.load(dq + at_q, mask=of_q, other=0.0).to(tl.float32)
    high = tl.load(dq + at_q + half, mask=of_q, other=0.0).to(tl.float32)
    low += tl.load(dk + at_k, mask=of_k, other=0.0).to(tl.float32)
    high += tl.load(dk + at_k + half, mask=of_k, other=0.0).to(tl.float32)
    low += tl.load(dv + at_v, mask=of_v, other=0.0).to(tl.float32)
    high += tl.load(dv + at_v + half, mask=of_v, other=0.0).to(tl.float32)
    c = tl.load(cos + t * half + i, mask=turns, other=1.0)
    s = tl.load(sin + t * half + i, mask=turns, other=0.0)
    at = (row * (H + 2 * G) + head) * (2 * half) + i
    tl.store(packed + at, (low * c + high * s).to(packed.dtype.element_ty), mask=inside)
    tl.store(packed + at + half, (high * c - low * s).to(packed.dtype.element_ty), mask=inside)


def _tiling(rows: int, pairs: int) -> tuple[tuple[int, int], dict[str, int]]:
    """A grid over rows and channel pairs, and its tile: narrow models have several rows in a program."""
    block = min(BLOCK, triton.next_power_of_2(pairs))
    sizes = {"ROWS": BLOCK // block, "BLOCK": block}
    return (triton.cdiv(rows, sizes["ROWS"]), triton.cdiv(pairs, block)), sizes


def split_forward(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    B, T, A, P = packed_BTAP.shape
    groups = (A - heads) // 2
    q, k, v = (packed_BTAP.new_empty(B, T, count, P) for count in (heads, groups, groups))
    grid, tile = _tiling(B * T, A * P // 2)
    _split[grid](packed_BTAP, cos_TI, sin_TI, q, k, v, B * T, T, H=heads, G=groups, half=P // 2, **tile)
    return q, k, v


def split_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos_TI: Tensor, sin_TI: Tensor) -> Tensor:
    (B, T, heads, P), groups = dq.shape, dk.shape[2]
    dq, dk, dv = (x if x.stride(3) == 1 else x.contiguous() for x in (dq, dk, dv))
    packed = dq.new_empty(B, T, heads + 2 * groups, P)
    grid, tile = _tiling(B * T, (heads + 2 * groups) * P // 2)
    strides = [stride for x in (dq, dk, dv) for stride in x.stride()[:3]]
    _join[grid](dq, dk, dv, cos_TI, sin_TI, packed, B * T, T, *strides, H=heads, G=groups, half=P // 2, **tile)
    return packed


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
        # A target that is not a token has no loss, instead of an out-of-bounds read.
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
        logits_CW,
        targets_C.contiguous(),
        nll_C,
        vocab,
        wide,
        ignore,
        GRADIENTS=gradients,
        BLOCK=ROW_BLOCK,
        num_warps=ROW_WARPS,
    )
