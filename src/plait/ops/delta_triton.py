"""The delta rule on a GPU, forward and backward, chunk by chunk.

`plait.ops.delta` defines what is computed and makes it an operator. The design is ours:

* A chunk's tokens write w, the solution of (I + A) w = β v − β d k S =: r, with A_ij = β_i D_ij (k_i·k_j) for j < i, S
  the state before the chunk and d the decay since then. `prepare` inverts I + A once, X = (I + A)⁻¹, for all chunks in
  parallel; `states` goes from chunk to chunk with w = X β v − (X β d k) S; `outputs` again processes all chunks in
  parallel.
* The gradient of r is dr = Xᵀ dw, and that of A is −dr wᵀ: neither X β v nor X β d k is needed again, and the inverse
  is not differentiated. With dw = Pᵀ do + e k dS (P the scores, e the decay up to the chunk's end, dS the gradient of
  the state there) the backward recurrence has the same form as the forward one, dr = (P X)ᵀ do + (Xᵀ e k) dS.
* Only X and w are saved for the backward pass; the states at the chunk boundaries are recomputed from w, with one
  product per chunk. Nothing is summed across programs, so results are deterministic.

States and sums are in fp32; inputs of matrix products have the dtype of q, k and v.

Letters: B batch, T time, H heads, K key, V value; Z = batch · heads, N chunks of C tokens; WK and WV the powers of two
that hold K and V, BV value channels per program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from plait.ops.delta import padded_width
from plait.ops.delta_backward_triton import gradients, prepare_backward, states_backward
from plait.ops.delta_forward_triton import outputs, prepare, states

JOIN = "tf32x3"  # the products within the inverse
KEYS = 64  # key channels that `gradients` processes at a time


class Tuning(NamedTuple):
    """A kernel's value channels per program, its warps, and the tiles in flight."""

    values: int
    warps: int
    stages: int


class Tunings(NamedTuple):
    chunk: int
    prepare: Tuning
    states: Tuning
    outputs: Tuning
    again: Tuning
    prepare_backward: Tuning
    states_backward: Tuning
    gradients: Tuning


def tunings(dtype: torch.dtype) -> Tunings:
    """Measured on an H200 in bf16 at K = V = 128; for fp32, chosen to fit into shared memory."""
    if dtype == torch.float32:
        narrow = Tuning(16, 4, 1)
        return Tunings(
            32, Tuning(32, 4, 1), narrow, Tuning(32, 4, 1), narrow, Tuning(32, 4, 1), narrow, Tuning(16, 4, 1)
        )
    return Tunings(
        64,
        prepare=Tuning(64, 4, 1),
        states=Tuning(32, 4, 2),
        outputs=Tuning(64, 4, 1),
        again=Tuning(32, 4, 2),
        prepare_backward=Tuning(64, 4, 1),
        states_backward=Tuning(32, 4, 2),
        gradients=Tuning(32, 4, 1),
    )


def delta_forward(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, beta_BTH: Tensor, g_BTH: Tensor | None, state_BHKV: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(o_BTHV, final state_BHKV, X_ZNCC, w_ZNCV)."""
    (B, T, H, K), V = k_BTHK.shape, v_BTHV.shape[3]
    sizes = widths(k_BTHK, v_BTHV) | {"GATED": int(g_BTH is not None)}
    tuned = _tunings(sizes, k_BTHK)
    C, Z, WK, WV = tuned.chunk, B * H, sizes["WK"], sizes["WV"]
    N = triton.cdiv(T, C)
    X, W, w = (k_BTHK.new_empty(Z, N, C, width) for width in (C, WK, WV))
    before = k_BTHK.new_empty(Z, N, WK, WV)
    o, final = v_BTHV.new_empty(B, T, H, V), v_BTHV.new_empty(B, H, K, V, dtype=torch.float32)
    of_q, of_k, of_v = (x.stride()[:3] for x in (q_BTHK, k_BTHK, v_BTHV))
    exact = {"EXACT": k_BTHK.dtype == torch.float32}
    prepare[N, Z](
        k_BTHK,
        v_BTHV,
        beta_BTH,
        g_BTH,
        X,
        W,
        w,
        T,
        H,
        *of_k,
        *of_v,
        JOIN=JOIN,
        **sizes,
        **exact,
        **_launch(tuned.prepare, tuned),
    )
    states[WV // min(WV, tuned.states.values), Z](
        k_BTHK, g_BTH, W, w, state_BHKV, w, before, final, T, H, N, *of_k, FIRST=state_BHKV is not None, AGAIN=False,
        **sizes, **_launch(tuned.states, tuned),
    )  # fmt: skip
    outputs[WV // min(WV, tuned.outputs.values), N, Z](
        q_BTHK, k_BTHK, g_BTH, before, w, o, scale, T, H, N, *of_q, *of_k, **sizes, **exact,
        **_launch(tuned.outputs, tuned),
    )  # fmt: skip
    return o, final, X, w


def delta_backward(
    do_BTHV: Tensor, dfinal: Tensor, q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, beta_BTH: Tensor,
    g_BTH: Tensor | None, state_BHKV: Tensor | None, X: Tensor, w: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, β, g (without gates: no numbers) and the first state. `do` and `dfinal` are contiguous."""
    (B, T, H, K), V = k_BTHK.shape, v_BTHV.shape[3]
    sizes = widths(k_BTHK, v_BTHV) | {"GATED": int(g_BTH is not None)}
    tuned = _tunings(sizes, k_BTHK)
    (Z, N, C), WK, WV = X.shape[:3], sizes["WK"], sizes["WV"]
    Y, R = k_BTHK.new_empty(Z, N, C, WK), k_BTHK.new_empty(Z, N, C, WV)
    before, after = (k_BTHK.new_empty(Z, N, WK, WV) for _ in range(2))
    dq, dk, dv = (x.new_empty(x.shape) for x in (q_BTHK, k_BTHK, v_BTHV))
    dbeta = beta_BTH.new_empty(B, T, H)
    dg = beta_BTH.new_empty((0,) if g_BTH is None else (B, T, H))
    dfirst = dfinal.new_empty(B, H, K, V)
    of_q, of_k, of_v = (x.stride()[:3] for x in (q_BTHK, k_BTHK, v_BTHV))
    exact = {"EXACT": k_BTHK.dtype == torch.float32}
    states[WV // min(WV, tuned.again.values), Z](
        k_BTHK, g_BTH, Y, R, state_BHKV, w, before, dfirst, T, H, N, *of_k, FIRST=state_BHKV is not None, AGAIN=True,
        **sizes, **_launch(tuned.again, tuned),
    )  # fmt: skip
    prepare_backward[N, Z](
        q_BTHK, k_BTHK, g_BTH, do_BTHV, X, Y, R, scale, T, H, *of_q, *of_k, **sizes, **exact,
        **_launch(tuned.prepare_backward, tuned),
    )  # fmt: skip
    states_backward[WV // min(WV, tuned.states_backward.values), Z](
        q_BTHK, k_BTHK, beta_BTH, g_BTH, do_BTHV, Y, R, dfinal, R, after, dfirst, scale, T, H, N, *of_q, *of_k,
        **sizes, **_launch(tuned.states_backward, tuned),
    )  # fmt: skip
    gradients[N, Z](
        q_BTHK, k_BTHK, v_BTHV, beta_BTH, g_BTH, do_BTHV, before, after, w, R, dq, dk, dv, dbeta, dg, scale, T, H, N,
        *of_q, *of_k, *of_v, BK=min(WK, KEYS), **sizes, **exact, **_launch(tuned.gradients, tuned),
    )  # fmt: skip
    return dq, dk, dv, dbeta, dg, dfirst


def _tunings(sizes: dict[str, Any], k_BTHK: Tensor) -> Tunings:
    tuned = tunings(k_BTHK.dtype)
    most = sizes["WV"]
    return Tunings(tuned.chunk, *(kernel._replace(values=min(kernel.values, most)) for kernel in tuned[1:]))


def widths(k_BTHK: Tensor, v_BTHV: Tensor) -> dict[str, Any]:
    K, V = k_BTHK.shape[3], v_BTHV.shape[3]
    # fp32 inputs keep fp32 accuracy with three tf32 products. The inverse is always in fp32.
    return {"K": K, "WK": padded_width(K), "V": V, "WV": padded_width(V), "PRECISION": "tf32x3"}


def _launch(tuning: Tuning, tuned: Tunings) -> dict[str, Any]:
    return {"BV": tuning.values, "C": tuned.chunk, "num_warps": tuning.warps, "num_stages": tuning.stages}
