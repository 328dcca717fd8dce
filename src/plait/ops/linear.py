"""Linear attention: softmax's kernel replaced by a product of features, so that the past fits into a matrix state.

    S_t = S_{t-1} + k_t v_tᵀ        z_t = z_{t-1} + k_t        o_t = scale · q_tᵀ S_t / (scale · q_tᵀ z_t)

    Katharopoulos et al. 2020, "Transformers are RNNs", arXiv 2006.16236: the causal recurrence, and elu + 1.

q and k must already be features: apply `feature_map(name)` first. The division is optional (`normalize`); it gives a
weighted mean, as in softmax attention, if the features are non-negative, and is meaningless otherwise. The sum z is the
column that a constant value of 1 would add to S, and is computed in this way.

Letters: B batch, T time, H heads, K key, V value, N chunks, C time within a chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.registry import require_known
from plait.ops.gla import chunk_length, empty_state, gla, gla_path, join_chunks, split_chunks
from plait.ops.paths import full_precision, took

# S_BHKV, and z_BHK only if outputs are normalised: a state contains nothing that is never read.
LinearState = tuple[Tensor, ...]

# Avoids 0/0 if no feature of a query matches any key (relu); far below any meaningful sum.
NORMALIZER_FLOOR = 1e-6

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "elu1": lambda x: F.elu(x) + 1,
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).square(),
    "softmax": lambda x: x.softmax(dim=-1),
}


def feature_map(name: str) -> Callable[[Tensor], Tensor]:
    """The feature of that name: a function of x_…K to features of the same shape."""
    require_known(name, FEATURE_MAPS, "unknown feature map")
    return FEATURE_MAPS[name]


def linear_attention_reference(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    *,
    scale: float = 1.0,
    normalize: bool = False,
    state: LinearState | None = None,
) -> tuple[Tensor, LinearState]:
    """One step per token, following the equations: the definition against which the fast path is tested."""
    if state is None:
        S_BHKV = empty_state(k_BTHK, v_BTHV)
        state = (S_BHKV, torch.zeros_like(k_BTHK[:, 0])) if normalize else (S_BHKV,)
    outputs = []
    for t in range(q_BTHK.shape[1]):
        o_BHV, state = linear_attention_step(
            q_BTHK[:, t], k_BTHK[:, t], v_BTHV[:, t], state, scale=scale, normalize=normalize
        )
        outputs.append(o_BHV)
    return torch.stack(outputs, dim=1), state


def linear_attention_step(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    state: LinearState,
    *,
    scale: float = 1.0,
    normalize: bool = False,
) -> tuple[Tensor, LinearState]:
    """One token: (o_BHV, state), the state (S_BHKV, z_BHK) if normalised and (S_BHKV,) if not."""
    q_BHK = scale * q_BHK
    S_BHKV = state[0] + k_BHK[..., :, None] * v_BHV[..., None, :]
    o_BHV = (q_BHK[..., None, :] @ S_BHKV).squeeze(-2)
    if not normalize:
        return o_BHV, (S_BHKV,)
    z_BHK = state[1] + k_BHK
    return o_BHV / ((q_BHK * z_BHK).sum(-1, keepdim=True) + NORMALIZER_FLOOR), (S_BHKV, z_BHK)


def linear_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    *,
    scale: float = 1.0,
    normalize: bool = False,
    state: LinearState | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, LinearState]:
    """All tokens at once: (o_BTHV, state), the state (S_BHKV, z_BHK) if normalised and (S_BHKV,) if not.

    `chunk` is a power of two; by default the fastest on a CPU for these sizes. On a GPU this is gated linear attention
    (`plait.ops.gla`) whose gates stay open.
    """
    if normalize:
        v_BTHV = F.pad(v_BTHV, (0, 1), value=1.0)
    S_BHKV = None if state is None else state[0]
    if state is not None and normalize:
        S_BHKV = torch.cat((state[0], state[1][..., None]), dim=-1)
    open_BTH = v_BTHV.new_zeros(1, dtype=torch.promote_types(v_BTHV.dtype, torch.float32)).expand(v_BTHV.shape[:3])
    if gla_path(q_BTHK, v_BTHV, open_BTH, chunk=chunk) == "triton":
        o_BTHV, S_BHKV = gla(q_BTHK, k_BTHK, v_BTHV, open_BTH, scale=scale, state=S_BHKV)
    else:
        took("linear attention", "chunks")
        o_BTHV, S_BHKV = _linear_in_chunks(q_BTHK, k_BTHK, v_BTHV, S_BHKV, scale, chunk)
    if not normalize:
        return o_BTHV, (S_BHKV,)
    weighted, weight = o_BTHV[..., :-1], o_BTHV[..., -1:]
    return weighted / (weight + NORMALIZER_FLOOR), (S_BHKV[..., :-1], S_BHKV[..., -1])


@full_precision
def _linear_in_chunks(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, S_BHKV: Tensor | None, scale: float, chunk: int | None
) -> tuple[Tensor, Tensor]:
    T, K = k_BTHK.shape[1], k_BTHK.shape[3]
    C = chunk_length(T, chunk, default=32 if K <= 32 else 64)
    S_BHKV = empty_state(k_BTHK, v_BTHV) if S_BHKV is None else S_BHKV
    q, k, v = (split_chunks(x, C) for x in (scale * q_BTHK, k_BTHK, v_BTHV))
    writes_BHNKV = k.transpose(-1, -2) @ v
    states_BHMKV = torch.cat((S_BHKV[:, :, None], writes_BHNKV), dim=2).cumsum(dim=2)  # M = N + 1, before to after
    scores_BHNCC = (q @ k.transpose(-1, -2)).tril()
    return join_chunks(scores_BHNCC @ v + q @ states_BHMKV[:, :, :-1], T), states_BHMKV[:, :, -1]
