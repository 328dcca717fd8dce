"""Relative attention of Transformer-XL (Dai et al. 2019, arXiv 1901.02860, §3.3 and appendix B).

    score_ij = [(q_i + u)·k_j + (q_i + v)·r_{i−j}] / √D,    o = softmax(score) values,    causal

r_l is a learned projection of the sinusoid of distance l; u and v replace the query's position in the original
sinusoidal attention, so a score depends on the two positions only through their distance.

Letters: B batch, M queries, N keys with the memory first (N >= M: query i sits at position N−M+i), H heads, D head
width, L distances 0 … L−1 (L = N, or at most clamp + 1 when distances are clamped).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError


def relative_attention_reference(
    q_BMHD: Tensor,
    k_BNHD: Tensor,
    v_BNHD: Tensor,
    r_LHD: Tensor,
    u_HD: Tensor,
    v_HD: Tensor,
    *,
    window: int = 0,
    clamp: int = 0,
    pad_B: Tensor | None = None,
) -> Tensor:
    """The definition: every pair gathers the embedding of its own distance; the first `pad_B[b]` keys of row b are
    padding. Returns o_BMHD, meaningless if the query itself is padding."""
    _check_shapes(q_BMHD, k_BNHD, r_LHD, window, clamp)
    (M, D), N = q_BMHD.shape[1::2], k_BNHD.shape[1]
    position_N = torch.arange(N, device=q_BMHD.device)
    distance_MN = position_N[N - M :, None] - position_N
    hidden_MN = distance_MN < 0
    if window:
        hidden_MN = hidden_MN | (distance_MN >= window)
    r_MNHD = r_LHD[distance_MN.clamp(0, clamp or N - 1)]
    content_BHMN = torch.einsum("bmhd,bnhd->bhmn", q_BMHD + u_HD, k_BNHD)
    place_BHMN = torch.einsum("bmhd,mnhd->bhmn", q_BMHD + v_HD, r_MNHD)
    hidden = hidden_MN if pad_B is None else _or_padding(hidden_MN, pad_B)
    p_BHMN = ((content_BHMN + place_BHMN) * D**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("bhmn,bnhd->bmhd", p_BHMN, v_BNHD)


def relative_attention(
    q_BMHD: Tensor,
    k_BNHD: Tensor,
    v_BNHD: Tensor,
    r_LHD: Tensor,
    u_HD: Tensor,
    v_HD: Tensor,
    *,
    window: int = 0,
    clamp: int = 0,
    pad_B: Tensor | None = None,
) -> Tensor:
    """The same by the relative shift (appendix B): one product of all queries with all distances, then a strided view
    aligns every distance with its key. Returns o_BMHD."""
    _check_shapes(q_BMHD, k_BNHD, r_LHD, window, clamp)
    (M, D), N = q_BMHD.shape[1::2], k_BNHD.shape[1]
    if window and M + window - 1 < N:  # keys that not even the first query sees
        k_BNHD, v_BNHD = k_BNHD[:, 1 - M - window :], v_BNHD[:, 1 - M - window :]
        pad_B = None if pad_B is None else (pad_B - (N - M - window + 1)).clamp(min=0)
        N = M + window - 1
    scale = D**-0.5
    k_BHDN, v_BHND = k_BNHD.permute(0, 2, 3, 1), v_BNHD.transpose(1, 2)
    content_BHMN = ((q_BMHD + u_HD) * scale).transpose(1, 2) @ k_BHDN
    # Column j of the raw product holds distance N−1−j, as the last query needs it.
    distance_N = torch.arange(N - 1, -1, -1, device=q_BMHD.device)
    r_HDN = r_LHD[distance_N.clamp(max=clamp) if clamp else distance_N].permute(1, 2, 0)
    place_BHMN = relative_shift(((q_BMHD + v_HD) * scale).transpose(1, 2) @ r_HDN)
    ones_MN = torch.ones(M, N, dtype=torch.bool, device=q_BMHD.device)
    hidden_MN = ones_MN.triu(N - M + 1)
    if window:
        hidden_MN = hidden_MN | ones_MN.tril(N - M - window)
    hidden = hidden_MN if pad_B is None else _or_padding(hidden_MN, pad_B)
    p_BHMN = (content_BHMN + place_BHMN).masked_fill(hidden, -torch.inf).softmax(-1)
    o_BHMD: Tensor = p_BHMN @ v_BHND
    return o_BHMD.transpose(1, 2)


def _or_padding(hidden_MN: Tensor, pad_B: Tensor) -> Tensor:
    """(B, 1, M, N): what is already masked, and padding. A padded query still sees itself: an empty softmax would put
    NaN into the values of later layers."""
    M, N = hidden_MN.shape
    position_N = torch.arange(N, device=hidden_MN.device)
    padding_B1N = position_N < pad_B[:, None, None]
    other_MN = position_N != position_N[N - M :, None]
    return (hidden_MN | (padding_B1N & other_MN))[:, None]


def relative_shift(x_BHMN: Tensor) -> Tensor:
    """Row i shifted left by M−1−i: with one more column, each row, read at the old width, starts one entry later than
    the row above. Entries right of the diagonal come from the next row; the causal mask hides them."""
    M, N = x_BHMN.shape[-2:]
    shifted_BHMN: Tensor = F.pad(x_BHMN, (1, 0)).flatten(-2)[..., M:].unflatten(-1, (M, N))
    return shifted_BHMN


def sinusoid(distances_L: Tensor, width: int) -> Tensor:
    """(…, width): all the sines, then all the cosines, of distance · 10000^(−2i/width); distances of any shape."""
    if width < 2 or width % 2:
        raise UserError(f"A sinusoid needs an even width (sines and cosines), got {width}.")
    exponent_I = torch.arange(0, width, 2, dtype=torch.float64, device=distances_L.device) / width
    angle_LI = distances_L.double()[..., None] * 10000.0**-exponent_I
    dtype = distances_L.dtype if distances_L.is_floating_point() else torch.get_default_dtype()
    return torch.cat((angle_LI.sin(), angle_LI.cos()), dim=-1).to(dtype)


def _check_shapes(q_BMHD: Tensor, k_BNHD: Tensor, r_LHD: Tensor, window: int, clamp: int) -> None:
    M, N, L = q_BMHD.shape[1], k_BNHD.shape[1], r_LHD.shape[0]
    if window < 0 or clamp < 0:
        raise UserError(f"window and clamp must be 0 (no limit) or positive, got window={window}, clamp={clamp}.")
    if M > N:
        raise UserError(f"{M} queries but only {N} keys: the queries are the last positions of the keys.")
    needed = min(N, clamp + 1) if clamp else N
    if needed > L:
        raise UserError(f"{L} distance embeddings, but {needed} distances (0 … {needed - 1}) occur.")
