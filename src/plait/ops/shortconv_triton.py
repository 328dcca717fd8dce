"""The short convolution on a GPU: one kernel forward, two backward.

`plait.ops.shortconv` defines what is computed; its in-place sums would read memory once per tap. Products and sums are
in fp32, input and output in the dtype of the input. The first kernel of the backward pass recomputes the
pre-activations and stores their gradient, which the second sums up for the input, shifted for every tap. The history is
a tile of time before the first.

Letters: M stacked models, T time, C channels, W width, H = W − 1 inputs of history.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait.ops.stacking import dense, with_dense_rows


class Tile(NamedTuple):
    """The tile of one program, and its warps."""

    time: int
    channels: int
    warps: int


class Tuning(NamedTuple):
    forward: Tile
    taps: Tile  # gradients of weight, bias and pre-activations
    input: Tile  # gradients of input and history


#: Measured on an H200 (benchmarks/tiles.py).
TUNED = Tuning(Tile(64, 64, 8), Tile(32, 64, 2), Tile(32, 64, 2))


@triton.jit
def _tap(x, state, s, t, c, T, C, xst, in_c, H: tl.constexpr, HISTORY: tl.constexpr):
    """The input at times t, read from the history if t is negative."""
    now = ((t >= 0) & (t < T))[:, None] & in_c[None, :]
    seen = tl.load(x + t[:, None] * xst + c[None, :], mask=now, other=0.0).to(tl.float32)
    if HISTORY:
        past = ((t < 0) & (t >= -H))[:, None] & in_c[None, :]
        seen += tl.load(state + (s * H + H + t[:, None]) * C + c[None, :], mask=past, other=0.0).to(tl.float32)
    return seen


@triton.jit
def _filtered(
    x, state, weight, bias, s, m, t, c, T, C, xst, in_c,
    W: tl.constexpr, HISTORY: tl.constexpr, BIAS: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The output at times t, before the activation."""
    z = tl.zeros((TIME, CHANNELS), dtype=tl.float32)
    if BIAS:
        z += tl.load(bias + m * C + c, mask=in_c, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(W):
        w = tl.load(weight + (m * W + W - 1 - k) * C + c, mask=in_c, other=0.0).to(tl.float32)
        z += w[None, :] * _tap(x, state, s, t - k, c, T, C, xst, in_c, W - 1, HISTORY)
    return z


@triton.jit
def _conv_forward(
    x, state, weight, bias, y, T, C, batch, xsm, xsb, xst, W: tl.constexpr, HISTORY: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    m = s // batch
    t = tl.program_id(1) * TIME + tl.arange(0, TIME)
    c = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    x += m * xsm + (s % batch) * xsb
    z = _filtered(x, state, weight, bias, s, m, t, c, T, C, xst, c < C, W, HISTORY, BIAS, TIME, CHANNELS)
    if SILU:
        z *= tl.sigmoid(z)
    tl.store(
        y + (s * T + t[:, None]) * C + c[None, :], z.to(y.dtype.element_ty), mask=(t < T)[:, None] & (c < C)[None, :]
    )


@triton.jit
def _conv_backward_taps(
    x, state, weight, bias, grad_y, grad_z, grad_weight, grad_bias, T, C, batch, xsm, xsb, xst,
    W: tl.constexpr, HISTORY: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, TIME: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradients of weight and bias, one part per tile of time; and of the pre-activations."""
    s = tl.program_id(0).to(tl.int64)
    m = s // batch
    part = s * tl.num_programs(1) + tl.program_id(1)
    t = tl.program_id(1) * TIME + tl.arange(0, TIME)
    c = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    in_c = c < C
    here, at = (t < T)[:, None] & in_c[None, :], (s * T + t[:, None]) * C + c[None, :]
    x += m * xsm + (s % batch) * xsb
    dz = tl.load(grad_y + at, mask=here, other=0.0).to(tl.float32)
    if SILU:
        z = _filtered(x, state, weight, bias, s, m, t, c, T, C, xst, in_c, W, HISTORY, BIAS, TIME, CHANNELS)
        share = tl.sigmoid(z)
        dz *= share * (1 + z * (1 - share))
        tl.store(grad_z + at, dz.to(grad_z.dtype.element_ty), mask=here)
    if BIAS:
        tl.store(grad_bias + part * C + c, tl.sum(dz, axis=0), mask=in_c)
    for back in tl.static_range(W):
        seen = _tap(x, state, s, t - back, c, T, C, xst, in_c, W - 1, HISTORY)
        tl.store(grad_weight + (part * W + W - 1 - back) * C + c, tl.sum(dz * seen, axis=0), mask=in_c)


@triton.jit
def _conv_backward_input(
    weight, grad_z, grad_x, grad_state, T, C, batch,
    W: tl.constexpr, HISTORY: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradients of input and history: an input feeds the outputs at and after its own time."""
    s = tl.program_id(0).to(tl.int64)
    m = s // batch
    t = (tl.program_id(1) - HISTORY) * TIME + tl.arange(0, TIME)
    c = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    in_c = c < C
    total = tl.zeros((TIME, CHANNELS), dtype=tl.float32)
    for k in tl.static_range(W):
        fed = t + k
        here = ((fed >= 0) & (fed < T))[:, None] & in_c[None, :]
        dz = tl.load(grad_z + (s * T + fed[:, None]) * C + c[None, :], mask=here, other=0.0).to(tl.float32)
        w = tl.load(weight + (m * W + W - 1 - k) * C + c, mask=in_c, other=0.0).to(tl.float32)
        total += w[None, :] * dz
    now = ((t >= 0) & (t < T))[:, None] & in_c[None, :]
    tl.store(grad_x + (s * T + t[:, None]) * C + c[None, :], total.to(grad_x.dtype.element_ty), mask=now)
    if HISTORY:
        past = ((t < 0) & (t >= 1 - W))[:, None] & in_c[None, :]
        to = grad_state + (s * (W - 1) + W - 1 + t[:, None]) * C + c[None, :]
        tl.store(to, total.to(grad_state.dtype.element_ty), mask=past)


def conv_forward(
    x_MBTC: Tensor, weight_MWC: Tensor, state_MBHC: Tensor | None, bias_MC: Tensor | None, silu: bool
) -> Tensor:
    (M, batch, T, C), W = x_MBTC.shape, weight_MWC.shape[1]
    y = x_MBTC.new_empty(M, batch, T, C)
    x, weight = with_dense_rows(x_MBTC), weight_MWC.contiguous()
    state, bias = dense(state_MBHC), dense(bias_MC)
    tile = TUNED.forward
    grid = (M * batch, triton.cdiv(T, tile.time), triton.cdiv(C, tile.channels))
    sizes = _sizes(tile, W, state) | {"BIAS": bias is not None, "SILU": silu}
    _conv_forward[grid](x, state, weight, bias, y, T, C, batch, *x.stride()[:3], **sizes)
    return y


def conv_backward(
    grad_y: Tensor, x_MBTC: Tensor, weight_MWC: Tensor, state_MBHC: Tensor | None, bias_MC: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of input, weight, history and bias (empty without them). Sums over time and batch span programs, so
    each writes a part."""
    (M, batch, T, C), W = x_MBTC.shape, weight_MWC.shape[1]
    x, weight, grad_y = with_dense_rows(x_MBTC), weight_MWC.contiguous(), grad_y.contiguous()
    state, bias = dense(state_MBHC), dense(bias_MC)
    tile = TUNED.taps
    tiles, blocks = triton.cdiv(T, tile.time), triton.cdiv(C, tile.channels)
    grad_x, grad_weight = x.new_empty(M, batch, T, C), x.new_empty(M, batch * tiles, W, C, dtype=torch.float32)
    grad_z = torch.empty_like(grad_x) if silu else grad_y
    grad_state = x.new_empty(M, 0) if state is None else state.new_empty(state.shape)
    grad_bias = x.new_empty((M, batch * tiles, 0 if bias is None else C), dtype=torch.float32)
    sizes = _sizes(tile, W, state) | {"BIAS": bias is not None, "SILU": silu}
    _conv_backward_taps[M * batch, tiles, blocks](
        x, state, weight, bias, grad_y, grad_z, grad_weight, grad_bias, T, C, batch, *x.stride()[:3], **sizes
    )
    tile = TUNED.input
    sizes = _sizes(tile, W, state)
    _conv_backward_input[M * batch, triton.cdiv(T, tile.time) + sizes["HISTORY"], triton.cdiv(C, tile.channels)](
        weight, grad_z, grad_x, grad_state, T, C, batch, **sizes
    )
    return grad_x, grad_weight.sum(1).to(weight.dtype), grad_state, grad_bias.sum(1).to(weight.dtype)


def _sizes(tile: Tile, W: int, state: Tensor | None) -> dict[str, Any]:
    history = state is not None and W > 1
    return {"W": W, "TIME": tile.time, "CHANNELS": tile.channels, "num_warps": tile.warps, "HISTORY": history}
