"""Causal depthwise convolution with a short filter, continuing from the last inputs it has seen.

    y_t = bias + Σ_{k < W} w_{W-1-k} ∘ x_{t-k}

The last column of the weight applies to the current token, as in `torch.nn.functional.conv1d` with left padding. Used
before the sequence mixers of H3, Hyena and Mamba: Fu et al., 2022, arXiv:2212.14052; Gu and Dao, 2023,
arXiv:2312.00752.

The fast path adds W shifted products in place, block by block while the block is in cache; on one CPU thread that is
three times faster, forward and backward, than the grouped convolution in either memory layout. There are GPU kernels
(`plait.ops.shortconv_triton`): a compiled graph sees one operator forward and one backward, including the activation.

Shapes: B batch, T time, C channels, W width of the filter, H = W - 1 inputs of history; M stacked models (vmap).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.core.errors import UserError
from plait.ops.paths import (
    LONGEST_IN_GRAPH,
    cache_blocks,
    full_precision,
    has_kernels,
    plain_asked,
    plain_wanted,
    step_kernels_take,
    took,
)
from plait.ops.stacking import StackedFunction, register_stacked

Activation = Literal["silu"]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of the kernels


def short_conv_reference(
    x_BTC: Tensor,
    weight_CW: Tensor,
    bias_C: Tensor | None = None,
    *,
    state_BHC: Tensor | None = None,
    activation: Activation | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, as shifts of the padded input. Returns the output and the last W - 1 inputs."""
    T, W = x_BTC.shape[1], weight_CW.shape[1]
    state_BHC = _zero_state(x_BTC, W) if state_BHC is None else state_BHC
    seen_BTC = torch.cat((state_BHC, x_BTC), dim=1)
    y_BTC = sum((seen_BTC[:, i : i + T] * weight_CW[:, i] for i in range(W)), start=torch.zeros_like(x_BTC))
    return _finish(y_BTC if bias_C is None else y_BTC + bias_C, activation), seen_BTC[:, T:]


def short_conv(
    x_BTC: Tensor,
    weight_CW: Tensor,
    bias_C: Tensor | None = None,
    *,
    state_BHC: Tensor | None = None,
    activation: Activation | None = None,
) -> tuple[Tensor, Tensor]:
    """The same, fast. Differentiable once; composes with `torch.func` and, as plain shifts, with `torch.compile`. On a
    GPU half-precision inputs stay in half precision (sums are in fp32), and a graph contains one operator."""
    if took("short convolution", short_conv_path(x_BTC)) == "triton":
        _check(activation)
        y_BTC = short_conv_kernels(x_BTC, weight_CW, bias_C, state_BHC, silu=activation == "silu")
        return y_BTC, _recent(x_BTC, state_BHC, weight_CW.shape[1])
    return _short_conv_by_taps(x_BTC, weight_CW, bias_C, state_BHC, activation)


def short_conv_path(x_BTC: Tensor) -> str:
    """The path `short_conv` takes for this input: "triton" on a GPU, else "taps"."""
    if plain_asked() or (torch.compiler.is_compiling() and x_BTC.shape[1] <= LONGEST_IN_GRAPH):
        return "taps"
    return "triton" if short_conv_takes(x_BTC) else "taps"


@full_precision
def _short_conv_by_taps(
    x_BTC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, state_BHC: Tensor | None, activation: Activation | None
) -> tuple[Tensor, Tensor]:
    if plain_wanted():
        return short_conv_reference(x_BTC, weight_CW, bias_C, state_BHC=state_BHC, activation=activation)
    state_BHC = _zero_state(x_BTC, weight_CW.shape[1]) if state_BHC is None else state_BHC
    bias_C = torch.zeros_like(weight_CW[:, 0]) if bias_C is None else bias_C
    (y_MBTC,) = _ShortConv.apply(*(x.unsqueeze(0) for x in (x_BTC, state_BHC, weight_CW.mT, bias_C)))
    return _finish(y_MBTC.squeeze(0), activation), _recent(x_BTC, state_BHC, weight_CW.shape[1])


def short_conv_step(
    x_BC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, state_BHC: Tensor, activation: Activation | None = None
) -> tuple[Tensor, Tensor]:
    """One token: the output and the next state."""
    alike = x_BC.dtype == weight_CW.dtype == state_BHC.dtype
    if alike and step_kernels_take(x_BC, weight_CW, state_BHC):
        from plait.ops.step_triton import conv_step_kernel  # Triton comes with CUDA builds of torch

        _check(activation)
        return conv_step_kernel(x_BC, weight_CW, bias_C, state_BHC, silu=activation == "silu")
    seen_BWC = torch.cat((state_BHC, x_BC[:, None]), dim=1)
    y_BC = (seen_BWC * weight_CW.mT).sum(1)
    return _finish(y_BC if bias_C is None else y_BC + bias_C, activation), seen_BWC[:, 1:]


def _zero_state(x_BTC: Tensor, width: int) -> Tensor:
    return x_BTC.new_zeros(x_BTC.shape[0], width - 1, x_BTC.shape[2])


def _recent(x_BTC: Tensor, state_BHC: Tensor | None, width: int) -> Tensor:
    """The last W - 1 inputs."""
    last_BTC = x_BTC[:, max(0, x_BTC.shape[1] - width + 1) :]
    missing = width - 1 - last_BTC.shape[1]
    if missing == 0 and state_BHC is None:
        return last_BTC.clone()
    state_BHC = _zero_state(x_BTC, width) if state_BHC is None else state_BHC
    return torch.cat((state_BHC[:, width - 1 - missing :], last_BTC), dim=1)


def _check(activation: str | None) -> None:
    if activation not in (None, "silu"):
        raise UserError(f"Unknown activation '{activation}' of a short convolution: allowed are None and 'silu'.")


def _finish(y: Tensor, activation: Activation | None) -> Tensor:
    _check(activation)
    return y if activation is None else F.silu(y)


def _taps(n_steps: int, width: int) -> Iterator[tuple[int, slice, slice, slice, slice]]:
    """For each column of the weight: the outputs it contributes to and the inputs it reads, from the sequence and from
    the history."""
    for lag in range(width):
        n_old = min(lag, n_steps)  # the first outputs read inputs before the sequence
        first = width - 1 - lag
        yield first, slice(n_old, None), slice(0, n_steps - n_old), slice(0, n_old), slice(first, first + n_old)


class _ShortConv(StackedFunction):
    """(x, history, weight, bias) -> (y,)."""

    @staticmethod
    def forward(x_MBTC: Tensor, state_MBHC: Tensor, weight_MWC: Tensor, bias_MC: Tensor) -> Any:
        (M, B, T, C), W = x_MBTC.shape, weight_MWC.shape[1]
        weight_WM11C = weight_MWC.movedim(1, 0)[:, :, None, None].contiguous()
        y_MBTC = x_MBTC.new_empty(x_MBTC.shape)
        for m, b in cache_blocks(M, B, T * C, x_MBTC.device):
            x, state, y = x_MBTC[m, b], state_MBHC[m, b], y_MBTC[m, b]
            y.copy_(bias_MC[m, None, None].expand_as(y))
            for w, to_new, new, to_old, old in _taps(T, W):
                y[:, :, to_new].addcmul_(x[:, :, new], weight_WM11C[w, m])
                y[:, :, to_old].addcmul_(state[:, :, old], weight_WM11C[w, m])
        return (y_MBTC,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor]) -> None:
        del output
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        return _ShortConvAdjoint.apply(*ctx.saved_tensors, grad_y)


class _ShortConvAdjoint(StackedFunction):
    """(x, history, weight, dy) -> gradients of x, history, weight and bias. A separate function, so that it can also be
    vmapped."""

    @staticmethod
    def forward(x_MBTC: Tensor, state_MBHC: Tensor, weight_MWC: Tensor, grad_y_MBTC: Tensor) -> Any:
        (M, B, T, C), W = x_MBTC.shape, weight_MWC.shape[1]
        weight_WM11C = weight_MWC.movedim(1, 0)[:, :, None, None].contiguous()
        grad_x_MBTC, grad_state_MBHC = x_MBTC.new_empty(x_MBTC.shape), torch.zeros_like(state_MBHC)
        grad_weight_MWC, grad_bias_MC = weight_MWC.new_zeros(weight_MWC.shape), weight_MWC.new_zeros(M, C)
        for m, b in cache_blocks(M, B, T * C, x_MBTC.device):
            x, state, gy = x_MBTC[m, b], state_MBHC[m, b], grad_y_MBTC[m, b]
            grad_x, grad_state = grad_x_MBTC[m, b].zero_(), grad_state_MBHC[m, b]
            grad_bias_MC[m] += gy.sum((1, 2))
            for w, to_new, new, to_old, old in _taps(T, W):
                grad_x[:, :, new].addcmul_(gy[:, :, to_new], weight_WM11C[w, m])
                grad_state[:, :, old].addcmul_(gy[:, :, to_old], weight_WM11C[w, m])
                grad_weight_MWC[m, w] += (gy[:, :, to_new] * x[:, :, new]).sum((1, 2))
                grad_weight_MWC[m, w] += (gy[:, :, to_old] * state[:, :, old]).sum((1, 2))
        return grad_x_MBTC, grad_state_MBHC, grad_weight_MWC, grad_bias_MC

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("short_conv is differentiable once; for second derivatives use `plain_ops()`")


# ---- on a GPU


def short_conv_kernels(
    x_BTC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, state_BHC: Tensor | None, *, silu: bool
) -> Tensor:
    """y_BTC in the dtype of x."""
    state, bias = (None if x is None else x[None] for x in (state_BHC, bias_C))
    y_MBTC: Tensor = _ShortConvKernels.apply(x_BTC[None], weight_CW.mT[None], state, bias, silu)
    return y_MBTC[0]


def short_conv_takes(x_BTC: Tensor) -> bool:
    """Whether the kernels support this input."""
    return has_kernels(x_BTC) and x_BTC.dtype in DTYPES and x_BTC.shape[1] > 0


@torch.library.custom_op("plait::short_conv", mutates_args=())
def _conv(x_MBTC: Tensor, weight_MWC: Tensor, state: Tensor | None, bias: Tensor | None, silu: bool) -> Tensor:
    from plait.ops.shortconv_triton import conv_forward  # Triton comes with CUDA builds of torch

    return conv_forward(x_MBTC, weight_MWC, state, bias, silu)


@torch.library.custom_op("plait::short_conv_backward", mutates_args=())
def _conv_backward(
    grad_y: Tensor, x_MBTC: Tensor, weight_MWC: Tensor, state: Tensor | None, bias: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from plait.ops.shortconv_triton import conv_backward

    return conv_backward(grad_y, x_MBTC, weight_MWC, state, bias, silu)


class _ShortConvKernels(torch.autograd.Function):
    """Joins the two operators, so that torch.func can differentiate them."""

    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _conv(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.silu = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, state, bias = ctx.saved_tensors
        dx, dweight, dstate, dbias = _conv_backward(grad_y, x, weight, state, bias, ctx.silu)
        return dx, dweight, None if state is None else dstate, None if bias is None else dbias, None


def _fake_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, state: Tensor | None, bias: Tensor | None, silu: bool
) -> tuple[Tensor, ...]:
    dstate = x.new_empty(x.shape[0], 0) if state is None else state.new_empty(state.shape)
    dbias = weight.new_empty(x.shape[0], 0 if bias is None else x.shape[3])
    return x.new_empty(x.shape), weight.new_empty(weight.shape), dstate, dbias


register_stacked(_conv, lambda x, *_: x.new_empty(x.shape))
register_stacked(_conv_backward, _fake_backward)
