"""Softmax attention with sinks: every head has one more score, learnt, which takes its share of the weights and brings
nothing.

    p_ij = exp(s_ij) / (exp(z) + Σ_j exp(s_ij)),   s_ij = scale · q_i·k_j,   o_i = Σ_j p_ij v_j

A head that finds nothing to attend to can leave its weight there instead of on the first token (gpt-oss, OpenAI 2025,
arXiv 2508.10925; Xiao et al. 2023, arXiv 2309.17453).

Queries go in blocks, each with the keys that it can see: with a window the scores held at once grow with the sequence,
not with its square.

Letters: B batch, M queries, N keys (N >= M: query i sits at position N−M+i), H query heads, G key/value heads, D head
width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plait.ops.tiled_attention import mask_value

BLOCK = 256  # queries


def sink_attention(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    sinks_H: Tensor,
    *,
    window: int = 0,
    pad_B: Tensor | None = None,
) -> Tensor:
    """Causal attention with the sinks' scores `sinks_H`; a window counts the query's own token. Returns o_BMHD."""
    B, M, H, D = q_BMHD.shape
    N, G = k_BNGD.shape[1:3]
    exact = torch.promote_types(q_BMHD.dtype, torch.float32)
    q_BGRMD = (q_BMHD * D**-0.5).unflatten(2, (G, H // G)).permute(0, 2, 3, 1, 4)
    k_BG1DN, v_BG1ND = k_BNGD.permute(0, 2, 3, 1)[:, :, None], v_BNGD.permute(0, 2, 1, 3)[:, :, None]
    position_N = torch.arange(N, device=q_BMHD.device)
    sinks = sinks_H.to(exact).view(1, G, H // G, 1, 1)
    outputs = []
    for first in range(0, M, BLOCK):
        last = min(M, first + BLOCK)
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
