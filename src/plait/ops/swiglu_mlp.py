"""A whole SwiGLU of narrow models on a GPU as one operator: W₃ (silu(W₁ x) ∘ W₂ x).

Narrow models are bound by memory: of a token's 256 bytes at width 128 gate and up make 2,048, which three products and
two elementwise passes write and read. Here gate and up stay on the chip forward; backward they are computed once more
(`plait.ops.swiglu_mlp_triton`). Stacked models (vmap) make the model axis longer.

Letters: M stacked models, N tokens, D width, W inner width; V = 2 W, gate and up one below the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.elementwise import swiglu_reference
from plait.ops.paths import autocast_dtype, outside_autocast, plain_asked
from plait.ops.stacking import register_stacked

ENABLED = False  # not measured on a GPU yet
WIDEST = 128  # two tiles of tokens and one of their sums are held on the chip
HALF = (torch.bfloat16, torch.float16)


def swiglu_mlp_reference(x: Tensor, gate_up_VD: Tensor, down_DW: Tensor) -> Tensor:
    return swiglu_reference(x @ gate_up_VD.mT) @ down_DW.mT


def swiglu_mlp(x: Tensor, gate_up_VD: Tensor, down_DW: Tensor) -> Tensor:
    """The same by kernels, in autocast's precision where that is on."""
    dtype = autocast_dtype(x)
    x_MND, gate_up, down = (tensor.to(dtype)[None] for tensor in (x.reshape(-1, x.shape[-1]), gate_up_VD, down_DW))
    with outside_autocast(x):
        y_MND: Tensor = _SwigluMlp.apply(x_MND, gate_up, down)
    return y_MND.view(x.shape)


def takes(x: Tensor) -> bool:
    """Whether the kernels are made for these inputs."""
    return ENABLED and x.is_cuda and x.shape[-1] <= WIDEST and autocast_dtype(x) in HALF and not plain_asked()


@torch.library.custom_op("plait::swiglu_mlp", mutates_args=())
def _mlp(x_MND: Tensor, gate_up_MVD: Tensor, down_MDW: Tensor) -> Tensor:
    from plait.ops.swiglu_mlp_triton import mlp_forward  # Triton comes with CUDA builds of torch

    return mlp_forward(x_MND, gate_up_MVD, down_MDW)


@torch.library.custom_op("plait::swiglu_mlp_backward", mutates_args=())
def _mlp_backward(
    dy_MND: Tensor, x_MND: Tensor, gate_up_MVD: Tensor, down_MDW: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from plait.ops.swiglu_mlp_triton import mlp_backward

    return mlp_backward(dy_MND, x_MND, gate_up_MVD, down_MDW)


class _SwigluMlp(torch.autograd.Function):
    """Joins the two operators, so that torch.func differentiates them too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x_MND: Tensor, gate_up_MVD: Tensor, down_MDW: Tensor) -> Tensor:
        y_MND: Tensor = _mlp(x_MND, gate_up_MVD, down_MDW)
        return y_MND

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_MND, gate_up, down = ctx.saved_tensors
        dx_MND, dgate_up_MNV, hidden_MNW = _mlp_backward(dy_MND, x_MND, gate_up, down)
        return dx_MND, dgate_up_MNV.mT @ x_MND, dy_MND.mT @ hidden_MNW


def _fake_backward(dy: Tensor, x: Tensor, gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (M, N, _), W = x.shape, down.shape[2]
    return x.new_empty(x.shape), x.new_empty(M, N, 2 * W), x.new_empty(M, N, W)


register_stacked(_mlp, lambda x, *_: x.new_empty(x.shape))
register_stacked(_mlp_backward, _fake_backward)
