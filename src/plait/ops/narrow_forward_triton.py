"""The forward kernel of `plait.ops.narrow_attention_triton`, and how both passes read, write and extend rows of a head.

Letters: as in `plait.ops.narrow_attention_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl

PARTS = tl.constexpr(3)  # of a number of fp32 in half precision


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
    """Ones in the channels behind the head's."""
    d = tl.arange(0, WIDE)
    return tl.where(((d >= D) & (d < D + PARTS))[None, :], 1.0, rows).to(rows.dtype)


@triton.jit
def with_parts(rows, x, D: tl.constexpr, WIDE: tl.constexpr):
    """x in the channels behind the head's, so that a product with `with_ones` adds it."""
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
    ROWS: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    h, s, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    q, k, v, o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, o + (s * T * H + h) * D
    row = block * ROWS + tl.arange(0, ROWS)
    query = load_rows(q, row, T, q_t, D, WIDE, EVEN)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(0, block * ROWS if CAUSAL else T, ROWS):
        column = start + tl.arange(0, ROWS)
        most, total, out = forward_tile(
            query, k, v, row, column, most, total, out, T, k_t, v_t, scale, D, WIDE, EVEN, CAUSAL, False, FOLD
        )
    if CAUSAL:
        most, total, out = forward_tile(
            query, k, v, row, row, most, total, out, T, k_t, v_t, scale, D, WIDE, EVEN, CAUSAL, True, FOLD
        )
    if FOLD:
        total = tl.sum(tl.where((tl.arange(0, WIDE) == D)[None, :], out, 0.0), 1)
    put_rows(o, (out / total[:, None]).to(o.dtype.element_ty), row, T, H * D, D, WIDE, EVEN)
    at = lse + (s * H + h) * T + row
    tl.store(at, most + tl.log2(total), mask=row < T)
