"""A whole SwiGLU of narrow models on a GPU as one operator: W₃ (silu(W₁ x) ∘ W₂ x).

Narrow models are memory-bound: at width 128 a token's 256 bytes become 2,048 bytes of gate and up, which three products
and two elementwise passes write and read. Here gate and up stay on the chip in the forward pass and are recomputed in
the backward pass (`plait.ops.swiglu_mlp_triton`). Stacked models (vmap) make the model axis longer. Training steps of
six stacked models of width 128 take 8 to 11 % less time (benchmarks/results/2026-11-18-h200-probe-fused.md).

Paths. "triton" are the kernels, for what `swiglu_path` lists; "products" two matrix products and the gate between.

Letters: M stacked models, N tokens, D width, W inner width; V = 2 W, gate and up one below the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from plait.ops.elementwise import swiglu_reference
from plait.ops.gpu import is_hopper
from plait.ops.paths import autocast_dtype, has_kernels, outside_autocast, plain_asked
from plait.ops.stacking import register_stacked

#: Widths with tiles of 128 channels, which were measured: wider ones do not fit on the chip.
WIDTHS = range(72, 129, 8)


def swiglu_mlp_reference(x: Tensor, gate_up_VD: Tensor, down_DW: Tensor) -> Tensor:
    return swiglu_reference(x @ gate_up_VD.mT) @ down_DW.mT


def swiglu_path(x: Tensor, down_DW: Tensor) -> str:
    """The path that a SwiGLU with these inputs and this last matrix should take: kernels in bf16, on the kind of GPU on
    which they were measured, if rows of all matrices are aligned to 16 bytes."""
    if not has_kernels(x) or plain_asked():
        return "products"
    D, W = down_DW.shape
    fits = D in WIDTHS and W % 8 == 0 and x.numel() // D * 2 * W < 2**31  # offsets within a model have 32 bits
    taken = fits and autocast_dtype(x) == torch.bfloat16 and is_hopper(x.device.index or 0)
    return "triton" if taken and _differentiated_once() else "products"


def _differentiated_once() -> bool:
    """Whether neither second derivatives by torch.func nor forward-mode derivatives are being computed."""
    if torch.compiler.is_compiling():
        return True
    transforms = [transform.key() for transform in torch._C._functorch.get_interpreter_stack() or ()]
    return forward_ad._current_level < 0 and transforms.count(torch._C._functorch.TransformType.Grad) <= 1


def swiglu_mlp(x: Tensor, gate_up_VD: Tensor, down_DW: Tensor) -> Tensor:
    """The same as the reference, by kernels, in autocast's precision if it is enabled."""
    dtype = autocast_dtype(x)
    x_MND, gate_up, down = (tensor.to(dtype)[None] for tensor in (x.reshape(-1, x.shape[-1]), gate_up_VD, down_DW))
    with outside_autocast(x):
        y_MND: Tensor = _SwigluMlp.apply(x_MND, gate_up, down)
    return y_MND.view(x.shape)


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
    """Joins the two operators, so that torch.func can differentiate them."""

    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _mlp(*inputs))

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
