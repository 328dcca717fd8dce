"""The delta rule with a decay per channel as an operator around the GPU's kernels (`plait.ops.channel_delta_triton`).

    S_t = (I − k_t e_tᵀ) diag(exp g_t) S_{t−1} + k_t v_tᵀ        o_t = scale · q_tᵀ S_t

    Kimi delta attention: Kimi Team 2025, arXiv 2510.26692: β k is written, e = k. With gates of each channel on what is
                          erased, e, and on what is written, v, it is Gated DeltaNet 2.

It is the DPLR recurrence (`plait.ops.dplr`) with a = exp g ∘ e and b = −k, which is used on other devices and for other
dtypes. A compiled graph sees one operator forward and one backward; stacked replicas (vmap) are more sequences of the
batch.

Letters: B batch, T time, H heads, K key, V value; Z = batch · heads, N chunks of C tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.delta import delta_takes, padded_width
from plait.ops.dplr import dplr
from plait.ops.paths import LONGEST_IN_GRAPH, autocast_dtype, plain_asked, took
from plait.ops.stacking import dense, in_batch_slices, register_stacked, with_dense_rows


def channel_delta(
    q_BTHK: Tensor, k_BTHK: Tensor, e_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, *, scale: float = 1.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All tokens at once: (o_BTHV, state_BHKV). `g` is the log decay, g <= 0."""
    if took("delta rule", channel_delta_path(k_BTHK, v_BTHV)) == "triton":
        q, k, e, v = (x.to(autocast_dtype(v_BTHV)) for x in (q_BTHK, k_BTHK, e_BTHK, v_BTHV))
        return channel_delta_kernels(q, k, e, v, g_BTHK, state, scale)
    v_BTHV = v_BTHV.to(torch.promote_types(v_BTHV.dtype, k_BTHK.dtype))
    return dplr(q_BTHK, k_BTHK, v_BTHV, g_BTHK.exp() * e_BTHK, -k_BTHK, g_BTHK, scale=scale, state=state)


def channel_delta_path(k_BTHK: Tensor, v_BTHV: Tensor) -> str:
    """The path `channel_delta` takes for these keys and values: "triton" on a GPU in bf16, else "chunks"."""
    if plain_asked() or (torch.compiler.is_compiling() and k_BTHK.shape[1] <= LONGEST_IN_GRAPH):
        return "chunks"
    dtype = autocast_dtype(v_BTHV)
    return "triton" if dtype == torch.bfloat16 and delta_takes(k_BTHK, v_BTHV, dtype) else "chunks"


def channel_delta_kernels(
    q_BTHK: Tensor, k_BTHK: Tensor, e_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """(o_BTHV in the dtype of v, state_BHKV in fp32)."""
    state = None if state is None else state.float()
    o_BTHV, final_BHKV, *_ = _ChannelDelta.apply(q_BTHK, k_BTHK, e_BTHK, v_BTHV, g_BTHK.float(), state, scale)
    return o_BTHV, final_BHKV


@torch.library.custom_op("plait::channel_delta_rule", mutates_args=())
def _rule(
    q_BTHK: Tensor, k_BTHK: Tensor, e_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from plait.ops.channel_delta_triton import channel_forward  # Triton comes with CUDA builds of torch

    q, k, e, v = (with_dense_rows(x) for x in (q_BTHK, k_BTHK, e_BTHK, v_BTHV))
    return in_batch_slices(channel_forward, v.shape[2], q, k, e, v, g_BTHK.contiguous(), dense(state), scale)


@torch.library.custom_op("plait::channel_delta_rule_backward", mutates_args=())
def _rule_backward(
    do_BTHV: Tensor, dfinal_BHKV: Tensor, q_BTHK: Tensor, k_BTHK: Tensor, e_BTHK: Tensor, v_BTHV: Tensor,
    g_BTHK: Tensor, P_ZNCC: Tensor, X_ZNCC: Tensor, w_ZNCV: Tensor, state: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from plait.ops.channel_delta_triton import channel_backward

    q, k, e, v = (with_dense_rows(x) for x in (q_BTHK, k_BTHK, e_BTHK, v_BTHV))
    return in_batch_slices(
        channel_backward, v.shape[2], do_BTHV.contiguous(), dfinal_BHKV.contiguous(), q, k, e, v,
        g_BTHK.contiguous(), dense(state), P_ZNCC.contiguous(), X_ZNCC.contiguous(), w_ZNCV.contiguous(), scale,
    )  # fmt: skip


class _ChannelDelta(torch.autograd.Function):
    """Joins the two operators, so that torch.func can differentiate them."""

    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _rule(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, state, ctx.scale = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*tensors, *output[2:], state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BTHV: Tensor, dfinal_BHKV: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: with activation checkpointing, every access recomputes them
        *grads, dstate = _rule_backward(do_BTHV, dfinal_BHKV, *saved, ctx.scale)
        return (*grads, None if saved[-1] is None else dstate, None)


def _fake(
    q: Tensor, k: Tensor, e: Tensor, v: Tensor, g: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    (B, T, H, K), V = k.shape, v.shape[3]
    C = 32 if k.dtype == torch.float32 else 64
    N, wide = (T + C - 1) // C, padded_width(V)
    o, final = v.new_empty(B, T, H, V), v.new_empty(B, H, K, V, dtype=torch.float32)
    return o, final, *(k.new_empty(B * H, N, C, width) for width in (C, C, wide))


def _fake_backward(do: Tensor, dfinal: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return (*(x.new_empty(x.shape) for x in args[:5]), dfinal.new_empty(dfinal.shape))


register_stacked(_rule, _fake)
register_stacked(_rule_backward, _fake_backward)
