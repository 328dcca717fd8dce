"""What stands between the matrix products of a block on a GPU, as operators, each one node of a compiled graph:
SwiGLU's gate, and the split of a joint projection into rotated queries and keys, and values.

    swiglu(x) = silu(x₁) ∘ x₂                       x₁, x₂ the halves of the last dimension
    split(x)  = (R q, R k, v),  x = [q, k, v]       R turns the channel pairs (i, i + P/2) by their angles

Backward of the split is the rotation back, written into one gradient of the joint projection.

Letters: N rows; B batch, T time, H query heads, G key/value heads, A = H + 2G, P head width, I = P/2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plait.ops.paths import plain_asked, recording


def fused_takes(x: Tensor) -> bool:
    """Whether the kernels are for this tensor, which is on a GPU: neither stacked (vmap) nor differentiated twice."""
    if x.dtype == torch.float64 or plain_asked() or recording():
        return False
    return torch.compiler.is_compiling() or not torch._C._functorch.is_functorch_wrapped_tensor(x)


def fused_swiglu(gate_up: Tensor) -> Tensor:
    y_NW: Tensor = _swiglu(gate_up.reshape(-1, gate_up.shape[-1]).contiguous())
    return y_NW.view(*gate_up.shape[:-1], -1)


def split_rotated(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q_BTHP and k_BTGP, turned, and v_BTGP; the angles are fp32."""
    q, k, v = _split(packed_BTAP.contiguous(), cos_TI, sin_TI, heads)
    return q, k, v


@torch.library.custom_op("plait::swiglu", mutates_args=())
def _swiglu(x_NV: Tensor) -> Tensor:
    from plait.ops.elementwise_triton import swiglu_forward  # Triton comes with CUDA builds of torch

    return swiglu_forward(x_NV)


@torch.library.custom_op("plait::swiglu_backward", mutates_args=())
def _swiglu_backward(x_NV: Tensor, dy_NW: Tensor) -> Tensor:
    from plait.ops.elementwise_triton import swiglu_backward

    return swiglu_backward(x_NV, dy_NW.contiguous())


@torch.library.custom_op("plait::split_rotated", mutates_args=())
def _split(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    from plait.ops.elementwise_triton import split_forward

    return split_forward(packed_BTAP, cos_TI, sin_TI, heads)


@torch.library.custom_op("plait::split_rotated_backward", mutates_args=())
def _split_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos_TI: Tensor, sin_TI: Tensor) -> Tensor:
    from plait.ops.elementwise_triton import split_backward

    return split_backward(dq, dk, dv, cos_TI, sin_TI)


def _fake_split(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, ...]:
    B, T, A, P = packed_BTAP.shape
    counts = (heads, (A - heads) // 2, (A - heads) // 2)
    return tuple(packed_BTAP.new_empty(B, T, count, P) for count in counts)


def _save_angles(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs[1:3])


_swiglu.register_fake(lambda x_NV: x_NV.new_empty(x_NV.shape[0], x_NV.shape[1] // 2))
_swiglu_backward.register_fake(lambda x_NV, dy_NW: torch.empty_like(x_NV))
_swiglu.register_autograd(
    lambda ctx, dy_NW: _swiglu_backward(*ctx.saved_tensors, dy_NW),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
_split.register_fake(_fake_split)
_split_backward.register_fake(
    lambda dq, dk, dv, cos, sin: dq.new_empty(*dq.shape[:2], dq.shape[2] + dk.shape[2] + dv.shape[2], dq.shape[3])
)
_split.register_autograd(
    lambda ctx, dq, dk, dv: (_split_backward(dq, dk, dv, *ctx.saved_tensors), None, None, None),
    setup_context=_save_angles,
)
