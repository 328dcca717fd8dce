"""Softmax attention and forgetting attention: causal or not, windowed, with ALiBi, sinks, grouped heads, left padding.

    s_ij = scale · q_i·k_j + (c_i − c_j) − slope · (i − j),    c_t = Σ_{s ≤ t} log f_s,    o = softmax(s) v

* softmax attention: Vaswani et al. 2017, arXiv 1706.03762 (eq. 1)
* the forget gate f:  Lin et al. 2025, Forgetting Transformer, arXiv 2503.02130 (§3); f ≡ 1 is softmax attention
* slopes:             Press et al. 2022, ALiBi, arXiv 2108.12409 (§3); the same as a constant f = exp(−slope) per head

Letters: B batch, M queries, N keys (N >= M: query i sits at position N−M+i), H query heads, G key/value heads, D head
width.

Paths. "sdpa" is torch's own fused attention, for what it can express; "cudnn" is cuDNN's, which torch includes but does
not prefer, for the shapes where it is faster (`CUDNN_FROM`); "narrow" is the same for narrow heads on a GPU
(`plait.ops.narrow_attention`); "forgetting" is ours for gates, slopes and padding on a GPU
(`plait.ops.forgetting_attention`). "plain" is the definition, for short compiled sequences. "tiled" is ours, for
everything else (`plait.ops.tiled_attention`): windows, wide heads and float64 on a GPU, and most cases on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.ops.elementwise import take_tokens
from plait.ops.forgetting_attention import forgetting_attention, forgetting_takes
from plait.ops.gpu import has_cudnn_attention
from plait.ops.narrow_attention import FEW_QUERIES as FEW_QUERIES
from plait.ops.narrow_attention import narrow_attention, narrow_attention_at, takes
from plait.ops.paths import has_kernels, in_graph, plain_asked, took
from plait.ops.tiled_attention import mask_value, tiled_attention

SINK_BLOCK = 256  # queries per block, with sinks
# Below this width, BLAS is slow with one column per feature, the layout of fused attention (measured on one core).
NARROW_HEAD = 16
# Up to this length a compiled graph may materialise all scores.
LONGEST_PLAIN = 512
# Inside a compiled graph, narrow heads of at most this width and length use our kernels: both passes of 64 heads of 16
# and 256 × 256 tokens take 1.85 ms on an H200, torch's 3.24 (benchmarks/results/2026-11-16-h200-scaling.md).
NARROW_IN_GRAPH = (16, 256)
# By head width (rounded up to the next entry): the length from which on cuDNN's attention is the fastest, forward and
# backward, on a GPU of compute capability 9.0 (benchmarks/results/2026-11-16-h200-training.md). It plans every new
# shape, so it is used only for training, where shapes repeat.
CUDNN_FROM = {64: 128, 128: 128}


def attention_reference(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    *,
    log_f_BNH: Tensor | None = None,
    slopes_H: Tensor | Sequence[float] | None = None,
    causal: bool = True,
    window: int = 0,
    pad_B: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    at_BM: Tensor | None = None,
) -> Tensor:
    """The definition. A query that sees no key gives 0 and has no gradient. `dropout` applies to p. With `at_BM`, the
    queries are at these positions instead of the last ones."""
    _check_shapes(q_BMHD, k_BNGD, window)
    M, H, D = q_BMHD.shape[1:]
    N, G = k_BNGD.shape[1:3]
    k_BNHD, v_BNHD = (x.repeat_interleave(H // G, dim=2) for x in (k_BNGD, v_BNGD))
    s_BHMN = torch.einsum("bmhd,bnhd->bhmn", q_BMHD, k_BNHD) * (D**-0.5 if scale is None else scale)
    position_N = torch.arange(N, device=q_BMHD.device)
    at_BM = position_N[None, N - M :] if at_BM is None else at_BM
    c_BNH = _cumulative_bias(k_BNGD, H, log_f_BNH, slopes_H, pad_B)
    if c_BNH is not None:
        own_BMH = take_tokens(c_BNH, at_BM.expand(q_BMHD.shape[0], M))
        s_BHMN = s_BHMN + (own_BMH.transpose(1, 2)[..., None] - c_BNH.transpose(1, 2)[:, :, None]).to(s_BHMN.dtype)
    distance_BMN = at_BM[..., None] - position_N
    seen_BMN = torch.ones_like(distance_BMN, dtype=torch.bool)
    if causal:
        seen_BMN = seen_BMN & (distance_BMN >= 0)
    if window:
        seen_BMN = seen_BMN & (distance_BMN.abs() < window)
    if pad_B is not None:
        seen_BMN = seen_BMN & (position_N >= pad_B[:, None, None])
    hidden_BHMN = ~seen_BMN[:, None]
    # A finite mask, then zero: softmax over a row of −∞ would be NaN, and so would its gradient.
    p_BHMN = s_BHMN.masked_fill(hidden_BHMN, mask_value(s_BHMN.dtype)).softmax(-1).masked_fill(hidden_BHMN, 0.0)
    if dropout:
        p_BHMN = F.dropout(p_BHMN, dropout)
    return torch.einsum("bhmn,bnhd->bmhd", p_BHMN, v_BNHD)


def attention_path(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    *,
    log_f_BNH: Tensor | None = None,
    slopes_H: Tensor | Sequence[float] | None = None,
    causal: bool = True,
    window: int = 0,
    pad_B: Tensor | None = None,
) -> str:
    """The path that `attention` takes for these arguments: one of those named above."""
    (M, D), N = q_BMHD.shape[1::2], k_BNGD.shape[1]
    if plain_asked():
        return "plain"
    if M == 1:  # one row of biases is cheap, and a window is a slice
        return "sdpa"
    plain = log_f_BNH is None and slopes_H is None and pad_B is None and not 0 < window < N
    # Fused attention aligns its causal mask with the first key, ours with the last: they agree when M = N.
    expressible = plain and (M == N or not causal)
    kernels = has_kernels(q_BMHD)
    if kernels and expressible and M == N and q_BMHD.shape[2] == k_BNGD.shape[2] and takes(q_BMHD):
        widest, longest = NARROW_IN_GRAPH
        wins = widest >= D and longest >= N
        return "narrow" if wins or not torch.compiler.is_compiling() else "sdpa"
    # For the tiles, stacked replicas (vmap) are a larger batch; torch's own op would loop over them on a CPU.
    stacked = not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(q_BMHD)
    tiles_win = not q_BMHD.is_cuda and (D < NARROW_HEAD or 256 < N <= 512 or stacked)
    if expressible and not tiles_win:
        return "cudnn" if not stacked and _cudnn_wins(q_BMHD, k_BNGD) else "sdpa"
    short_in_graph = torch.compiler.is_compiling() and N <= LONGEST_PLAIN
    if kernels and causal and not 0 < window < N and forgetting_takes(q_BMHD) and not short_in_graph:
        return "forgetting"
    # A compiled vmap (a fleet) cannot trace the tiles' autograd Function; the compiler fuses short scores itself.
    return "plain" if in_graph() and N <= LONGEST_PLAIN else "tiled"


def attention(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    *,
    log_f_BNH: Tensor | None = None,
    slopes_H: Tensor | Sequence[float] | None = None,
    causal: bool = True,
    window: int = 0,
    pad_B: Tensor | None = None,
    scale: float | None = None,
    last: Tensor | None = None,
) -> Tensor:
    """`attention_reference`, fast and without a quadratic tensor. Returns o_BMHD. A single query may read a cache with
    spare capacity: it sees keys up to index `last`, a tensor with one number."""
    _check_shapes(q_BMHD, k_BNGD, window)
    H, D = q_BMHD.shape[2:]
    scale = D**-0.5 if scale is None else scale
    path = attention_path(
        q_BMHD, k_BNGD, log_f_BNH=log_f_BNH, slopes_H=slopes_H, causal=causal, window=window, pad_B=pad_B
    )
    took("attention", path)
    if path == "plain":
        return attention_reference(
            q_BMHD,
            k_BNGD,
            v_BNGD,
            log_f_BNH=log_f_BNH,
            slopes_H=slopes_H,
            causal=causal,
            window=window,
            pad_B=pad_B,
            scale=scale,
        )
    if path == "narrow":
        return narrow_attention(q_BMHD, k_BNGD, v_BNGD, scale, causal)
    if path == "forgetting":
        log_f_BNH = k_BNGD.new_zeros(*k_BNGD.shape[:2], H, dtype=torch.float32) if log_f_BNH is None else log_f_BNH
        if slopes_H is not None:
            log_f_BNH = log_f_BNH - torch.as_tensor(slopes_H, dtype=torch.float32, device=k_BNGD.device)
        return forgetting_attention(q_BMHD, k_BNGD, v_BNGD, log_f_BNH, pad_B, scale=scale)
    if path == "cudnn":
        return _cudnn(q_BMHD, k_BNGD, v_BNGD, scale, causal)
    c_BNH = _cumulative_bias(k_BNGD, H, log_f_BNH, slopes_H, pad_B)
    if path == "sdpa":
        return _sdpa(q_BMHD, k_BNGD, v_BNGD, c_BNH, pad_B, scale, causal, window, last)
    # Half precision would round the biased scores to three digits.
    exact = q_BMHD.dtype if q_BMHD.dtype == torch.float64 else torch.float32
    q, k, v = (x.to(exact) for x in (q_BMHD, k_BNGD, v_BNGD))
    return tiled_attention(q, k, v, c_BNH, pad_B, scale, causal, window).to(q_BMHD.dtype)


def attention_at(q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, at_BM: Tensor) -> Tensor:
    """Causal softmax attention for queries at some positions only: query i sees the keys up to `at_BM[:, i]`. Returns
    o_BMHD. At most `FEW_QUERIES`, because all scores are materialised (except for narrow heads on a GPU)."""
    narrow = has_kernels(q_BMHD) and takes(q_BMHD) and q_BMHD.shape[2] == k_BNGD.shape[2] and not plain_asked()
    if took("attention", "narrow" if narrow else "plain") == "narrow":
        return narrow_attention_at(q_BMHD, k_BNGD, v_BNGD, at_BM, q_BMHD.shape[-1] ** -0.5)
    return attention_reference(q_BMHD, k_BNGD, v_BNGD, at_BM=at_BM)


def alibi_slopes(heads: int) -> list[float]:
    """Press et al. 2022, §3: 2^(−8/n), 2^(−16/n), … for n = 2^m heads; for any other number, the slopes of the next
    smaller power of two and then every other slope of the next larger one."""
    if heads < 1:
        raise UserError(f"ALiBi needs at least one head, got {heads}.")
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    return slopes + [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]


def _check_shapes(q_BMHD: Tensor, k_BNGD: Tensor, window: int) -> None:
    M, H = q_BMHD.shape[1:3]
    N, G = k_BNGD.shape[1:3]
    if H % G:
        raise UserError(f"{H} query heads cannot share {G} key/value heads: {H} must be a multiple of {G}.")
    if M > N:
        raise UserError(f"{M} queries but only {N} keys: the queries are the last positions of the keys.")
    if window < 0:
        raise UserError(f"window must be 0 (no limit) or positive, got {window}.")


def _cumulative_bias(
    k_BNGD: Tensor,
    heads: int,
    log_f_BNH: Tensor | None,
    slopes_H: Tensor | Sequence[float] | None,
    pad_B: Tensor | None,
) -> Tensor | None:
    """c_BNH in float64, so that differences of large running sums stay accurate; a slope is a constant gate."""
    if log_f_BNH is None and slopes_H is None:
        return None
    B, N = k_BNGD.shape[:2]
    position_N = torch.arange(N, device=k_BNGD.device)
    c_BNH = k_BNGD.new_zeros(B, N, heads, dtype=torch.float64)
    if log_f_BNH is not None:
        if pad_B is not None:
            log_f_BNH = log_f_BNH.masked_fill((position_N < pad_B[:, None])[..., None], 0.0)
        c_BNH = c_BNH + log_f_BNH.double().cumsum(1)
    if slopes_H is not None:
        slopes_H = torch.as_tensor(slopes_H, dtype=torch.float64, device=k_BNGD.device)
        c_BNH = c_BNH - slopes_H * position_N[:, None]
    return c_BNH


def _sdpa(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    c_BNH: Tensor | None,
    pad_B: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    last: Tensor | None = None,
) -> Tensor:
    """torch's fused attention: a plain softmax, or one query with any bias (`attention_path` ensures this)."""
    M, H = q_BMHD.shape[1:3]
    N, G = k_BNGD.shape[1:3]
    bias_BH1N = None
    if c_BNH is not None:
        c_BHN = c_BNH.transpose(1, 2)
        own_BH1 = c_BHN[:, :, -1:] if last is None else c_BHN.index_select(2, last)
        bias_BH1N = (own_BH1 - c_BHN).to(q_BMHD.dtype)[:, :, None]
    position_N = torch.arange(N, device=k_BNGD.device)
    hidden_B11N = None if pad_B is None else position_N < pad_B[:, None, None, None]
    if last is not None:
        beyond_N = position_N > last
        hidden_B11N = beyond_N[None, None, None] if hidden_B11N is None else hidden_B11N | beyond_N
    if hidden_B11N is not None:
        bias_BH1N = q_BMHD.new_zeros(1) if bias_BH1N is None else bias_BH1N
        bias_BH1N = torch.where(hidden_B11N, mask_value(q_BMHD.dtype), bias_BH1N)
    if M == 1 and 0 < window < N:
        k_BNGD, v_BNGD = k_BNGD[:, -window:], v_BNGD[:, -window:]
        bias_BH1N = None if bias_BH1N is None else bias_BH1N[..., -window:]
    q_BHMD, k_BGND, v_BGND = (x.transpose(1, 2) for x in (q_BMHD, k_BNGD, v_BNGD))
    o_BHMD = F.scaled_dot_product_attention(
        q_BHMD, k_BGND, v_BGND, attn_mask=bias_BH1N, is_causal=causal and M > 1, scale=scale, enable_gqa=G != H
    )
    if pad_B is not None:
        o_BHMD = o_BHMD.masked_fill((pad_B >= N)[:, None, None, None], 0.0)
    return o_BHMD.transpose(1, 2)


def _cudnn_wins(q_BMHD: Tensor, k_BNGD: Tensor) -> bool:
    """Whether cuDNN's attention supports these inputs and was measured to be the fastest."""
    if not q_BMHD.is_cuda or not torch.is_grad_enabled() or not q_BMHD.requires_grad:
        return False
    N, G, D = k_BNGD.shape[1:]
    half = _half(q_BMHD.dtype) in (torch.bfloat16, torch.float16)
    taken = half and q_BMHD.shape[1] == N and q_BMHD.shape[2] == G and D % 8 == 0 and max(CUDNN_FROM) >= D
    if not taken or CUDNN_FROM[min(width for width in CUDNN_FROM if width >= D)] > N:
        return False
    return has_cudnn_attention(q_BMHD.device.index or 0)


def _half(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a fused operator's inputs on a GPU."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype


def _cudnn(q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, scale: float, causal: bool) -> Tensor:
    """The operator itself: torch's choice among its kernels cannot be made inside a compiled graph."""
    half = _half(q_BMHD.dtype)
    q, k, v = (x.to(half).transpose(1, 2) for x in (q_BMHD, k_BNGD, v_BNGD))
    o_BHMD: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, compute_log_sumexp=True, is_causal=causal, scale=scale
    )[0]
    return o_BHMD.transpose(1, 2)


def sink_attention(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    sinks_H: Tensor,
    *,
    window: int = 0,
    pad_B: Tensor | None = None,
) -> Tensor:
    """Causal attention with sinks: every head has one additional learned score, which takes part of the attention
    weight and contributes no value. A window includes the query's own token. Returns o_BMHD.

        p_ij = exp(s_ij) / (exp(z) + Σ_j exp(s_ij)),   s_ij = scale · q_i·k_j,   o_i = Σ_j p_ij v_j

    A head that finds nothing to attend to can leave its weight there instead of on the first token (gpt-oss, OpenAI
    2025, arXiv 2508.10925; Xiao et al. 2023, arXiv 2309.17453). Queries are processed in blocks, each with the keys it
    can see: with a window, memory for scores grows linearly with the sequence."""
    B, M, H, D = q_BMHD.shape
    N, G = k_BNGD.shape[1:3]
    exact = torch.promote_types(q_BMHD.dtype, torch.float32)
    q_BGRMD = (q_BMHD * D**-0.5).unflatten(2, (G, H // G)).permute(0, 2, 3, 1, 4)
    k_BG1DN, v_BG1ND = k_BNGD.permute(0, 2, 3, 1)[:, :, None], v_BNGD.permute(0, 2, 1, 3)[:, :, None]
    position_N = torch.arange(N, device=q_BMHD.device)
    sinks = sinks_H.to(exact).view(1, G, H // G, 1, 1)
    outputs = []
    for first in range(0, M, SINK_BLOCK):
        last = min(M, first + SINK_BLOCK)
        end = N - M + last
        start = max(0, N - M + first - window + 1) if window else 0
        scores = (q_BGRMD[..., first:last, :] @ k_BG1DN[..., start:end]).to(exact)
        distance = position_N[N - M + first : end, None] - position_N[start:end]
        hidden = (distance < 0)[None] if not window else ((distance < 0) | (distance >= window))[None]
        if pad_B is not None:
            hidden = hidden | (position_N[start:end] < pad_B[:, None, None])
        scores = scores.masked_fill(hidden[:, None, None], mask_value(exact))
        scores = torch.cat((scores, sinks.expand(B, -1, -1, last - first, -1)), dim=-1)
        p = scores.softmax(-1)[..., :-1].to(q_BMHD.dtype)
        outputs.append(p @ v_BG1ND[..., start:end, :])
    return torch.cat(outputs, dim=-2).permute(0, 3, 1, 2, 4).flatten(2, 3)
