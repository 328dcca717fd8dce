"""Gated linear attention as an operator around the GPU's kernels (`plait.ops.gla_triton`).

    S_t = diag(exp g_t) S_{t-1} + k_t v_tᵀ        o_t = scale · q_tᵀ S_t

A compiled graph sees one operator forward and one backward; stacked replicas (vmap) are more sequences of the batch.
Half precision goes in and out, sums and states are fp32. Only the inputs are kept for the backward pass.

With `own_BTH` a query reads the state before its token is written, and its own token with that weight (RWKV-6's bonus).

Letters: B batch, T time, H heads, G heads of queries and keys (each serves H/G heads), K key width, V value width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.stacking import dense, in_batch_slices, in_reach, register_stacked, with_dense_rows

WIDEST = 1024  # of keys and of values: programs process them in tiles
DTYPES = (torch.bfloat16, torch.float32)


def gla_kernels(
    q_BTGK: Tensor,
    k_BTGK: Tensor,
    v_BTHV: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    state: Tensor | None = None,
    bonus: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(o_BTHV, state_BHKV), the state in fp32; `g` is g_BTHK or, one per head, g_BTH."""
    own_BTH = None
    if bonus is not None:
        own_BTH = (q_BTGK * k_BTGK * bonus).sum(-1, dtype=torch.float32)
        g = g if g.dim() == 4 else g[..., None].expand(*g.shape, k_BTGK.shape[3])
    dtype = kernel_dtype(q_BTGK, k_BTGK, v_BTHV)
    q, k, v = (x.to(dtype) for x in (q_BTGK, k_BTGK, v_BTHV))
    state = None if state is None else state.float()
    outputs: tuple[Tensor, Tensor] = _GatedLinearAttention.apply(q, k, v, g.float(), own_BTH, state, scale)
    return outputs


def kernel_dtype(*tensors: Tensor) -> torch.dtype:
    """bf16 if autocast or all inputs use it; otherwise fp32."""
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16:
        return torch.bfloat16
    return torch.bfloat16 if all(x.dtype == torch.bfloat16 for x in tensors) else torch.float32


def gla_takes(q_BTGK: Tensor, v_BTHV: Tensor, g: Tensor) -> bool:
    """Whether the kernels support these inputs: on a GPU, not float64, with addressable sizes."""
    (_, _, _, K), (H, V) = q_BTGK.shape, v_BTHV.shape[2:]
    grouped = g.dim() == 3 or q_BTGK.shape[2] == H
    narrow = torch.float64 not in (q_BTGK.dtype, v_BTHV.dtype, g.dtype)
    return q_BTGK.is_cuda and narrow and grouped and max(K, V) <= WIDEST and in_reach(q_BTGK, v_BTHV)


@torch.library.custom_op("plait::gated_linear_attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, own_BTH: Tensor | None, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    from plait.ops.gla_triton import gla_forward  # Triton comes with CUDA builds of torch

    q, k, v = (with_dense_rows(x) for x in (q, k, v))
    return in_batch_slices(gla_forward, v.shape[2], q, k, v, g, dense(own_BTH), dense(state), scale)


@torch.library.custom_op("plait::gated_linear_attention_backward", mutates_args=())
def _backward(
    do: Tensor, dstate: Tensor | None, q: Tensor, k: Tensor, v: Tensor, g: Tensor, own_BTH: Tensor | None,
    state: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from plait.ops.gla_triton import gla_backward

    q, k, v = (with_dense_rows(x) for x in (q, k, v))
    inputs = (do.contiguous(), dense(dstate), q, k, v, g, dense(own_BTH), dense(state), scale)
    return in_batch_slices(gla_backward, v.shape[2], *inputs)


class _GatedLinearAttention(torch.autograd.Function):
    """Joins the two operators, so that torch.func can differentiate them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, own_BTH: Tensor | None, state: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor] = _forward(q, k, v, g, own_BTH, state, scale)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.scale = inputs
        # Most callers drop the final state: a missing gradient should not cost a tensor of zeros.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dstate: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, g, own_BTH, state = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else do
        dq, dk, dv, dg, down, dfirst = _backward(do, dstate, q, k, v, g, own_BTH, state, ctx.scale)
        return dq, dk, dv, dg, None if own_BTH is None else down, None if state is None else dfirst, None


def _forward_like(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), _state_like(k, v)


def _backward_like(
    do: Tensor, dstate: Tensor | None, q: Tensor, k: Tensor, v: Tensor, g: Tensor, own_BTH: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    down = g.new_empty(own_BTH.shape if own_BTH is not None else (v.shape[0], 0))
    return (*(x.new_empty(x.shape) for x in (q, k, v, g)), down, _state_like(k, v))


def _state_like(k: Tensor, v: Tensor) -> Tensor:
    return v.new_empty(v.shape[0], v.shape[2], k.shape[3], v.shape[3], dtype=torch.float32)


register_stacked(_forward, _forward_like)
register_stacked(_backward, _backward_like)
