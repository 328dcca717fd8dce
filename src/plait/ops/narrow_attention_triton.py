"""The kernels of `plait.ops.narrow_attention`: one program per sequence and head loops over tiles of scores.

A fleet has thousands of sequence-head pairs, so none needs to be divided among programs: each program accumulates its
gradients of queries, keys and values alone, in a fixed order. The backward pass computes the scores of a tile with keys
as rows, the layout that the two products over queries need. Its tiles may have more keys than queries: the gradient of
a query is then added to memory less often, but more of the diagonal's scores are computed in vain. With so little
arithmetic per tile, addresses, masks and additions to scores cost as much: what is known beforehand (head width,
whether tiles divide the sequence) is a constant, only tiles on the diagonal are masked, and unused channels of a tile
are put to use, which is free, because products run over all channels anyway:

* a channel of ones behind the values sums the probabilities of a row;
* −lse behind the queries and −⟨do, o⟩ behind the output's gradients, each in three parts that together have fp32
  precision, are multiplied by ones behind keys and values: the products of a tile are then q·k − lse and dp − ⟨do, o⟩.
  The first tile of a row of tiles stores such rows, the others load them.

Base-2 exponentials throughout: `lse` is the logarithm to base 2 of a row's sum.

Letters: S sequences, T time, H heads, D head width (padded to a power of two, at least 16, as matrix units want it).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS = tl.constexpr(3)  # half-precision parts of an fp32 number
#: Queries (rows) and keys (columns) of a tile and its warps: the fastest of thirty on an H200 at D = 8 and 128 to 1,024
#: tokens. A backward tile has a multiple of its rows as columns.
FORWARD = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 1}
BACKWARD = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 1, "maxnreg": 128}


@triton.jit
def load_rows(x, t, T, stride_t, D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr):
    """The rows t of one head, of which x is the first."""
    d = tl.arange(0, WIDE)
    at = x + t[:, None] * stride_t + d[None, :]
    if EVEN and D == WIDE:
        return tl.load(at)
    elif EVEN:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)
    else:
        return tl.load(at, mask=(t < T)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def put_rows(x, rows, t, T, stride_t, D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr):
    d = tl.arange(0, WIDE)
    at = x + t[:, None] * stride_t + d[None, :]
    if EVEN and D == WIDE:
        tl.store(at, rows)
    elif EVEN:
        tl.store(at, rows, mask=(d < D)[None, :])
    else:
        tl.store(at, rows, mask=(t < T)[:, None] & (d < D)[None, :])


@triton.jit
def load_vector(x, t, T, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(x + t)
    else:
        return tl.load(x + t, mask=t < T, other=0.0)


@triton.jit
def with_ones(rows, D: tl.constexpr, WIDE: tl.constexpr):
    """Set the channels after the head's to one."""
    d = tl.arange(0, WIDE)
    return tl.where(((d >= D) & (d < D + PARTS))[None, :], 1.0, rows).to(rows.dtype)


@triton.jit
def with_parts(rows, x, D: tl.constexpr, WIDE: tl.constexpr):
    """Put x into the channels after the head's, so that a product with `with_ones` adds it."""
    d = tl.arange(0, WIDE)
    for part in tl.static_range(PARTS):
        rounded = x.to(rows.dtype)
        rows = tl.where((d == D + part)[None, :], rounded[:, None], rows)
        x -= rounded.to(tl.float32)
    return rows


@triton.jit
def forward_tile(
    query, k, v, row, column, most, total, out, T, k_t, v_t, scale, D: tl.constexpr, WIDE: tl.constexpr,
    EVEN: tl.constexpr, CAUSAL: tl.constexpr, DIAGONAL: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """One tile of the running softmax."""
    key = load_rows(k, column, T, k_t, D, WIDE, EVEN)
    value = load_rows(v, column, T, v_t, D, WIDE, EVEN)
    score = tl.dot(query, tl.trans(key))
    if DIAGONAL:  # a key beyond the end is beyond every row that counts
        score = tl.where(column[None, :] > row[:, None], -float("inf"), score)
    elif not CAUSAL and not EVEN:
        score = tl.where(column[None, :] >= T, -float("inf"), score)
    higher = tl.maximum(most, scale * tl.max(score, 1))
    p = tl.exp2(scale * score - higher[:, None])
    shrink = tl.exp2(most - higher)
    if FOLD:
        value = with_ones(value, D, WIDE)
    else:
        total = total * shrink + tl.sum(p, 1)
    out = tl.dot(p.to(value.dtype), value, out * shrink[:, None])
    return higher, total, out


@triton.jit
def forward(
    q, k, v, o, lse, q_s, q_t, k_s, k_t, v_s, v_t, T, scale, H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    h, s, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    q, k, v, o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, o + (s * T * H + h) * D
    row = block * ROWS + tl.arange(0, ROWS)
    query = load_rows(q, row, T, q_t, D, WIDE, EVEN)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, WIDE), tl.float32)
    diagonal = block * ROWS // COLUMNS * COLUMNS
    for start in range(0, diagonal if CAUSAL else T, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        most, total, out = forward_tile(
            query, k, v, row, column, most, total, out, T, k_t, v_t, scale, D, WIDE, EVEN, CAUSAL, False, FOLD
        )
    if CAUSAL:
        for step in tl.static_range((ROWS + COLUMNS - 1) // COLUMNS):
            column = diagonal + step * COLUMNS + tl.arange(0, COLUMNS)
            most, total, out = forward_tile(
                query, k, v, row, column, most, total, out, T, k_t, v_t, scale, D, WIDE, EVEN, CAUSAL, True, FOLD
            )
    if FOLD:
        total = tl.sum(tl.where((tl.arange(0, WIDE) == D)[None, :], out, 0.0), 1)
    put_rows(o, (out / total[:, None]).to(o.dtype.element_ty), row, T, H * D, D, WIDE, EVEN)
    at = lse + (s * H + h) * T + row
    tl.store(at, most + tl.log2(total), mask=row < T)


@triton.jit
def kept_rows(kept_q, kept_g, row, T, WIDE: tl.constexpr, EVEN: tl.constexpr):
    """The prepared queries and gradients of a tile to come; behind the last one, some that are not used."""
    if EVEN:
        row = tl.minimum(row, T - 1)
    return load_rows(kept_q, row, T, WIDE, WIDE, WIDE, EVEN), load_rows(kept_g, row, T, WIDE, WIDE, WIDE, EVEN)


@triton.jit
def backward_tile(
    q, o, grad_o, grad_q, lse, delta, added_q, kept_q, kept_g, query, grad, key, value, row, column, sum_k, sum_v,
    T, q_t, g_t, scale, natural, H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
    CAUSAL: tl.constexpr, DIAGONAL: tl.constexpr, FIRST: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """One tile's contribution to all three gradients. Rows beyond the end have no gradient and add nothing. The first
    tile of a row computes ⟨do, o⟩; the one on the diagonal is the last and writes the gradient of the query."""
    next_query, next_grad = query, grad
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
    elif DIAGONAL:  # other tiles were given theirs
        query = load_rows(kept_q, row, T, WIDE, WIDE, WIDE, EVEN)
        grad = load_rows(kept_g, row, T, WIDE, WIDE, WIDE, EVEN)
    score = scale * tl.dot(key, tl.trans(query))  # keys × queries
    change = tl.dot(value, tl.trans(grad))
    if FOLD and not FIRST and not DIAGONAL:  # the next tile's: what follows takes as long as these loads
        ROWS: tl.constexpr = row.shape[0]
        next_query, next_grad = kept_rows(kept_q, kept_g, row + ROWS, T, WIDE, EVEN)
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
        if not FIRST:  # accumulated bypassing the cache, so read in the same way
            d = tl.arange(0, WIDE)
            at = added_q + row[:, None] * D + d[None, :]
            share += tl.load(at, mask=(row < T)[:, None] & (d < D)[None, :], other=0.0, cache_modifier=".cg")
        put_rows(grad_q, share.to(grad_q.dtype.element_ty), row, T, H * D, D, WIDE, EVEN)
    elif FIRST:
        put_rows(added_q, share, row, T, D, D, WIDE, EVEN)
    else:
        # One addition to each number between two barriers, for a fixed order.
        d = tl.arange(0, WIDE)
        at = added_q + row[:, None] * D + d[None, :]
        tl.atomic_add(at, share, mask=(row < T)[:, None] & (d < D)[None, :], sem="relaxed", scope="cta")
    return sum_k, sum_v, next_query, next_grad


@triton.jit
def backward_keys(
    q, k, v, o, grad_o, grad_q, grad_k, grad_v, lse, delta, added_q, kept_q, kept_g, start, T, q_t, k_t, v_t, g_t,
    scale, natural, H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, CAUSAL: tl.constexpr, FIRST: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """The tiles of keys from `start` on, with all queries that see them."""
    column = start + tl.arange(0, COLUMNS)
    key = load_rows(k, column, T, k_t, D, WIDE, EVEN)
    value = load_rows(v, column, T, v_t, D, WIDE, EVEN)
    if FOLD:
        key, value = with_ones(key, D, WIDE), with_ones(value, D, WIDE)
    sum_k = tl.zeros((COLUMNS, WIDE), tl.float32)
    sum_v = tl.zeros((COLUMNS, WIDE), tl.float32)
    begin = start + COLUMNS if CAUSAL else 0
    query, grad = tl.zeros((ROWS, WIDE), key.dtype), tl.zeros((ROWS, WIDE), key.dtype)
    if FOLD and not FIRST:
        query, grad = kept_rows(kept_q, kept_g, begin + tl.arange(0, ROWS), T, WIDE, EVEN)
    for first in range(begin, T, ROWS):
        row = first + tl.arange(0, ROWS)
        sum_k, sum_v, query, grad = backward_tile(
            q, o, grad_o, grad_q, lse, delta, added_q, kept_q, kept_g, query, grad, key, value, row, column, sum_k,
            sum_v, T, q_t, g_t, scale, natural, H, D, WIDE, EVEN, CAUSAL, False, FIRST, FOLD,
        )  # fmt: skip
    if CAUSAL:
        for step in tl.static_range(COLUMNS // ROWS):
            row = start + step * ROWS + tl.arange(0, ROWS)
            sum_k, sum_v, _, _ = backward_tile(
                q, o, grad_o, grad_q, lse, delta, added_q, kept_q, kept_g, query, grad, key, value, row, column, sum_k,
                sum_v, T, q_t, g_t, scale, natural, H, D, WIDE, EVEN, CAUSAL, True, FIRST, FOLD,
            )  # fmt: skip
    put_rows(grad_k, (natural * sum_k).to(grad_k.dtype.element_ty), column, T, H * D, D, WIDE, EVEN)
    put_rows(grad_v, sum_v.to(grad_v.dtype.element_ty), column, T, H * D, D, WIDE, EVEN)


@triton.jit
def backward(
    q, k, v, o, lse, grad_o, delta, added_q, kept_q, kept_g, grad_q, grad_k, grad_v,
    q_s, q_t, k_s, k_t, v_s, v_t, g_s, g_t, T, scale, natural,
    H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, CAUSAL: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    h, s = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q, k, v, grad_o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, grad_o + s * g_s + h * D
    here, pair = (s * T * H + h) * D, (s * H + h) * T
    o, grad_q, grad_k, grad_v = o + here, grad_q + here, grad_k + here, grad_v + here
    lse, delta, added_q = lse + pair, delta + pair, added_q + pair * D
    kept_q, kept_g = kept_q + pair * WIDE, kept_g + pair * WIDE
    backward_keys(
        q, k, v, o, grad_o, grad_q, grad_k, grad_v, lse, delta, added_q, kept_q, kept_g, 0, T, q_t, k_t, v_t, g_t,
        scale, natural, H, D, WIDE, ROWS, COLUMNS, EVEN, CAUSAL, True, FOLD,
    )  # fmt: skip
    for start in range(COLUMNS, T, COLUMNS):
        tl.debug_barrier()  # earlier tiles have written what these read
        backward_keys(
            q, k, v, o, grad_o, grad_q, grad_k, grad_v, lse, delta, added_q, kept_q, kept_g, start, T, q_t, k_t, v_t,
            g_t, scale, natural, H, D, WIDE, ROWS, COLUMNS, EVEN, CAUSAL, False, FOLD,
        )  # fmt: skip


def narrow_forward(q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """(o, lse as (S, H, T) in fp32)."""
    S, T, H, _ = q_STHD.shape
    q, k, v = (dense_rows(x) for x in (q_STHD, k_STHD, v_STHD))
    o = q.new_empty(q.shape)
    lse = q.new_empty(S, H, T, dtype=torch.float32)
    sizes = _sizes(FORWARD, q, causal)
    strides = [n for x in (q, k, v) for n in x.stride()[:2]]
    forward[H, S, triton.cdiv(T, sizes["ROWS"])](q, k, v, o, lse, *strides, T, scale * math.log2(math.e), **sizes)
    return o, lse


def narrow_backward(
    grad_o: Tensor, q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, o: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    S, T, H, D = q_STHD.shape
    q, k, v, g = (dense_rows(x) for x in (q_STHD, k_STHD, v_STHD, grad_o))
    sizes = _sizes(BACKWARD, q, causal)
    added_q = q.new_empty(S, H, T, D, dtype=torch.float32)  # sums over tiles in fp32
    kept_q, kept_g = (q.new_empty(S, H, T, sizes["WIDE"]) if sizes["FOLD"] else q for _ in range(2))
    grad_q, grad_k, grad_v = (q.new_empty(q.shape) for _ in range(3))
    strides = [n for x in (q, k, v, g) for n in x.stride()[:2]]
    backward[H, S](
        q, k, v, o.contiguous(), lse.contiguous(), g, torch.empty_like(lse), added_q, kept_q, kept_g, grad_q, grad_k,
        grad_v, *strides, T, scale * math.log2(math.e), scale, **sizes,
    )  # fmt: skip
    if not causal:  # otherwise the last tile of a row writes it
        grad_q.copy_(added_q.transpose(1, 2))
    return grad_q, grad_k, grad_v


def dense_rows(x_STHD: Tensor) -> Tensor:
    """With the heads of a token side by side."""
    return x_STHD if x_STHD.stride()[2:] == (x_STHD.shape[3], 1) else x_STHD.contiguous()


def _sizes(tile: dict[str, int], q_STHD: Tensor, causal: bool) -> dict[str, Any]:
    _, T, H, D = q_STHD.shape
    wide = max(16, triton.next_power_of_2(D))
    even = T % tile["ROWS"] == T % tile["COLUMNS"] == 0
    return {**tile, "H": H, "D": D, "WIDE": wide, "EVEN": even, "CAUSAL": causal, "FOLD": D + PARTS.value <= wide}
