"""The backward kernel of `plait.ops.narrow_attention_triton`.

Letters: as in `plait.ops.narrow_attention_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plait.ops.narrow_forward_triton import load_rows, load_vector, put_rows, with_ones, with_parts


@triton.jit
def backward_tile(
    q, o, grad_o, grad_q, lse, delta, added_q, kept_q, kept_g, key, value, row, column, sum_k, sum_v, T, q_t, g_t,
    scale, natural, H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
    DIAGONAL: tl.constexpr, FIRST: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """One tile's share of all three gradients. Rows beyond the end have no gradient and so add nothing. The first tile
    of a row finds ⟨do, o⟩; that on the diagonal is the last and writes the gradient of the query."""
    if FIRST or not FOLD:
        query = load_rows(q, row, T, q_t, D, WIDE, EVEN)
        grad = load_rows(grad_o, row, T, g_t, D, WIDE, EVEN)
        row_lse = load_vector(lse, row, T, EVEN)
        if FIRST:
            out = load_rows(o, row, T, H * D, D, WIDE, EVEN)
            row_delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
            if FOLD:
                query, grad = with_parts(query, -row_lse / scale, D, WIDE), with_parts(grad, -row_delta, D, WIDE)
                if not DIAGONAL:
                    put_rows(kept_q, query, row, T, WIDE, WIDE, WIDE, EVEN)
                    put_rows(kept_g, grad, row, T, WIDE, WIDE, WIDE, EVEN)
            else:
                tl.store(delta + row, row_delta, mask=row < T)
        else:
            row_delta = load_vector(delta, row, T, EVEN)
    else:
        query = load_rows(kept_q, row, T, WIDE, WIDE, WIDE, EVEN)
        grad = load_rows(kept_g, row, T, WIDE, WIDE, WIDE, EVEN)
    score = scale * tl.dot(key, tl.trans(query))  # keys × queries
    change = tl.dot(value, tl.trans(grad))
    if not FOLD:
        score -= row_lse[None, :]
        change -= row_delta[None, :]
    p = tl.exp2(score)
    if DIAGONAL:
        p = tl.where(column[:, None] > row[None, :], 0.0, p)
    elif not CAUSAL and not EVEN:
        p = tl.where(column[:, None] >= T, 0.0, p)
    sum_v = tl.dot(p.to(grad.dtype), grad, sum_v)
    grad_score = (p * change).to(query.dtype)
    sum_k = tl.dot(grad_score, query, sum_k)
    share = natural * tl.dot(tl.trans(grad_score), key)
    if DIAGONAL:
        if not FIRST:  # added past the cache, so read past it
            d = tl.arange(0, WIDE)
            at = added_q + row[:, None] * D + d[None, :]
            share += tl.load(at, mask=(row < T)[:, None] & (d < D)[None, :], other=0.0, cache_modifier=".cg")
        put_rows(grad_q, share.to(grad_q.dtype.element_ty), row, T, H * D, D, WIDE, EVEN)
    elif FIRST:
        put_rows(added_q, share, row, T, D, D, WIDE, EVEN)
    else:
        # One addition to each number between two barriers: always in the same order.
        d = tl.arange(0, WIDE)
        at = added_q + row[:, None] * D + d[None, :]
        tl.atomic_add(at, share, mask=(row < T)[:, None] & (d < D)[None, :], sem="relaxed", scope="cta")
    return sum_k, sum_v


@triton.jit
def backward_keys(
    q, k, v, o, grad_o, grad_q, grad_k, grad_v, lse, delta, added_q, kept_q, kept_g, start, T, q_t, k_t, v_t, g_t,
    scale, natural, H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr,
    CAUSAL: tl.constexpr, FIRST: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """The tiles of the keys from `start` on, against all queries that see them."""
    column = start + tl.arange(0, ROWS)
    key = load_rows(k, column, T, k_t, D, WIDE, EVEN)
    value = load_rows(v, column, T, v_t, D, WIDE, EVEN)
    if FOLD:
        key, value = with_ones(key, D, WIDE), with_ones(value, D, WIDE)
    sum_k = tl.zeros((ROWS, WIDE), tl.float32)
    sum_v = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(start + ROWS if CAUSAL else 0, T, ROWS):
        row = first + tl.arange(0, ROWS)
        sum_k, sum_v = backward_tile(
            q, o, grad_o, grad_q, lse, delta, added_q, kept_q, kept_g, key, value, row, column, sum_k, sum_v, T, q_t,
            g_t, scale, natural, H, D, WIDE, EVEN, CAUSAL, False, FIRST, FOLD,
        )  # fmt: skip
    if CAUSAL:
        sum_k, sum_v = backward_tile(
            q, o, grad_o, grad_q, lse, delta, added_q, kept_q, kept_g, key, value, column, column, sum_k, sum_v, T, q_t,
            g_t, scale, natural, H, D, WIDE, EVEN, CAUSAL, True, FIRST, FOLD,
        )  # fmt: skip
    put_rows(grad_k, (natural * sum_k).to(grad_k.dtype.element_ty), column, T, H * D, D, WIDE, EVEN)
    put_rows(grad_v, sum_v.to(grad_v.dtype.element_ty), column, T, H * D, D, WIDE, EVEN)


@triton.jit
def backward(
    q, k, v, o, lse, grad_o, delta, added_q, kept_q, kept_g, grad_q, grad_k, grad_v,
    q_s, q_t, k_s, k_t, v_s, v_t, g_s, g_t, T, scale, natural,
    H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
    FOLD: tl.constexpr,
):  # fmt: skip
    h, s = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q, k, v, grad_o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, grad_o + s * g_s + h * D
    here, pair = (s * T * H + h) * D, (s * H + h) * T
    o, grad_q, grad_k, grad_v = o + here, grad_q + here, grad_k + here, grad_v + here
    lse, delta, added_q = lse + pair, delta + pair, added_q + pair * D
    kept_q, kept_g = kept_q + pair * WIDE, kept_g + pair * WIDE
    backward_keys(
        q, k, v, o, grad_o, grad_q, grad_k, grad_v, lse, delta, added_q, kept_q, kept_g, 0, T, q_t, k_t, v_t, g_t,
        scale, natural, H, D, WIDE, ROWS, EVEN, CAUSAL, True, FOLD,
    )  # fmt: skip
    for start in range(ROWS, T, ROWS):
        tl.debug_barrier()  # the tiles before have written what these read
        backward_keys(
            q, k, v, o, grad_o, grad_q, grad_k, grad_v, lse, delta, added_q, kept_q, kept_g, start, T, q_t, k_t, v_t,
            g_t, scale, natural, H, D, WIDE, ROWS, EVEN, CAUSAL, False, FOLD,
        )  # fmt: skip
