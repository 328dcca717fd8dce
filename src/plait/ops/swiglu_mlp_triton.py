"""The kernels of `plait.ops.swiglu_mlp`: one program per tile of tokens goes through the inner width in slices.

The tile's inputs stay on the chip while slices of the weights, which all tiles of a model share through the L2 cache,
are loaded; intermediate results stay in registers, and only outputs are written. Rows of gate and up are interleaved in
groups of eight: one product with both reads the tile's inputs once, and since the eight columns of a matrix
instruction's result belong to one register of each thread, separating gate and up moves no data.

The backward pass recomputes gate and up. It also stores silu(gate) ∘ up and the gradient of gate and up in half
precision: the weights' gradients are sums over all tokens, computed by a separate matrix product in a fixed order.

Letters: M stacked models, N tokens, D width, W inner width; V = 2 W.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """Tokens per program and channels per slice (a multiple of 8), warps, prefetched slices, and the limit on registers
    per thread, 0: the compiler's choice."""

    rows: int
    inner: int
    warps: int
    stages: int
    registers: int = 0


#: Measured on an H200 (benchmarks/tiles.py): two programs of either pass share a multiprocessor.
FORWARD, BACKWARD = Tile(128, 32, 8, 3, registers=128), Tile(64, 32, 4, 3)


@triton.jit
def tile_of(x, first, rows, columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr):
    """Rows from `first` on of a matrix with so many rows and columns."""
    r, c = first + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = x + r[:, None] * stride + c[None, :]
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=(r < rows)[:, None] & (c < columns)[None, :], other=0.0)


@triton.jit
def put_tile(x, tile, first, rows, columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr):
    r, c = first + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at, tile = x + r[:, None] * stride + c[None, :], tile.to(x.dtype.element_ty)
    if EVEN:
        tl.store(at, tile)
    else:
        tl.store(at, tile, mask=(r < rows)[:, None] & (c < columns)[None, :])


@triton.jit
def both_of(gate_up, w, D: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr):
    """Rows w, w + 1, … of gate and up interleaved, eight of each."""
    v, d = tl.arange(0, 2 * INNER), tl.arange(0, WIDE)
    row = w + v // 16 * 8 + v % 8
    at = gate_up + (row + v % 16 // 8 * W)[:, None] * D + d[None, :]
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=(row < W)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def apart(both_NV, ROWS: tl.constexpr, INNER: tl.constexpr):
    """Split columns of gate and up, interleaved in groups of eight, into two tensors."""
    gate, up = tl.split(tl.permute(tl.reshape(both_NV, (ROWS, INNER // 8, 2, 8)), (0, 1, 3, 2)))
    return tl.reshape(gate, (ROWS, INNER)), tl.reshape(up, (ROWS, INNER))


@triton.jit
def in_turns(gate_NW, up_NW, ROWS: tl.constexpr, INNER: tl.constexpr):
    """The reverse of `apart`."""
    both = tl.reshape(tl.join(gate_NW, up_NW), (ROWS, INNER // 8, 8, 2))
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), (ROWS, 2 * INNER))


@triton.jit
def forward(
    x, gate_up, down, y, N, D: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    INNER: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first, m = tl.program_id(0) * ROWS, tl.program_id(1).to(tl.int64)
    x, y, gate_up, down = x + m * N * D, y + m * N * D, gate_up + m * 2 * W * D, down + m * W * D
    x_ND = tile_of(x, first, N, D, D, ROWS, WIDE, EVEN)
    sum_ND = tl.zeros((ROWS, WIDE), tl.float32)
    for w in tl.range(0, W, INNER, num_stages=STAGES):
        both_VD = both_of(gate_up, w, D, W, WIDE, INNER, EVEN)
        down_DW = tile_of(down + w, 0, D, W - w, W, WIDE, INNER, EVEN)
        g_NW, u_NW = apart(tl.dot(x_ND, tl.trans(both_VD)), ROWS, INNER)
        h_NW = (g_NW * tl.sigmoid(g_NW) * u_NW).to(x_ND.dtype)
        sum_ND = tl.dot(h_NW, tl.trans(down_DW), sum_ND)
    put_tile(y, sum_ND, first, N, D, D, ROWS, WIDE, EVEN)


@triton.jit
def backward(
    dy, x, gate_up, down, dx, dgate_up, hidden, N, D: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first, m = tl.program_id(0) * ROWS, tl.program_id(1).to(tl.int64)
    dy, x, dx = dy + m * N * D, x + m * N * D, dx + m * N * D
    dgate_up, hidden = dgate_up + m * N * 2 * W, hidden + m * N * W
    gate_up, down = gate_up + m * 2 * W * D, down + m * W * D
    x_ND = tile_of(x, first, N, D, D, ROWS, WIDE, EVEN)
    dy_ND = tile_of(dy, first, N, D, D, ROWS, WIDE, EVEN)
    sum_ND = tl.zeros((ROWS, WIDE), tl.float32)
    for w in tl.range(0, W, INNER, num_stages=STAGES):
        both_VD = both_of(gate_up, w, D, W, WIDE, INNER, EVEN)
        down_DW = tile_of(down + w, 0, D, W - w, W, WIDE, INNER, EVEN)
        g_NW, u_NW = apart(tl.dot(x_ND, tl.trans(both_VD)), ROWS, INNER)
        dh_NW = tl.dot(dy_ND, down_DW)
        s_NW = tl.sigmoid(g_NW)
        silu_NW = g_NW * s_NW
        put_tile(hidden + w, silu_NW * u_NW, first, N, W - w, W, ROWS, INNER, EVEN)
        dg_NW = (dh_NW * u_NW * (s_NW + silu_NW * (1 - s_NW))).to(x_ND.dtype)
        du_NW = (dh_NW * silu_NW).to(x_ND.dtype)
        put_tile(dgate_up + w, dg_NW, first, N, W - w, 2 * W, ROWS, INNER, EVEN)
        put_tile(dgate_up + W + w, du_NW, first, N, W - w, 2 * W, ROWS, INNER, EVEN)
        sum_ND = tl.dot(in_turns(dg_NW, du_NW, ROWS, INNER), both_VD, sum_ND)
    put_tile(dx, sum_ND, first, N, D, D, ROWS, WIDE, EVEN)


def mlp_forward(x_MND: Tensor, gate_up_MVD: Tensor, down_MDW: Tensor) -> Tensor:
    x, gate_up, down = (x.contiguous() for x in (x_MND, gate_up_MVD, down_MDW))
    y = x.new_empty(x.shape)
    M, N, _ = x.shape
    forward[triton.cdiv(N, FORWARD.rows), M](x, gate_up, down, y, N, **_sizes(FORWARD, x, down))
    return y


def mlp_backward(dy_MND: Tensor, x_MND: Tensor, gate_up_MVD: Tensor, down_MDW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, and of gate and up as (M, N, V); silu(gate) ∘ up as (M, N, W)."""
    dy, x, gate_up, down = (x.contiguous() for x in (dy_MND, x_MND, gate_up_MVD, down_MDW))
    (M, N, _), W = x.shape, down.shape[2]
    dx, dgate_up, hidden = x.new_empty(x.shape), x.new_empty(M, N, 2 * W), x.new_empty(M, N, W)
    backward[triton.cdiv(N, BACKWARD.rows), M](
        dy, x, gate_up, down, dx, dgate_up, hidden, N, **_sizes(BACKWARD, x, down)
    )
    return dx, dgate_up, hidden


def _sizes(tile: Tile, x_MND: Tensor, down_MDW: Tensor) -> dict[str, Any]:
    N, (D, W) = x_MND.shape[1], down_MDW.shape[1:]
    wide = max(16, triton.next_power_of_2(D))
    even = N % tile.rows == 0 and W % tile.inner == 0 and wide == D
    sizes = {"D": D, "W": W, "WIDE": wide, "ROWS": tile.rows, "INNER": tile.inner, "EVEN": even}
    return {**sizes, "STAGES": tile.stages, "num_warps": tile.warps, "maxnreg": tile.registers or None}
