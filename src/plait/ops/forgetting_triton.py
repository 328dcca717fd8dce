"""Forgetting attention on a GPU, forward and backward, in tiles that never leave the chip.

`plait.ops.attention` defines what is computed, `plait.ops.forgetting_attention` makes it an operator. Design (ours):

* Everything is in base 2. The running sum of the gates is computed in float64 and stored as c = whole + part, an
  integer and a rest of at most ½: a difference of two such sums is exact in fp32, however large they are. In half
  precision, a single fp32 number for c suffices for keys before the diagonal.
* A program of `forward` owns a block of query rows and starts with the keys at the diagonal. This gives each row an
  offset m. With the longest key and the lowest c of every tile of earlier keys, no score of tile t can exceed, in a
  row's own measure,

      bound_t = scale · max‖q‖ · max‖k‖_t + max c_row − min c_t − min m.

  If bound_t is so low that N keys with that score would have at most exp(−margin) of a row's probability, the tile is
  skipped (Lin et al. 2025, Adaptive Computation Pruning, arXiv 2504.06949, bounds by ‖q‖ and ‖k‖ of the whole head; the
  diagonal's m makes it tighter, and it also holds for gates above 1). Where overflow is impossible, the earlier keys
  need no running maximum and no rescaling, and one offset for the whole block: row-specific factors are applied at the
  end.
* The backward pass is two kernels, one per block of queries (dq) and one per block of keys (dk, dv), without atomics,
  so results are deterministic. The gate's gradient is Σ_j ds_ij − Σ_m ds_mi: the two kernels provide both sums. The row
  sums are zero up to rounding; including them cancels the rounding of the column sums. Behind closed gates, two more
  kernels replace the result by one that keeps small gradients to full precision (`plait.ops.forgetting_sharp_triton`).

Letters: B batch, M queries, N keys (N >= M: query i sits at position N−M+i), H query heads, G key heads, R = H/G,
D head width, WIDE the power of two that holds it, Z = batch · heads; tiles of TILE keys or queries in the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from plait.ops.forgetting_backward_triton import backward_keys, backward_queries, uncumulate
from plait.ops.forgetting_forward_triton import LOG2E, TILE, cumulate, forward, key_lengths
from plait.ops.forgetting_sharp_triton import sharp_keys, sharp_queries
from plait.ops.stacking import strides_of


class Tuning(NamedTuple):
    """A kernel's block of queries and of keys, its warps, and the tiles in flight."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None  # a limit lets more programs share a multiprocessor


class Tunings(NamedTuple):
    """Rows of `forward` and `queries` are one tile of the tables."""

    forward: Tuning
    queries: Tuning
    keys: Tuning


def tunings(wide: int, dtype: torch.dtype, capability: tuple[int, int]) -> Tunings:
    """Measured on an H200 in bf16 at widths 64 and 128; others are chosen to fit into shared memory."""
    if dtype == torch.float32:
        stages = 2 if wide <= 64 else 1
        return Tunings(Tuning(64, 32, 4, stages), Tuning(64, 32, 4, stages), Tuning(32, 64, 4, 1))
    if capability < (9, 0):
        return Tunings(Tuning(64, 64, 4, 2), Tuning(64, 64, 4, 2), Tuning(32, 64, 4, 2))
    if wide <= 64:
        return Tunings(Tuning(64, 64, 4, 3, 168), Tuning(64, 64, 4, 3, 168), Tuning(32, 64, 4, 3, 168))
    return Tunings(Tuning(64, 64, 4, 3), Tuning(64, 64, 4, 2), Tuning(32, 64, 4, 3))


def forgetting_forward(
    q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, log_f_BNH: Tensor, pad_B: Tensor | None, scale: float,
    forgotten: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o_BMHD and what the backward pass needs: c_BHN (rounded, whole and part), row_BHM = c − lse and tail_BHM = part −
    lse, and of every tile of queries the first key it visits and its bound. `forgotten`: tiles bounded by it are left
    out."""
    (B, M, H, D), (N, G) = q_BMHD.shape, k_BNGD.shape[1:3]
    tiles, row_tiles = triton.cdiv(N, TILE.value), triton.cdiv(M, TILE.value)
    c, whole, part = (q_BMHD.new_empty(B, H, N, dtype=torch.float32) for _ in range(3))
    low, longest = (q_BMHD.new_empty(B, heads, tiles, dtype=torch.float32) for heads in (H, G))
    row, tail = (q_BMHD.new_empty(B, H, M, dtype=torch.float32) for _ in range(2))
    begins, bounds = (q_BMHD.new_empty(B, H, row_tiles, dtype=dtype) for dtype in (torch.int32, torch.float32))
    o = q_BMHD.new_empty(q_BMHD.shape)
    padded = {"PAD": pad_B is not None}
    sizes = _sizes(q_BMHD)
    cumulate[(B * H,)](log_f_BNH, pad_B, c, whole, part, low, N, H, tiles, *log_f_BNH.stride(), **padded)
    key_lengths[(triton.cdiv(N, 4 * TILE.value) * B * G,)](
        k_BNGD, longest, N, G, tiles, *k_BNGD.stride()[:3], D=D, WIDE=sizes["WIDE"]
    )
    chosen = _tunings(q_BMHD).forward
    forward[(triton.cdiv(M, chosen.rows) * B * H,)](
        q_BMHD, k_BNGD, v_BNGD, c, whole, part, low, longest, pad_B, o, row, tail, begins, bounds, M, N, H, H // G,
        tiles, row_tiles, *strides_of(q_BMHD, k_BNGD, v_BNGD), scale * LOG2E.value, forgotten, **_range(q_BMHD),
        **padded, **sizes, **_launch(chosen),
    )  # fmt: skip
    return o, c, whole, part, row, tail, begins, bounds


def forgetting_backward(
    do_BMHD: Tensor, o_BMHD: Tensor, q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, c: Tensor, whole: Tensor,
    part: Tensor, row: Tensor, tail: Tensor, begins: Tensor, bounds: Tensor, pad_B: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and log f. do and o are contiguous."""
    (B, M, H), (N, G) = q_BMHD.shape[:3], k_BNGD.shape[1:3]
    row_tiles = begins.shape[2]
    dq, dk, dv = q_BMHD.new_empty(q_BMHD.shape), k_BNGD.new_empty(k_BNGD.shape), v_BNGD.new_empty(v_BNGD.shape)
    (delta, own, rows), columns = (torch.empty_like(tail) for _ in range(3)), torch.empty_like(whole)
    dlog_f = q_BMHD.new_empty(B, N, H, dtype=torch.float32)
    padded, sizes = {"PAD": pad_B is not None}, _sizes(q_BMHD)
    strides, base2 = strides_of(q_BMHD, k_BNGD, v_BNGD), scale * LOG2E.value
    _, by_queries, by_keys = _tunings(q_BMHD)
    by_rows, by_columns = (triton.cdiv(M, by_queries.rows) * B * H,), (triton.cdiv(N, by_keys.keys) * B * G,)
    sharp, shapes = torch.empty_like(begins), (M, N, H, H // G, row_tiles, *strides, base2)
    backward_queries[by_rows](
        do_BMHD, o_BMHD, q_BMHD, k_BNGD, v_BNGD, c, whole, part, tail, begins, bounds, pad_B, dq, delta, rows, *shapes,
        **_range(q_BMHD), **padded, **sizes, **_launch(by_queries),
    )  # fmt: skip
    sharp_queries[by_rows](
        do_BMHD, q_BMHD, k_BNGD, v_BNGD, whole, part, tail, begins, pad_B, dq, delta, own, rows, sharp, *shapes,
        **padded, **sizes, **_launch(by_queries),
    )  # fmt: skip
    backward_keys[by_columns](
        do_BMHD, q_BMHD, k_BNGD, v_BNGD, c, whole, part, row, tail, delta, begins, pad_B, dk, dv, columns, *shapes,
        **padded, EVEN=M % by_keys.rows == 0, **sizes, **_launch(by_keys),
    )  # fmt: skip
    sharp_keys[by_columns](
        do_BMHD, q_BMHD, k_BNGD, v_BNGD, whole, part, tail, delta, own, begins, sharp, pad_B, dk, dv, columns, *shapes,
        **padded, **sizes, **_launch(by_keys),
    )  # fmt: skip
    uncumulate[(B * H,)](rows, columns, pad_B, dlog_f, M, N, H, **padded)
    return dq, dk, dv, dlog_f


def _tunings(q_BMHD: Tensor) -> Tunings:
    capability = torch.cuda.get_device_capability(q_BMHD.device) if q_BMHD.is_cuda else (0, 0)
    return tunings(_sizes(q_BMHD)["WIDE"], q_BMHD.dtype, capability)


def _sizes(q_BMHD: Tensor) -> dict[str, Any]:
    D = q_BMHD.shape[3]
    # fp32 inputs keep fp32 accuracy: three tf32 products preserve all digits.
    exact = q_BMHD.dtype == torch.float32
    precision = "tf32x3" if exact else "tf32"
    return {"D": D, "WIDE": max(16, triton.next_power_of_2(D)), "PRECISION": precision, "EXACT": exact}


def _range(q_BMHD: Tensor) -> dict[str, Any]:
    """SUMMIT and LIMIT: p up to 2^SUMMIT, summed over the keys, must not overflow; a row's largest p, at least
    2^(SUMMIT − LIMIT), must not underflow; and larger exponents would lose digits that fp32 needs."""
    limit, summit = {torch.float16: (13.0, 13.0), torch.float32: (16.0, 16.0)}.get(q_BMHD.dtype, (180.0, 90.0))
    return {"LIMIT": limit, "SUMMIT": summit}


def _launch(tuning: Tuning) -> dict[str, Any]:
    rows, keys, warps, stages, registers = tuning
    return {"ROWS": rows, "KEYS": keys, "num_warps": warps, "num_stages": stages, "maxnreg": registers}
