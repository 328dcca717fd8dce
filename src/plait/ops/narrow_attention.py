"""Softmax attention for narrow heads on a GPU, where torch's own spends most of its time on padding.

What `torch.nn.functional.scaled_dot_product_attention` computes, in half precision, without a bias. Its backward pass
has no vmap rule and would loop over the replicas of a fleet; here replicas are simply more sequences. At head width 8,
six replicas and batches of 128 × 128 tokens the pair of passes takes 0.34 ms on an H200, torch's best 0.92.
`narrow_attention_at` is for few queries at arbitrary positions of the sequence, as in the last layer of a model whose
loss covers few tokens.

Recomputation of tiles: Dao et al. 2022, FlashAttention, arXiv 2205.14135.

Letters: S sequences (replicas × batch), T time, N queries at positions of their own, H heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.stacking import register_stacked

#: Wider heads are left to torch.
WIDEST = 32
#: More queries at arbitrary positions do not fit into one tile.
FEW_QUERIES = 128


def narrow_attention(q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, scale: float, causal: bool) -> Tensor:
    """softmax(scale · q k) v. Returns o_STHD, in autocast's precision if it is enabled."""
    if torch.is_autocast_enabled("cuda"):
        half = torch.get_autocast_dtype("cuda")
        q_STHD, k_STHD, v_STHD = (x.to(half) for x in (q_STHD, k_STHD, v_STHD))
    o_STHD: Tensor = _NarrowAttention.apply(q_STHD, k_STHD, v_STHD, scale, causal)[0]
    return o_STHD


def narrow_attention_at(q_SNHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, at_SN: Tensor, scale: float) -> Tensor:
    """The same for queries that see the keys up to the positions `at_SN`. Returns o_SNHD."""
    if torch.is_autocast_enabled("cuda"):
        half = torch.get_autocast_dtype("cuda")
        q_SNHD, k_STHD, v_STHD = (x.to(half) for x in (q_SNHD, k_STHD, v_STHD))
    o_SNHD: Tensor = _NarrowAttentionAt.apply(q_SNHD, k_STHD, v_STHD, at_SN.to(torch.int32), scale)[0]
    return o_SNHD


def takes(q_STHD: Tensor) -> bool:
    """Whether the kernels support these queries, which are on a GPU."""
    half = q_STHD.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled("cuda")
    return q_STHD.shape[-1] <= WIDEST and half


@torch.library.custom_op("plait::narrow_attention", mutates_args=())
def _narrow(q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    from plait.ops.narrow_attention_triton import narrow_forward  # Triton comes with CUDA builds of torch

    return narrow_forward(q_STHD, k_STHD, v_STHD, scale, causal)


@torch.library.custom_op("plait::narrow_attention_backward", mutates_args=())
def _narrow_backward(
    grad_o: Tensor, q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, o: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from plait.ops.narrow_attention_triton import narrow_backward

    return narrow_backward(grad_o, q_STHD, k_STHD, v_STHD, o, lse, scale, causal)


class _NarrowAttention(torch.autograd.Function):
    """Joins the two operators, which keep the kernels out of traced graphs (see `tiled_attention`)."""

    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _narrow(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.scale, ctx.causal = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_o: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return *_narrow_backward(grad_o, *ctx.saved_tensors, ctx.scale, ctx.causal), None, None


@torch.library.custom_op("plait::narrow_attention_at", mutates_args=())
def _narrow_at(q_SNHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, at_SN: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    from plait.ops.few_queries_triton import narrow_forward_at

    return narrow_forward_at(q_SNHD, k_STHD, v_STHD, at_SN, scale)


@torch.library.custom_op("plait::narrow_attention_at_backward", mutates_args=())
def _narrow_at_backward(
    grad_o: Tensor, q_SNHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, at_SN: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    from plait.ops.few_queries_triton import narrow_backward_at

    return narrow_backward_at(grad_o, q_SNHD, k_STHD, v_STHD, at_SN, o, lse, scale)


class _NarrowAttentionAt(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _narrow_at(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_o: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return *_narrow_at_backward(grad_o, *ctx.saved_tensors, ctx.scale), None, None


def _fake(q_STHD: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    S, T, H, _D = q_STHD.shape
    return q_STHD.new_empty(q_STHD.shape), q_STHD.new_empty(S, H, T, dtype=torch.float32)


register_stacked(_narrow, _fake)
register_stacked(_narrow_at, _fake)
register_stacked(_narrow_at_backward, lambda grad_o, q, k, v, *_: tuple(x.new_empty(x.shape) for x in (q, k, v)))
register_stacked(_narrow_backward, lambda grad_o, q, *_: tuple(q.new_empty(q.shape) for _ in range(3)))
