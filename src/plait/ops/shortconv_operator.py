"""The short convolution as an operator around the GPU's kernels (`plait.ops.shortconv_triton`).

A compiled graph sees one operator forward and one backward, the activation with it; stacked members (vmap) make the
model axis longer.

Letters: M stacked models, B batch, T time, C channels, W width, H = W − 1 inputs of history.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.stacking import register_stacked

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def short_conv_kernels(
    x_BTC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, state_BHC: Tensor | None, *, silu: bool
) -> Tensor:
    """y_BTC in the dtype of x."""
    state, bias = (None if x is None else x[None] for x in (state_BHC, bias_C))
    y_MBTC: Tensor = _ShortConvKernels.apply(x_BTC[None], weight_CW.mT[None], state, bias, silu)
    return y_MBTC[0]


def short_conv_takes(x_BTC: Tensor) -> bool:
    """Whether the kernels are made for this input."""
    return x_BTC.is_cuda and x_BTC.dtype in DTYPES and x_BTC.shape[1] > 0


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
    """Joins the two operators, so that torch.func differentiates them too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, state: Tensor | None, bias: Tensor | None, silu: bool) -> Tensor:
        y: Tensor = _conv(x, weight, state, bias, silu)
        return y

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
