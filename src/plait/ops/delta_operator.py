"""The delta rule as an operator around the GPU's kernels (`plait.ops.delta_triton`).

A compiled graph sees one operator forward and one backward; stacked members (vmap) are more sequences of the batch.

Letters: B batch, T time, H heads, K key, V value; Z = batch · heads, N chunks of C tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.stacking import dense, in_batch_slices, in_reach, register_stacked, with_dense_rows

WIDEST_KEY = 128
DTYPES = (torch.bfloat16, torch.float32)
# Narrower heads are padded to this. With 16 channels Triton 3.6 compiles kernels for Hopper that leave their shared
# memory (found by compute-sanitizer): an illegal access, which under MPS ends the other processes as well.
NARROWEST = 32


def delta_kernels(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, beta_BTH: Tensor, g_BTH: Tensor | None, state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(o_BTHV in the dtype of v, state_BHKV in fp32)."""
    beta_BTH = beta_BTH.float()
    g_BTH, state = (None if x is None else x.float() for x in (g_BTH, state))
    o_BTHV, final_BHKV, *_ = _DeltaRule.apply(q_BTHK, k_BTHK, v_BTHV, beta_BTH, g_BTH, state, scale)
    return o_BTHV, final_BHKV


def delta_takes(k_BTHK: Tensor, v_BTHV: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels are made for these keys and values, brought to this dtype."""
    made = k_BTHK.is_cuda and k_BTHK.shape[1] > 0 and k_BTHK.shape[3] <= WIDEST_KEY and dtype in DTYPES
    return made and in_reach(k_BTHK, v_BTHV)


def padded_width(width: int) -> int:
    """The power of two that holds a head's keys or values within the kernels."""
    return max(NARROWEST, 1 << (width - 1).bit_length())


@torch.library.custom_op("plait::delta_rule", mutates_args=())
def _delta_rule(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, beta_BTH: Tensor, g_BTH: Tensor | None, state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from plait.ops.delta_triton import delta_forward  # Triton comes with CUDA builds of torch

    q, k, v = (with_dense_rows(x) for x in (q_BTHK, k_BTHK, v_BTHV))
    given = (q, k, v, beta_BTH.contiguous(), dense(g_BTH), dense(state), scale)
    return in_batch_slices(delta_forward, v.shape[2], *given)


@torch.library.custom_op("plait::delta_rule_backward", mutates_args=())
def _delta_rule_backward(
    do_BTHV: Tensor, dfinal_BHKV: Tensor, q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, beta_BTH: Tensor,
    X_ZNCC: Tensor, w_ZNCV: Tensor, g_BTH: Tensor | None, state: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from plait.ops.delta_triton import delta_backward

    q, k, v = (with_dense_rows(x) for x in (q_BTHK, k_BTHK, v_BTHV))
    return in_batch_slices(
        delta_backward, v.shape[2], do_BTHV.contiguous(), dfinal_BHKV.contiguous(), q, k, v, beta_BTH.contiguous(),
        dense(g_BTH), dense(state), X_ZNCC.contiguous(), w_ZNCV.contiguous(), scale,
    )  # fmt: skip


class _DeltaRule(torch.autograd.Function):
    """Joins the two operators, so that torch.func differentiates them too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, state: Tensor | None, scale: float
    ) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = _delta_rule(q, k, v, beta, g, state, scale)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, beta, g, state, ctx.scale = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(q, k, v, beta, *output[2:], g, state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BTHV: Tensor, dfinal_BHKV: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        *saved, g, state = ctx.saved_tensors
        *grads, dg, dstate = _delta_rule_backward(do_BTHV, dfinal_BHKV, *saved, g, state, ctx.scale)
        return (*grads, None if g is None else dg, None if state is None else dstate, None)


def _fake(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, state: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    (B, T, H, K), V = k.shape, v.shape[3]
    C = 32 if k.dtype == torch.float32 else 64
    N, wide = (T + C - 1) // C, padded_width(V)
    return (
        v.new_empty(B, T, H, V),
        v.new_empty(B, H, K, V, dtype=torch.float32),
        k.new_empty(B * H, N, C, C),
        k.new_empty(B * H, N, C, wide),
    )


def _fake_backward(
    do: Tensor, dfinal: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, X: Tensor, w: Tensor, g: Tensor | None,
    state: Tensor | None, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    dg = beta.new_empty(0 if g is None else g.shape)
    return (*(x.new_empty(x.shape) for x in (q, k, v, beta)), dg, dfinal.new_empty(dfinal.shape))


register_stacked(_delta_rule, _fake)
register_stacked(_delta_rule_backward, _fake_backward)
