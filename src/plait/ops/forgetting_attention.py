"""Forgetting attention as an operator around the GPU's kernels (`plait.ops.forgetting_triton`).

    s_ij = scale · q_i·k_j + c_i − c_j for j <= i,    c_t = Σ_{s ≤ t} log f_s,    o = softmax(s) v

Lin et al. 2025, Forgetting Transformer, arXiv 2503.02130 (§3). A compiled graph sees one operator forward and one
backward; stacked replicas (vmap) are more sequences of the batch.

Letters: B batch, M queries, N keys (N >= M: query i sits at position N−M+i), H query heads, G key/value heads, D head
width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.gpu import has_large_shared_memory
from plait.ops.paths import autocast_dtype
from plait.ops.stacking import dense, register_stacked, with_dense_rows

WIDEST_HEAD = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def forgetting_attention(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    log_f_BNH: Tensor,
    pad_B: Tensor | None = None,
    *,
    scale: float,
    prune: bool = True,
) -> Tensor:
    """Causal attention with gates; returns o_BMHD.

    With `prune`, tiles of keys are skipped whose total probability is provably less than a sixteenth of the rounding
    error of one probability: exp(−margin), margin = ln(1/ε) + 4, 9.5 in bf16 and 20 in fp32.
    """
    if torch.is_autocast_enabled("cuda"):
        half = torch.get_autocast_dtype("cuda")
        q_BMHD, k_BNGD, v_BNGD = (x.to(half) for x in (q_BMHD, k_BNGD, v_BNGD))
    o_BMHD: Tensor = _ForgettingAttention.apply(q_BMHD, k_BNGD, v_BNGD, log_f_BNH.float(), pad_B, scale, prune)[0]
    return o_BMHD


def forgetting_takes(q_BMHD: Tensor) -> bool:
    """Whether the kernels support these queries, which are on a GPU. Tiles of wide heads in fp32 take 160 KiB."""
    if q_BMHD.shape[3] > WIDEST_HEAD or q_BMHD.dtype not in DTYPES:
        return False
    large = q_BMHD.shape[3] > WIDEST_HEAD // 2 and autocast_dtype(q_BMHD) == torch.float32
    return not large or has_large_shared_memory(q_BMHD.device.index or 0)


@torch.library.custom_op("plait::forgetting_attention", mutates_args=())
def _forgetting(
    q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, log_f_BNH: Tensor, pad_B: Tensor | None, scale: float, prune: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from plait.ops.forgetting_triton import forgetting_forward  # Triton comes with CUDA builds of torch

    margin = math.log2(k_BNGD.shape[1]) - math.log2(torch.finfo(q_BMHD.dtype).eps) + 4 / math.log(2)
    q, k, v = (with_dense_rows(x) for x in (q_BMHD, k_BNGD, v_BNGD))
    return forgetting_forward(q, k, v, log_f_BNH, dense(pad_B), scale, -margin if prune else -math.inf)


@torch.library.custom_op("plait::forgetting_attention_backward", mutates_args=())
def _forgetting_backward(
    do_BMHD: Tensor, o_BMHD: Tensor, q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, c_BHN: Tensor, whole_BHN: Tensor,
    part_BHN: Tensor, row_BHM: Tensor, tail_BHM: Tensor, begins_BHt: Tensor, bounds_BHt: Tensor,
    pad_B: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from plait.ops.forgetting_triton import forgetting_backward

    q, k, v = (with_dense_rows(x) for x in (q_BMHD, k_BNGD, v_BNGD))
    return forgetting_backward(
        do_BMHD.contiguous(), o_BMHD.contiguous(), q, k, v, c_BHN.contiguous(), whole_BHN.contiguous(),
        part_BHN.contiguous(), row_BHM.contiguous(), tail_BHM.contiguous(), begins_BHt.contiguous(),
        bounds_BHt.contiguous(), dense(pad_B), scale,
    )  # fmt: skip


class _ForgettingAttention(torch.autograd.Function):
    """Joins the two operators, so that torch.func can differentiate them."""

    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _forgetting(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, _, pad_B, ctx.scale, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[0], q, k, v, *output[1:], pad_B)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BMHD: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        return (*_forgetting_backward(do_BMHD, *ctx.saved_tensors, ctx.scale), None, None, None)


def _saved_like(q_BMHD: Tensor, k_BNGD: Tensor) -> list[Tensor]:
    """Uninitialised c, whole, part, row, tail, begins and bounds."""
    (B, M, H), N = q_BMHD.shape[:3], k_BNGD.shape[1]
    saved = [q_BMHD.new_empty(B, H, T, dtype=torch.float32) for T in (N, N, N, M, M)]
    tables = [q_BMHD.new_empty(B, H, (M + 63) // 64, dtype=dtype) for dtype in (torch.int32, torch.float32)]
    return saved + tables


register_stacked(_forgetting, lambda q, k, *_: (q.new_empty(q.shape), *_saved_like(q, k)))
register_stacked(
    _forgetting_backward,
    lambda do, o, q, k, v, c, *_: (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        c.new_empty(c.shape).transpose(1, 2).contiguous(),
    ),
)
