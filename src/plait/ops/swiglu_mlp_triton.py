"""The kernels of `plait.ops.swiglu_mlp`: one program a tile of tokens goes through the inner width in slices.

The tile's inputs stay where they are while slices of the weights, which all tiles of a model share and the L2 cache
holds, go by; what a slice makes of them stays in registers, and only outputs are written. The backward pass computes
gate and up once more. It also leaves silu(gate) ∘ up and the gradient of gate and up in half precision: the weights'
gradients are sums over all tokens, which a matrix product of its own finds in a fixed order.

Letters: M stacked models, N tokens, D width, W inner width; V = 2 W.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """Tokens of a program and channels of a slice, warps that hold them, slices on their way."""

    rows: int
    inner: int
    warps: int
    stages: int


#: Compiled for an H200, not measured there yet (benchmarks/tiles.py).
FORWARD, BACKWARD = Tile(128, 32, 8, 2), Tile(128, 32, 8, 2)


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
def forward(
    x, gate_up, down, y, N, D: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    INNER: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first, m = tl.program_id(0) * ROWS, tl.program_id(1).to(tl.int64)
    x, y = x + m * N * D, y + m * N * D
    gate, up, down = gate_up + m * 2 * W * D, gate_up + (m * 2 + 1) * W * D, down + m * W * D
    x_ND = tile_of(x, first, N, D, D, ROWS, WIDE, EVEN)
    sum_ND = tl.zeros((ROWS, WIDE), tl.float32)
    for w in tl.range(0, W, INNER, num_stages=STAGES):
        gate_WD = tile_of(gate, w, W, D, D, INNER, WIDE, EVEN)
        up_WD = tile_of(up, w, W, D, D, INNER, WIDE, EVEN)
        down_DW = tile_of(down + w, 0, D, W - w, W, WIDE, INNER, EVEN)
        g_NW, u_NW = tl.dot(x_ND, tl.trans(gate_WD)), tl.dot(x_ND, tl.trans(up_WD))
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
    gate, up, down = gate_up + m * 2 * W * D, gate_up + (m * 2 + 1) * W * D, down + m * W * D
    x_ND = tile_of(x, first, N, D, D, ROWS, WIDE, EVEN)
    dy_ND = tile_of(dy, first, N, D, D, ROWS, WIDE, EVEN)
    sum_ND = tl.zeros((ROWS, WIDE), tl.float32)
    for w in tl.range(0, W, INNER, num_stages=STAGES):
        gate_WD = tile_of(gate, w, W, D, D, INNER, WIDE, EVEN)
        up_WD = tile_of(up, w, W, D, D, INNER, WIDE, EVEN)
        down_DW = tile_of(down + w, 0, D, W - w, W, WIDE, INNER, EVEN)
        g_NW, u_NW = tl.dot(x_ND, tl.trans(gate_WD)), tl.dot(x_ND, tl.trans(up_WD))
        dh_NW = tl.dot(dy_ND, down_DW)
        s_NW = tl.sigmoid(g_NW)
        silu_NW = g_NW * s_NW
        put_tile(hidden + w, silu_NW * u_NW, first, N, W - w, W, ROWS, INNER, EVEN)
        dg_NW = (dh_NW * u_NW * (s_NW + silu_NW * (1 - s_NW))).to(x_ND.dtype)
        du_NW = (dh_NW * silu_NW).to(x_ND.dtype)
        put_tile(dgate_up + w, dg_NW, first, N, W - w, 2 * W, ROWS, INNER, EVEN)
        put_tile(dgate_up + W + w, du_NW, first, N, W - w, 2 * W, ROWS, INNER, EVEN)
        sum_ND = tl.dot(dg_NW, gate_WD, sum_ND)
        sum_ND = tl.dot(du_NW, up_WD, sum_ND)
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
    return {**sizes, "STAGES": tile.stages, "num_warps": tile.warps}
