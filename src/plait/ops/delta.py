"""The delta rule: a matrix state that is corrected towards v_t at the key k_t, optionally after a decay.

    S_t = a_t S_{t-1} + β_t k_t (v_t - (a_t S_{t-1})ᵀ k_t)ᵀ        o_t = scale · q_tᵀ S_t,        a_t = exp g_t

    DeltaNet:       Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
                    arXiv 2406.06484: the chunkwise WY / UT form; a_t = 1.
    Gated DeltaNet: Yang et al. 2024, "Gated Delta Networks", arXiv 2412.06464: one decay per head.

What token t writes is w_t = β_t (v_t - (a_t S_{t-1})ᵀ k_t), so that S_t = a_t S_{t-1} + k_t w_tᵀ. Written out over a
chunk that starts from the state S, with D_tj the decay from token j to token t and d_t the one since the chunk began,

    w_t + β_t Σ_{j<t} D_tj (k_t·k_j) w_j = β_t v_t - β_t d_t Sᵀ k_t

a unit lower triangular system for all w of the chunk. It is solved for both parts of the right-hand side before S is
known, W = W_v - W_k S, which makes the step from chunk to chunk one small matrix product. There are GPU kernels
(`plait.ops.delta_triton`): a compiled graph sees one operator forward and one backward, and stacked replicas (vmap) are
more sequences of the batch.

Letters: B batch, T time, H heads, K key, V value, N chunks, C time within a chunk, Z = batch · heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.gla import HeadDecay, chunk_length, empty_state, join_chunks, split_chunks
from plait.ops.paths import LONGEST_IN_GRAPH, autocast_dtype, full_precision, has_kernels, plain_asked, took
from plait.ops.stacking import dense, in_batch_slices, in_reach, register_stacked, with_dense_rows

WIDEST_KEY = 128
DTYPES = (torch.bfloat16, torch.float32)
# Narrower heads are padded to this. With 16 channels, Triton 3.6 compiles kernels for Hopper that access memory outside
# their shared memory (found by compute-sanitizer), which under MPS also terminates the other processes.
NARROWEST = 32
NARROW_KEYS = 16  # up to this key width, products are in fp32


def delta_reference(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    g_BTH: Tensor | None = None,
    *,
    scale: float = 1.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step per token, following the equations: the definition against which the fast path is tested."""
    state_BHKV = empty_state(k_BTHK, v_BTHV) if state is None else state
    outputs = []
    for t in range(q_BTHK.shape[1]):
        g_BH = None if g_BTH is None else g_BTH[:, t]
        o_BHV, state_BHKV = delta_step(
            q_BTHK[:, t], k_BTHK[:, t], v_BTHV[:, t], beta_BTH[:, t], g_BH, state_BHKV, scale=scale
        )
        outputs.append(o_BHV)
    return torch.stack(outputs, dim=1), state_BHKV


def delta_step(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    beta_BH: Tensor,
    g_BH: Tensor | None,
    state: Tensor,
    *,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """One token: (o_BHV, state_BHKV). Without a decay `g` is None."""
    if g_BH is not None:
        state = g_BH.exp()[..., None, None] * state
    recalled_BHV = (k_BHK[..., None, :] @ state).squeeze(-2)
    w_BHV = beta_BH[..., None] * (v_BHV - recalled_BHV)
    state = state + k_BHK[..., :, None] * w_BHV[..., None, :]
    o_BHV = (scale * q_BHK[..., None, :] @ state).squeeze(-2)
    return o_BHV, state


def delta(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    g_BTH: Tensor | None = None,
    *,
    scale: float = 1.0,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """All tokens at once: (o_BTHV, state_BHKV). `g` is the log decay, g <= 0; None means no decay.

    Keys are usually L2-normalised and β in (0, 1), but nothing here relies on it. `chunk` is a power of two; by
    default the fastest on a CPU for these sizes. With the GPU kernels (`delta_path`), half-precision inputs are
    multiplied in half precision: v's dtype is that of the products and of o; sums and states are in fp32. Narrow heads
    are the exception: in few channels, keys overlap so much that rounding within a chunk would affect the output's
    second digit.
    """
    if chunk is None and took("delta rule", delta_path(k_BTHK, v_BTHV)) == "triton":
        dtype = autocast_dtype(v_BTHV)
        products = torch.float32 if k_BTHK.shape[3] <= NARROW_KEYS else dtype
        q, k, v = (x.to(products) for x in (q_BTHK, k_BTHK, v_BTHV))
        o_BTHV, state_BHKV = delta_kernels(q, k, v, beta_BTH, g_BTH, state, scale)
        return o_BTHV.to(dtype), state_BHKV
    v_BTHV = v_BTHV.to(torch.promote_types(v_BTHV.dtype, k_BTHK.dtype))
    return _delta_by_chunks(q_BTHK, k_BTHK, v_BTHV, beta_BTH, g_BTH, scale=scale, state=state, chunk=chunk)


def delta_path(k_BTHK: Tensor, v_BTHV: Tensor) -> str:
    """The path `delta` takes for these keys and values: "triton" on a GPU, else "chunks"."""
    if plain_asked() or (torch.compiler.is_compiling() and k_BTHK.shape[1] <= LONGEST_IN_GRAPH):
        return "chunks"
    return "triton" if delta_takes(k_BTHK, v_BTHV, autocast_dtype(v_BTHV)) else "chunks"


@full_precision
def _delta_by_chunks(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    g_BTH: Tensor | None,
    *,
    scale: float,
    state: Tensor | None,
    chunk: int | None,
) -> tuple[Tensor, Tensor]:
    T, K, V = k_BTHK.shape[1], k_BTHK.shape[3], v_BTHV.shape[3]
    C = chunk_length(T, chunk, default=16 if K <= 32 else 32)
    q, k, v = (split_chunks(x, C) for x in (scale * q_BTHK, k_BTHK, v_BTHV))
    beta_BHNC1 = split_chunks(beta_BTH[..., None], C)
    k_beta = beta_BHNC1 * k
    overlap, scores = k_beta @ k.transpose(-1, -2), q @ k.transpose(-1, -2)
    if g_BTH is None:
        scores = scores.tril()
        q_from_start, k_to_end, k_beta_from_start = q, k, k_beta
        total = torch.ones_like(k[..., :1, :1])
    else:
        decay = HeadDecay(g_BTH, C)
        overlap, scores = overlap * decay.between, scores * decay.between
        q_from_start, k_to_end, k_beta_from_start = q * decay.from_start, k * decay.to_end, k_beta * decay.from_start
        total = decay.total

    # unitriangular: the solver assumes a diagonal of 1 and never reads entries on or above it. It does not support
    # bf16, which autocast produces.
    wide = torch.promote_types(overlap.dtype, torch.float32)
    right = torch.cat((beta_BHNC1 * v, k_beta_from_start), dim=-1).to(wide)
    w = torch.linalg.solve_triangular(overlap.to(wide), right, upper=False, unitriangular=True)
    # W_v and W_k concatenated: one product applies the scores to both, one the keys.
    from_v_BHNCV, from_k_BHNCK = (scores @ w).split((V, K), dim=-1)
    writes_BHNKV, erased_BHNKK = (k_to_end.transpose(-1, -2) @ w).split((V, K), dim=-1)
    passed_BHNKK = total * torch.eye(K, dtype=k.dtype, device=k.device) - erased_BHNKK
    state_BHKV = empty_state(k_BTHK, v_BTHV) if state is None else state
    before = []
    for write, passed in zip(writes_BHNKV.unbind(2), passed_BHNKK.unbind(2), strict=True):
        before.append(state_BHKV)
        state_BHKV = write + passed @ state_BHKV
    o_BHNCV = from_v_BHNCV + (q_from_start - from_k_BHNCK) @ torch.stack(before, dim=2)
    return join_chunks(o_BHNCV, T), state_BHKV


# ---- on a GPU


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
    """Whether the kernels support these keys and values after conversion to this dtype."""
    supported = has_kernels(k_BTHK) and k_BTHK.shape[1] > 0 and k_BTHK.shape[3] <= WIDEST_KEY and dtype in DTYPES
    return supported and in_reach(k_BTHK, v_BTHV)


def padded_width(width: int) -> int:
    """The power of two to which the kernels pad a head's keys or values."""
    return max(NARROWEST, 1 << (width - 1).bit_length())


@torch.library.custom_op("plait::delta_rule", mutates_args=())
def _delta_rule(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, beta_BTH: Tensor, g_BTH: Tensor | None, state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from plait.ops.delta_triton import delta_forward  # Triton comes with CUDA builds of torch

    q, k, v = (with_dense_rows(x) for x in (q_BTHK, k_BTHK, v_BTHV))
    inputs = (q, k, v, beta_BTH.contiguous(), dense(g_BTH), dense(state), scale)
    return in_batch_slices(delta_forward, v.shape[2], *inputs)


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
    """Joins the two operators, so that torch.func can differentiate them."""

    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _delta_rule(*inputs))

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
