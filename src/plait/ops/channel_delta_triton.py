"""The delta rule with a decay per channel on a GPU, forward and backward, chunk by chunk.

`plait.ops.channel_delta` defines what is computed and makes it an operator. The method is that for a decay per head
(`plait.ops.delta_triton`), whose recurrences over chunks are reused: with d the decay since the chunk's start and l the
one up to its end, both of each channel, Q = scale d q, E = d e and L = l k,

    (I + A) w = v − E S,   o = Q S + P w,   S ← γ S + Lᵀ w
    A_ij = Σ_K e_i D_ij k_j for j < i,   P_ij = scale Σ_K q_i D_ij k_j for j <= i

What differs are the scores A and P: `scores` and `pair_gradients` go by blocks of 16 tokens. Kept for the backward pass
are P, X = (I + A)⁻¹ and w.

Letters: B batch, T time, H heads, K key, V value; Z = batch · heads, N chunks of C tokens; WK and WV the powers of two
that hold K and V, BV value and BK key channels at a time, R the 16 tokens of a block.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from plait.ops.channel_delta_kernels_triton import (
    BLOCK,
    channel_gradients,
    channel_outputs,
    channel_prepare_backward,
    pair_gradients,
    scores,
    solve,
    sums,
)
from plait.ops.delta_backward_triton import states_backward
from plait.ops.delta_forward_triton import states
from plait.ops.delta_triton import JOIN, KEYS, Tuning, Tunings, widths
from plait.ops.stacking import strides_of


def channel_tunings(dtype: torch.dtype, narrowest: int) -> Tunings:
    """`narrowest`: the smaller of the padded widths of keys and values. At 32, `solve` gives wrong results with four
    warps on an H200 with Triton 3.6 (see benchmarks/kernel_faults.py); with eight it is correct at every width."""
    if dtype == torch.float32:
        return Tunings(32, *(Tuning(16, 4, 1) for _ in range(7)))
    return Tunings(
        64,
        prepare=Tuning(64, 4 if narrowest >= 128 else 8, 1),
        states=Tuning(32, 4, 2),
        outputs=Tuning(64, 4, 1),
        again=Tuning(32, 4, 2),
        prepare_backward=Tuning(64, 4, 1),
        states_backward=Tuning(32, 4, 2),
        gradients=Tuning(64, 4, 1),
    )


def channel_forward(
    q_BTHK: Tensor, k_BTHK: Tensor, e_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, state_BHKV: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(o_BTHV, final state_BHKV, P_ZNCC, X_ZNCC, w_ZNCV)."""
    (B, T, H, K), V = k_BTHK.shape, v_BTHV.shape[3]
    sizes = widths(k_BTHK, v_BTHV)
    WK, WV = sizes["WK"], sizes["WV"]
    tuned = channel_tunings(k_BTHK.dtype, min(WK, WV))
    C, Z = tuned.chunk, B * H
    N = triton.cdiv(T, C)
    P, X, W, w, Q, E, L = (k_BTHK.new_empty(Z, N, C, width) for width in (C, C, WK, WV, WK, WK, WK))
    A = k_BTHK.new_empty(Z, N, C, C, dtype=torch.float32)
    before = k_BTHK.new_empty(Z, N, WK, WV)
    o, final = v_BTHV.new_empty(B, T, H, V), v_BTHV.new_empty(B, H, K, V, dtype=torch.float32)
    strides = strides_of(q_BTHK, k_BTHK, e_BTHK, v_BTHV)
    G = _sums(g_BTHK, Z, N, C, WK)
    scores[N, Z, C // BLOCK.value](
        q_BTHK, k_BTHK, e_BTHK, G, P, A, scale, T, H, N, *strides[:9], K=K, WK=WK, C=C, PRECISION=sizes["PRECISION"]
    )
    solve[N, Z](
        q_BTHK, k_BTHK, e_BTHK, v_BTHV, G, A, X, Q, E, L, W, w, scale, T, H, N, *strides, SOLVE=True, JOIN=JOIN,
        **sizes, **_launch(tuned.prepare, C, WV),
    )  # fmt: skip
    states[WV // min(WV, tuned.states.values), Z](
        L, G, W, w, state_BHKV, w, before, final, N * C, H, N, *_dense_strides(H, N * C, WK),
        FIRST=state_BHKV is not None, AGAIN=False, GATED=2, **sizes, **_launch(tuned.states, C, WV),
    )  # fmt: skip
    channel_outputs[WV // min(WV, tuned.outputs.values), N, Z](
        Q, P, before, w, o, T, H, N, **_without_keys(sizes), **_launch(tuned.outputs, C, WV)
    )
    return o, final, P, X, w


def channel_backward(
    do_BTHV: Tensor, dfinal: Tensor, q_BTHK: Tensor, k_BTHK: Tensor, e_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor,
    state_BHKV: Tensor | None, P: Tensor, X: Tensor, w: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, e, v, g and the first state. `do` and `dfinal` are contiguous."""
    (B, T, H, K), V = k_BTHK.shape, v_BTHV.shape[3]
    sizes, (Z, N, C) = widths(k_BTHK, v_BTHV), X.shape[:3]
    WK, WV = sizes["WK"], sizes["WV"]
    tuned = channel_tunings(k_BTHK.dtype, min(WK, WV))
    Q, E, L, Y, R = (k_BTHK.new_empty(Z, N, C, width) for width in (WK, WK, WK, WK, WV))
    before, after = (k_BTHK.new_empty(Z, N, WK, WV) for _ in range(2))
    dq, dk, de, dv = (x.new_empty(x.shape) for x in (q_BTHK, k_BTHK, e_BTHK, v_BTHV))
    dP, dA = (k_BTHK.new_empty(Z, N, C, C) for _ in range(2))
    dfirst, dg = dfinal.new_empty(B, H, K, V), g_BTHK.new_empty(B, T, H, K)
    strides = strides_of(q_BTHK, k_BTHK, e_BTHK, v_BTHV)
    G = _sums(g_BTHK, Z, N, C, WK)
    dq_state, de_state, dk_state, dG = (torch.empty_like(G) for _ in range(4))
    dend = G.new_empty(Z, N, WK)
    solve[N, Z](
        q_BTHK, k_BTHK, e_BTHK, v_BTHV, G, None, X, Q, E, L, Y, R, scale, T, H, N, *strides, SOLVE=False, JOIN=JOIN,
        **sizes, **_launch(tuned.prepare, C, WV),
    )  # fmt: skip
    of_scratch = _dense_strides(H, N * C, WK)
    states[WV // min(WV, tuned.again.values), Z](
        L, G, Y, R, state_BHKV, w, before, dfirst, N * C, H, N, *of_scratch, FIRST=state_BHKV is not None, AGAIN=True,
        GATED=2, **sizes, **_launch(tuned.again, C, WV),
    )  # fmt: skip
    channel_prepare_backward[N, Z](
        L, P, X, do_BTHV, Y, R, T, H, N, **_without_keys(sizes), **_launch(tuned.prepare_backward, C, WV)
    )
    states_backward[WV // min(WV, tuned.states_backward.values), Z](
        Q, E, None, G, do_BTHV, Y, R, dfinal, R, after, dfirst, 1.0, T, H, N, *of_scratch, *of_scratch, GATED=2,
        **sizes, **_launch(tuned.states_backward, C, WV),
    )  # fmt: skip
    channel_gradients[N, Z](
        k_BTHK, G, do_BTHV, before, after, w, R, dq_state, de_state, dk_state, dend, dP, dA, dv, scale, T, H, N,
        *strides[3:6], BK=min(WK, KEYS), **sizes, **_launch(tuned.gradients, C, WV),
    )  # fmt: skip
    pair_gradients[N, Z, C // BLOCK.value](
        q_BTHK, k_BTHK, e_BTHK, G, dP, dA, dq_state, de_state, dk_state, dend, dq, de, dk, dG, T, H, N, *strides[:9],
        K=K, WK=WK, C=C, PRECISION=sizes["PRECISION"],
    )  # fmt: skip
    sums[N, Z](dg, dG, T, H, N, K=K, WK=WK, C=C, BACK=True)
    return dq, dk, de, dv, dg, dfirst


def _sums(g_BTHK: Tensor, Z: int, N: int, C: int, WK: int) -> Tensor:
    _, T, H, K = g_BTHK.shape
    G = g_BTHK.new_empty(Z, N, C, WK)
    sums[N, Z](g_BTHK, G, T, H, N, K=K, WK=WK, C=C, BACK=False)
    return G


def _dense_strides(H: int, T: int, WK: int) -> tuple[int, int, int]:
    """Those of batch, time and head in a scratch of chunks."""
    return H * T * WK, WK, T * WK


def _without_keys(sizes: dict[str, Any]) -> dict[str, Any]:
    return {name: size for name, size in sizes.items() if name != "K"}


def _launch(tuning: Tuning, C: int, most: int) -> dict[str, Any]:
    return {"BV": min(most, tuning.values), "C": C, "num_warps": tuning.warps, "num_stages": tuning.stages}
