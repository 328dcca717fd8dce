"""Gated linear attention: a matrix state that decays and is written to once per token.

    S_t = diag(exp g_t) S_{t-1} + k_t v_tᵀ        o_t = scale · q_tᵀ S_t

    GLA:     Yang et al. 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training",
             arXiv 2312.06635: the recurrent and the chunkwise form. HGRN2 (arXiv 2404.07904) is the case k = 1 - exp g.
    Mamba-2: Dao & Gu 2024, "Transformers are SSMs", arXiv 2405.21060: one decay per head, `g_BTH`.
    RWKV-6:  Peng et al. 2024, "Eagle and Finch", arXiv 2404.05892: the state is read before the token is written, and
             the token itself with a learned weight, `bonus`: o_t = scale · q_tᵀ (S_{t-1} + diag(u) k_t v_tᵀ).

The fast path cuts time into chunks. A token sees earlier tokens of its own chunk through a C×C matrix of scores, and
everything before through the state at the start of the chunk; only that state is carried along in a loop.

Decays are never inverted. The textbook factorisation (q·exp b)(k·exp -b) overflows after a few strong decays, so for a
decay per channel the chunk is halved recursively: two tokens that are first separated at some level are connected
through the boundary between its two halves, as (q decayed back to the boundary) · (k decayed up to the boundary). Both
factors are decays, at most 1, and long sums are never subtracted, so neither the scores nor the gradient of g lose
digits. One decay per head is cheaper: the C×C sums of g are formed directly.

On a GPU the kernels (`plait.ops.gla_triton`) are an operator: a compiled graph sees one operator forward and one
backward; stacked replicas (vmap) are more sequences of the batch. Half precision goes in and out, sums and states are
fp32. Only the inputs are kept for the backward pass.

With `own_BTH` a query reads the state before its token is written, and its own token with that weight (RWKV-6's bonus).

Letters: B batch, T time, H heads, G heads of queries and keys (each serves H/G heads), K key, V value, N chunks, C time
within a chunk, D any of the last dimensions.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.core.errors import UserError
from plait.ops.paths import LONGEST_IN_GRAPH, full_precision, has_kernels, plain_asked, step_kernels_take, took
from plait.ops.stacking import dense, in_batch_slices, in_reach, register_stacked, with_dense_rows


def gla_reference(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    state: Tensor | None = None,
    bonus: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step per token, following the equations: the definition against which the fast path is tested."""
    state_BHKV = empty_state(k_BTHK, v_BTHV) if state is None else state
    outputs = []
    for t in range(q_BTHK.shape[1]):
        o_BHV, state_BHKV = gla_step(
            q_BTHK[:, t], k_BTHK[:, t], v_BTHV[:, t], g[:, t], state_BHKV, scale=scale, bonus=bonus
        )
        outputs.append(o_BHV)
    return torch.stack(outputs, dim=1), state_BHKV


def gla_step(
    q_BGK: Tensor,
    k_BGK: Tensor,
    v_BHV: Tensor,
    g: Tensor,
    state: Tensor,
    *,
    scale: float = 1.0,
    bonus: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One token: `g` is g_BHK (a decay per channel) or g_BH (one per head). Queries and keys may have fewer heads than
    values, as in `gla`."""
    if state.dtype == torch.float32 and step_kernels_take(q_BGK, k_BGK, v_BHV, g, state):
        from plait.ops.step_triton import gla_step_kernel  # Triton comes with CUDA builds of torch

        return gla_step_kernel(q_BGK, k_BGK, v_BHV, g, state, scale, bonus)
    q_BHK, k_BHK = (_to_heads(x, v_BHV.shape[-2]) for x in (q_BGK, k_BGK))
    decay_BHK1 = (g if g.dim() == k_BHK.dim() else g[..., None]).exp()[..., None]
    written_BHKV = k_BHK[..., :, None] * v_BHV[..., None, :]
    new_state = decay_BHK1 * state + written_BHKV
    read = new_state if bonus is None else state + bonus[..., None] * written_BHKV
    o_BHV = ((scale * q_BHK[..., None, :]).to(read.dtype) @ read).squeeze(-2)  # the state may be more precise than q
    return o_BHV, new_state


def gla(
    q_BTGK: Tensor,
    k_BTGK: Tensor,
    v_BTHV: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    state: Tensor | None = None,
    bonus: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """All tokens at once: (o_BTHV, state_BHKV). `g` is the log decay, g <= 0: g_BTHK, or g_BTH for one per head.

    Queries and keys may have fewer heads than values: each serves H/G of them. `bonus` is u_HK of RWKV-6. `chunk` is a
    power of two; by default the fastest on a CPU for these sizes. On a GPU half-precision inputs are multiplied in half
    precision (sums and states are fp32); otherwise everything has the widest dtype among the inputs.
    """
    if took("gated linear attention", gla_path(q_BTGK, v_BTHV, g, chunk=chunk)) == "triton":
        return gla_kernels(q_BTGK, k_BTGK, v_BTHV, g, scale=scale, state=state, bonus=bonus)
    dtype = reduce(torch.promote_types, (x.dtype for x in (q_BTGK, k_BTGK, v_BTHV, g)))
    H, v_BTHV = v_BTHV.shape[2], v_BTHV.to(dtype)
    q_BTHK, k_BTHK = (_to_heads(x.to(dtype), H) for x in (q_BTGK, k_BTGK))
    return _gla_in_chunks(q_BTHK, k_BTHK, v_BTHV, g, scale=scale, state=state, bonus=bonus, chunk=chunk)


def gla_path(q_BTGK: Tensor, v_BTHV: Tensor, g: Tensor, *, chunk: int | None = None) -> str:
    """The path that `gla` takes for these inputs: "triton", our kernels on a GPU, or "chunks", with torch's
    operations."""
    if plain_asked() or (torch.compiler.is_compiling() and q_BTGK.shape[1] <= LONGEST_IN_GRAPH):
        return "chunks"
    return "triton" if chunk is None and gla_takes(q_BTGK, v_BTHV, g) else "chunks"


def _to_heads(x_GK: Tensor, H: int) -> Tensor:
    """Queries or keys of G heads, (…, G, K), for each of H heads."""
    G = x_GK.shape[-2]
    return x_GK if G == H else x_GK.repeat_interleave(H // G, dim=-2)


@full_precision
def _gla_in_chunks(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g: Tensor,
    *,
    scale: float,
    state: Tensor | None,
    bonus: Tensor | None,
    chunk: int | None,
) -> tuple[Tensor, Tensor]:
    T, K = k_BTHK.shape[1], k_BTHK.shape[3]
    C = chunk_length(T, chunk, default=16 if K <= 32 else 32)
    q, k, v = (split_chunks(x, C) for x in (scale * q_BTHK, k_BTHK, v_BTHV))
    if g.dim() == k_BTHK.dim() or bonus is not None:
        g_BTHK = g if g.dim() == k_BTHK.dim() else g[..., None].expand_as(k_BTHK)
        g_BHNCK = split_chunks(g_BTHK, C)
        # If the state is read before it is written, a query skips its own token's decay; otherwise it applies to all
        # older keys.
        own_BHNC = (q * k).sum(-1) if bonus is None else (q * k * bonus[:, None, None, :]).sum(-1)
        q = q * g_BHNCK.exp() if bonus is None else q
        scores, q_from_start, k_to_end, total = scores_by_halving(q, k, g_BHNCK, own_BHNC)
    else:
        decay = HeadDecay(g, C)
        scores = (q @ k.transpose(-1, -2)) * decay.between
        q_from_start, k_to_end, total = q * decay.from_start, k * decay.to_end, decay.total

    writes_BHNKV = k_to_end.transpose(-1, -2) @ v
    state_BHKV = empty_state(k_BTHK, v_BTHV) if state is None else state
    before = []
    for write, decayed in zip(writes_BHNKV.unbind(2), total.unbind(2), strict=True):
        before.append(state_BHKV)
        state_BHKV = torch.addcmul(write, decayed, state_BHKV)
    o_BHNCV = scores @ v + q_from_start @ torch.stack(before, dim=2)
    return join_chunks(o_BHNCV, T), state_BHKV


def scores_by_halving(q: Tensor, k: Tensor, g: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores within a chunk under a decay per channel: q_i · exp(Σ_{j<m<i} g_m) k_j below the diagonal, `own` on it.

    Also the queries decayed back to the chunk's start, the keys decayed up to its end, and the whole chunk's decay
    (all but the scores come out of the last round for free). All of q, k, g are BHNCK; q and k may have more dimensions
    in front, over which they broadcast.
    """
    C, K = q.shape[-2:]
    where = torch.arange(C, device=q.device)
    scores = torch.diag_embed(own)
    log_total = g  # the log decay across each block of `half` tokens
    half = 1
    while half < C:
        # Here q is decayed back to the start of its block of `half` tokens, and k up to the end of its block: for a
        # query in a right half and a key in the adjacent left half, these are the same boundary.
        block = where // half
        siblings = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        scores = torch.addcmul(scores, q @ k.transpose(-1, -2), siblings.to(q.dtype))
        left, right = log_total.unflatten(-2, (C // half // 2, 2)).unbind(-2)
        ones = torch.ones_like(left)
        q = _scale_blocks(q, torch.stack((ones, left.exp()), dim=-2).flatten(-3, -2))
        k = _scale_blocks(k, torch.stack((right.exp(), ones), dim=-2).flatten(-3, -2))
        # Logs, not products: exp rounds 1 - 1e-6 by 4e-8 always in the same direction, which would accumulate.
        log_total = left + right
        half *= 2
    return scores, q, k, log_total.exp().reshape(*g.shape[:-2], K, 1)


def _scale_blocks(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply each block of consecutive tokens of x by its own row of `factor`."""
    x_by_block: Tensor = x.unflatten(-2, (factor.shape[-2], -1))
    return (x_by_block * factor.unsqueeze(-2)).flatten(-3, -2)


class HeadDecay:
    """The decays inside each chunk when a head has one decay per token, `g_BTH`.

    between    BHNCC  from token j to token i: exp Σ_{j<m<=i} g_m, zero for j > i
    from_start BHNC1  from before the chunk to token i
    to_end     BHNC1  from token j to the end of the chunk
    total      BHN11  across the chunk

    Every sum is a product with a constant 0/1 matrix rather than a difference of running sums: after a strong decay
    such a difference would lose the digits of the weak ones, and its gradient those of the strong ones.
    """

    def __init__(self, g_BTH: Tensor, C: int) -> None:
        g_BHNC = split_chunks(g_BTH[..., None], C).squeeze(-1)
        # Boundaries 0..C are before, between and after the tokens: token m is between m and m + 1. The sums run from
        # boundary `first` to boundary `last`: C·C of them for `between` (row i, column j), then C, C and 1 for the
        # other three.
        token = torch.arange(C, device=g_BTH.device)
        after, start, end = token + 1, torch.zeros_like(token), torch.full_like(token, C)
        first = torch.cat((after.repeat(C), start, after, start[:1]))
        last = torch.cat((after.repeat_interleave(C), after, end, end[:1]))
        summed = ((first <= token[:, None]) & (token[:, None] < last)).to(g_BTH.dtype)
        forbidden = torch.zeros_like(summed[0]).masked_fill(first > last, -math.inf)
        decay = torch.addmm(forbidden, g_BHNC.reshape(-1, C), summed).exp().reshape(*g_BHNC.shape[:-1], -1)
        between, from_start, to_end, total = decay.split((C * C, C, C, 1), dim=-1)
        self.between = between.reshape(*g_BHNC.shape, C)
        self.from_start, self.to_end, self.total = from_start[..., None], to_end[..., None], total[..., None]


def chunk_length(T: int, chunk: int | None, *, default: int) -> int:
    """The chunk length: as requested, otherwise the default, but no longer than the sequence needs."""
    if chunk is not None and (chunk < 1 or chunk & (chunk - 1)):
        raise UserError(f"chunk is {chunk}; it must be a power of two, for example 16, 32 or 64.")
    return min(default if chunk is None else chunk, 1 << (T - 1).bit_length())


def split_chunks(x_BTHD: Tensor, C: int) -> Tensor:
    """BTHD -> BHNCD, contiguous. Zeros fill the last chunk: no key, no decay, so the final state stays exact."""
    missing = -x_BTHD.shape[1] % C
    if missing:
        x_BTHD = F.pad(x_BTHD, (0, 0, 0, 0, 0, missing))
    x_BNCHD: Tensor = x_BTHD.unflatten(1, (-1, C))
    return x_BNCHD.permute(0, 3, 1, 2, 4).contiguous()


def join_chunks(x_BHNCD: Tensor, T: int) -> Tensor:
    """BHNCD -> BTHD, without the padding."""
    return x_BHNCD.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :T]


def empty_state(k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """The state before the first token: zeros, BHKV."""
    B, _, H, K = k_BTHK.shape
    return k_BTHK.new_zeros(B, H, K, v_BTHV.shape[-1])


WIDEST = 1024  # of keys and of values: programs process them in tiles


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
    return has_kernels(q_BTGK) and narrow and grouped and max(K, V) <= WIDEST and in_reach(q_BTGK, v_BTHV)


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
    forward = staticmethod(lambda *inputs: _forward(*inputs))

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
