"""The short convolution on a GPU: one pass over the input forward, one over input and gradient backward.

`plait.ops.shortconv` says what is computed; its in-place sums would go through memory once for every tap.

Letters: S sequences (models × batch), T time, C channels, W width, H = W − 1 inputs of history, K blocks of time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TIME, CHANNELS = 32, 64  # what one program holds


@triton.jit
def _tap(x, state, s, t, c, T, C, inside, H: tl.constexpr):
    """x at times t, which reach back into the history where t is negative."""
    new = tl.load(x + (s * T + t[:, None]) * C + c[None, :], mask=inside & (t >= 0)[:, None], other=0.0)
    old = tl.load(state + (s * H + H + t[:, None]) * C + c[None, :], mask=inside & (t < 0)[:, None], other=0.0)
    return new + old


@triton.jit
def _forward(
    x, state, weight, bias, y, T, C, batch, W: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * TIME + tl.arange(0, TIME)
    c = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (t < T)[:, None] & (c < C)[None, :]
    m = s // batch
    total = (
        tl.zeros((TIME, CHANNELS), dtype=x.dtype.element_ty) + tl.load(bias + m * C + c, mask=c < C, other=0.0)[None, :]
    )
    for k in tl.static_range(W):
        w = tl.load(weight + (m * W + W - 1 - k) * C + c, mask=c < C, other=0.0)
        total += w[None, :] * _tap(x, state, s, t - k, c, T, C, inside, W - 1)
    tl.store(y + (s * T + t[:, None]) * C + c[None, :], total, mask=inside)


@triton.jit
def _backward(
    x, state, weight, grad_y, grad_x, grad_state, grad_weight, grad_bias, T, C, batch, blocks,
    W: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    s, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    in_c = c < C
    m = s // batch
    t = b * TIME + tl.arange(0, TIME)
    inside = (t < T)[:, None] & in_c[None, :]
    gy = tl.load(grad_y + (s * T + t[:, None]) * C + c[None, :], mask=inside, other=0.0)
    part = s * blocks + b
    tl.store(grad_bias + part * C + c, tl.sum(gy, axis=0), mask=in_c)
    total = tl.zeros((TIME, CHANNELS), dtype=x.dtype.element_ty)
    for k in tl.static_range(W):
        w = tl.load(weight + (m * W + W - 1 - k) * C + c, mask=in_c, other=0.0)
        seen = _tap(x, state, s, t - k, c, T, C, inside, W - 1)
        tl.store(grad_weight + (part * W + W - 1 - k) * C + c, tl.sum(gy * seen, axis=0), mask=in_c)
        # An input feeds the outputs at and after its own time.
        fed = inside & (t + k < T)[:, None]
        total += w[None, :] * tl.load(grad_y + (s * T + t[:, None] + k) * C + c[None, :], mask=fed, other=0.0)
    tl.store(grad_x + (s * T + t[:, None]) * C + c[None, :], total, mask=inside)
    if b == 0:
        for i in tl.static_range(W - 1):  # history i stands at time i − H and feeds the outputs up to time i
            sum_i = tl.zeros((CHANNELS,), dtype=x.dtype.element_ty)
            for k in tl.static_range(W - 1 - i, W):
                at = i - (W - 1) + k
                w = tl.load(weight + (m * W + W - 1 - k) * C + c, mask=in_c, other=0.0)
                fed_c = c < tl.where(at < T, C, 0)
                sum_i += w * tl.load(grad_y + (s * T + at) * C + c, mask=fed_c, other=0.0)
            tl.store(grad_state + (s * (W - 1) + i) * C + c, sum_i, mask=in_c)


def conv_forward(x_MBTC: Tensor, state: Tensor, weight_MWC: Tensor, bias: Tensor) -> Tensor:
    (M, batch, T, C), W = x_MBTC.shape, weight_MWC.shape[1]
    y = torch.empty_like(x_MBTC, memory_format=torch.contiguous_format)
    inputs = [x.contiguous() for x in (x_MBTC, state, weight_MWC, bias)]
    grid = (M * batch, triton.cdiv(T, TIME), triton.cdiv(C, CHANNELS))
    _forward[grid](*inputs, y, T, C, batch, W=W, TIME=TIME, CHANNELS=CHANNELS)
    return y


def conv_backward(x_MBTC: Tensor, state: Tensor, weight_MWC: Tensor, grad_y: Tensor) -> tuple[Tensor, ...]:
    """Gradients of input, history, weight and bias; sums over time and batch cross programs, so each writes a part."""
    (M, batch, T, C), W = x_MBTC.shape, weight_MWC.shape[1]
    x, state, weight, grad_y = (t.contiguous() for t in (x_MBTC, state, weight_MWC, grad_y))
    grid = (M * batch, triton.cdiv(T, TIME), triton.cdiv(C, CHANNELS))
    grad_x, grad_state = torch.empty_like(x), torch.empty_like(state)
    grad_weight = x.new_empty(M, batch * grid[1], W, C)
    grad_bias = x.new_empty(M, batch * grid[1], C)
    outputs = (grad_x, grad_state, grad_weight, grad_bias)
    sizes = {"W": W, "TIME": TIME, "CHANNELS": CHANNELS}
    _backward[grid](x, state, weight, grad_y, *outputs, T, C, batch, grid[1], **sizes)
    return grad_x, grad_state, grad_weight.sum(1), grad_bias.sum(1)
