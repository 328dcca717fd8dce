"""A matrix state whose transition is diagonal plus low rank (DPLR): it decays per channel, and what one key reads from
it is written at another.

    S_t = diag(exp g_t) S_{t-1} + b_t (a_tᵀ S_{t-1}) + k_t v_tᵀ        o_t = scale · q_tᵀ S_t

    Kimi delta attention: Kimi Team 2025, arXiv 2510.26692: a = exp g ∘ k, b = -β k, and β k for the key; the delta rule
                          with a decay per channel.
    RWKV-7:               Peng et al. 2025, "RWKV-7 Goose", arXiv 2503.14456: a = -κ, b = κ ∘ η, the state read before
                          it decays.

What token t reads is u_t = S_{t-1}ᵀ a_t. Written out over a chunk that starts from the state S, with D_tj the decay of
the tokens between j and t and d_t that of all tokens of the chunk before t (both of each channel),

    u_t - Σ_{j<t} (a_t · D_tj b_j) u_j = Sᵀ (d_t ∘ a_t) + Σ_{j<t} (a_t · D_tj k_j) v_j

a unit lower triangular system for all u of the chunk, solved before S is known, U = U_v + U_k S, as for the delta rule
(`plait.ops.delta`). The four matrices of scores, (q, a) by (b, k), come out of one pass of halving (`plait.ops.gla`).

Letters: B batch, T time, H heads, K key, V value, N chunks, C time within a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plait.ops.gla import chunk_length, empty_state, join_chunks, scores_by_halving, split_chunks
from plait.ops.paths import full_precision

#: Queries, keys, values, the key that reads, the one that writes what was read, and log decays.
Dplr = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def dplr_reference(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    a_BTHK: Tensor,
    b_BTHK: Tensor,
    g_BTHK: Tensor,
    *,
    scale: float = 1.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step per token, following the equations: the definition against which the fast path is tested."""
    state_BHKV = empty_state(k_BTHK, v_BTHV) if state is None else state
    outputs = []
    for t in range(q_BTHK.shape[1]):
        q, k, v, a, b, g = (x[:, t] for x in (q_BTHK, k_BTHK, v_BTHV, a_BTHK, b_BTHK, g_BTHK))
        o_BHV, state_BHKV = dplr_step(q, k, v, a, b, g, state_BHKV, scale=scale)
        outputs.append(o_BHV)
    return torch.stack(outputs, dim=1), state_BHKV


def dplr_step(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    a_BHK: Tensor,
    b_BHK: Tensor,
    g_BHK: Tensor,
    state: Tensor,
    *,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """One token: (o_BHV, state_BHKV)."""
    read_BH1V = a_BHK[..., None, :] @ state
    written_BHKV = k_BHK[..., :, None] * v_BHV[..., None, :]
    state = g_BHK.exp()[..., None] * state + b_BHK[..., :, None] * read_BH1V + written_BHKV
    o_BHV = (scale * q_BHK[..., None, :] @ state).squeeze(-2)
    return o_BHV, state


@full_precision
def dplr(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    a_BTHK: Tensor,
    b_BTHK: Tensor,
    g_BTHK: Tensor,
    *,
    scale: float = 1.0,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """All tokens at once: (o_BTHV, state_BHKV). `g` is the log decay, g <= 0. `chunk` is a power of two."""
    T, K, V = k_BTHK.shape[1], k_BTHK.shape[3], v_BTHV.shape[3]
    C = chunk_length(T, chunk, default=16 if K <= 32 else 32)
    q, k, v, a, b, g = (split_chunks(x, C) for x in (scale * q_BTHK, k_BTHK, v_BTHV, a_BTHK, b_BTHK, g_BTHK))
    # A query reads after its own token has decayed and written, `a` before: only the query sees its own token.
    columns = torch.stack((b, k))[None]
    own_q = (q * columns[0]).sum(-1)[None]
    own = torch.cat((own_q, torch.zeros_like(own_q)))
    scores, rows_from_start, columns_to_end, total_BHNK1 = scores_by_halving(
        torch.stack((q * g.exp(), a))[:, None], columns, g, own
    )
    (q_b, q_k), (a_b, a_k) = scores.unbind(0)[0].unbind(0), scores.unbind(0)[1].unbind(0)
    q_from_start, a_from_start = rows_from_start[:, 0].unbind(0)
    b_to_end, k_to_end = columns_to_end[0].unbind(0)

    # unitriangular: the solver assumes a diagonal of 1 and never reads entries on or above it.
    u = torch.linalg.solve_triangular(-a_b, torch.cat((a_k @ v, a_from_start), dim=-1), upper=False, unitriangular=True)
    from_v_BHNCV, from_state_BHNCK = (q_b @ u).split((V, K), dim=-1)
    writes_BHNKV, passed_BHNKK = (b_to_end.transpose(-1, -2) @ u).split((V, K), dim=-1)
    writes_BHNKV = writes_BHNKV + k_to_end.transpose(-1, -2) @ v
    passed_BHNKK = passed_BHNKK + total_BHNK1 * torch.eye(K, dtype=k.dtype, device=k.device)
    state_BHKV = empty_state(k_BTHK, v_BTHV) if state is None else state
    before = []
    for write, passed in zip(writes_BHNKV.unbind(2), passed_BHNKK.unbind(2), strict=True):
        before.append(state_BHKV)
        state_BHKV = write + passed @ state_BHKV
    o_BHNCV = q_k @ v + from_v_BHNCV + (q_from_start + from_state_BHNCK) @ torch.stack(before, dim=2)
    return join_chunks(o_BHNCV, T), state_BHKV
