"""Forgetting attention on a GPU, forward and backward, in tiles that never leave the chip.

`plait.ops.attention` says what is computed, `plait.ops.forgetting_attention` makes it an operator. The design is ours:

* Everything is in base 2. The running sum of the gates is taken in float64 and kept as c = whole + part, a whole
  number and a rest of at most ½: a difference of two such sums is exact in fp32 however far they have run. In half
  precision the keys before the diagonal make do with c in one fp32 number.
* A program of `_forward` owns a block of query rows and meets the keys at the diagonal first. That gives each row an
  offset m. With the longest key and the lowest c of every tile of earlier keys, no score of tile t can exceed, in a
  row's own measure,

      bound_t = scale · max‖q‖ · max‖k‖_t + max c_row − min c_t − min m.

  Where bound_t is so low that all N keys at it hold no more than exp(−margin) of a row, the tile is not visited (Lin
  et al. 2025, Adaptive Computation Pruning, arXiv 2504.06949, bounds by ‖q‖ and ‖k‖ of the whole head; the diagonal's
  m makes it tighter, and gates above 1 are no exception). Where it cannot overflow, the earlier keys need no running
  maximum, no rescaling, and one offset for the whole block: a row's own is a factor that waits until the end.
* The backward pass is two kernels, one a block of queries (dq) and one a block of keys (dk, dv), without atomics: the
  result is the same every time. The gate's gradient is Σ_j ds_ij − Σ_m ds_mi: both sums fall out of the two kernels.
  The row sums vanish but for rounding; kept, they cancel the rounding of the column sums.

Letters: B batch, M queries, N keys (N >= M: query i sits at position N−M+i), H query heads, G key heads, R = H/G,
D head width, WIDE the power of two that holds it, Z = batch · heads; tiles of TILE keys or queries in the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = tl.constexpr(64)  # positions a table's entry stands for
TABLE = tl.constexpr(256)  # entries of a table read at once
CHUNK = tl.constexpr(1024)  # steps of a running sum taken at once
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _cumulate(log_f, pad, c, whole, part, low, N, H, tiles, stride_b, stride_n, stride_h, PAD: tl.constexpr):
    """c = Σ log2 f as whole + part, and the lowest c of every tile; padding has an open gate."""
    z = tl.program_id(0).to(tl.int64)
    b = z // H
    begin = tl.load(pad + b).to(tl.int32) if PAD else 0
    carry = tl.zeros([1], tl.float64)
    for at in range(0, N, CHUNK):
        n = at + tl.arange(0, CHUNK)
        gate = log_f + b * stride_b + n.to(tl.int64) * stride_n + (z % H) * stride_h
        x = tl.load(gate, mask=(n < N) & (n >= begin), other=0.0).to(tl.float64) * LOG2E
        total = carry + tl.cumsum(x, 0)
        carry += tl.sum(x, 0)
        nearest = tl.floor(total + 0.5)
        rounded = total.to(tl.float32)
        tl.store(c + z * N + n, rounded, mask=n < N)
        tl.store(whole + z * N + n, nearest.to(tl.float32), mask=n < N)
        tl.store(part + z * N + n, (total - nearest).to(tl.float32), mask=n < N)
        lowest = tl.min(tl.reshape(rounded, (CHUNK // TILE, TILE)), 1)  # past the end c stays what it was
        t = at // TILE + tl.arange(0, CHUNK // TILE)
        tl.store(low + z * tiles + t, lowest, mask=t < tiles)


@triton.jit
def _uncumulate(rows, columns, pad, grad, M, N, H, PAD: tl.constexpr):
    """dlog f_t = Σ_{s ≥ t} (rows_s − columns_s); only the last M positions have rows."""
    z = tl.program_id(0).to(tl.int64)
    b = z // H
    begin = tl.load(pad + b).to(tl.int32) if PAD else 0
    carry = tl.zeros([1], tl.float64)
    chunks = tl.cdiv(N, CHUNK)
    for back in range(chunks):
        n = (chunks - 1 - back) * CHUNK + tl.arange(0, CHUNK)
        m = n - (N - M)
        dc = tl.load(rows + z * M + m, mask=(m >= 0) & (n < N), other=0.0)
        dc = (dc - tl.load(columns + z * N + n, mask=n < N, other=0.0)).to(tl.float64)
        total = carry + tl.cumsum(dc, 0, reverse=True)
        carry += tl.sum(dc, 0)
        at = grad + (b * N + n) * H + z % H
        tl.store(at, tl.where(n >= begin, total, 0.0).to(tl.float32), mask=n < N)


@triton.jit
def _key_lengths(k, longest, N, G, tiles, stride_b, stride_n, stride_h, D: tl.constexpr, WIDE: tl.constexpr):
    """max ‖k‖ of every tile, four tiles a program."""
    blocks = tl.cdiv(N, 4 * TILE)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    base = k + (z // G) * stride_b + (z % G) * stride_h
    x = _load(base, block * 4 * TILE, tl.arange(0, 4 * TILE), stride_n, N, False, D, WIDE).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, 1))
    t = block * 4 + tl.arange(0, 4)
    tl.store(longest + z * tiles + t, tl.max(tl.reshape(length, (4, TILE)), 1), mask=t < tiles)


@triton.jit
def _load(base, start, r, stride, end, WITHIN: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):
    """Rows start + r of a matrix of D columns; rows past the end and columns past D are 0."""
    d = tl.arange(0, WIDE)
    at = base + tl.cast(start, tl.int64) * stride + (r[:, None] * stride + d[None, :])
    if WITHIN and D == WIDE:
        return tl.load(at)
    elif WITHIN:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)
    else:
        return tl.load(at, mask=(start + r < end)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _vector(base, r, end, other, WITHIN: tl.constexpr):
    if WITHIN:
        return tl.load(base + r)
    else:
        return tl.load(base + r, mask=r < end, other=other)


@triton.jit
def _rise(c, whole, part, n, c_0, whole_0, part_0, EXACT: tl.constexpr):
    """c_0 − c_n. Half precision rounds p more than fp32 rounds c (while c > −2^14), and two numbers cost twice one."""
    if EXACT:
        return (whole_0 - tl.load(whole + n)) + (part_0 - tl.load(part + n))
    else:
        return c_0 - tl.load(c + n)


@triton.jit
def _forward(
    q, k, v, c, whole, part, low, longest, pad, o, row, tail, begins, bounds, M, N, H, R, tiles, row_tiles,
    q_b, q_m, q_h, k_b, k_n, k_h, v_b, v_n, v_h, scale, forgotten, LIMIT: tl.constexpr, SUMMIT: tl.constexpr,
    EXACT: tl.constexpr, PAD: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(M, ROWS)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = z // H, z % H
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * ROWS  # the longest rows first
    first, G = N - M + m0, H // R
    r, j = tl.arange(0, ROWS), tl.arange(0, KEYS)
    in_rows = m0 + r < M
    c, whole, part = c + z * N, whole + z * N, part + z * N
    k, v = k + b * k_b + (h // R) * k_h, v + b * v_b + (h // R) * v_h
    unpadded = tl.load(pad + b).to(tl.int32) if PAD else 0

    queries = _load(q + b * q_b + h * q_h, m0, r, q_m, M, False, D, WIDE)
    whole_r = tl.load(whole + first + r, mask=in_rows, other=0.0)
    part_r = tl.load(part + first + r, mask=in_rows, other=0.0)
    acc = tl.zeros([ROWS, WIDE], tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    diagonal = first // KEYS * KEYS
    for n in tl.range(diagonal, tl.minimum(first + ROWS, N), KEYS, num_stages=1):
        keys = _load(k, n, j, k_n, N, False, D, WIDE)
        whole_j = tl.load(whole + n + j, mask=n + j < N, other=0.0)
        part_j = tl.load(part + n + j, mask=n + j < N, other=0.0)
        s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        s += (whole_r[:, None] - whole_j[None, :]) + (part_r[:, None] - part_j[None, :])
        seen = (n + j)[None, :] <= (first + r)[:, None]
        if PAD:
            seen = seen & (n + j >= unpadded)[None, :]
        s = tl.where(seen, s, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        offset = tl.where(new_top == -float("inf"), 0.0, new_top)  # rows that see nothing yet
        shrink = tl.exp2(top - offset)
        p = tl.exp2(s - offset[:, None])
        mass = mass * shrink + tl.sum(p, 1)
        values = _load(v, n, j, v_n, N, False, D, WIDE)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    top = tl.where(top == -float("inf"), 0.0, top)  # a row that does not see itself is padding: nothing else will come

    # What can the earlier tiles hold?
    length = tl.max(tl.sqrt(tl.sum(queries.to(tl.float32) * queries.to(tl.float32), 1)), 0) * tl.abs(scale)
    highest = tl.max(tl.where(in_rows, whole_r + part_r, -float("inf")), 0)
    highest -= tl.min(tl.where(in_rows, top, float("inf")), 0)
    earlier = tl.cdiv(diagonal, TILE)
    begin, bound = earlier, -float("inf")
    for at in range(0, earlier, TABLE):
        t = at + tl.arange(0, TABLE)
        low_t = tl.load(low + z * tiles + t, mask=t < earlier, other=float("inf"))
        longest_t = tl.load(longest + (b * G + h // R) * tiles + t, mask=t < earlier, other=0.0)
        bound_t = length * longest_t + highest - low_t
        bound = tl.maximum(bound, tl.max(bound_t, 0))
        begin = tl.minimum(begin, tl.min(tl.where(bound_t > forgotten, t, earlier), 0))
    begin = begin * TILE
    if PAD:
        begin = tl.maximum(begin, unpadded)
    begin = tl.minimum(begin // KEYS * KEYS, diagonal)
    # c_i − c_j = (c_i − c_first) + (c_first − c_j): both fall, so neither rounding matters.
    c_0, whole_0, part_0 = tl.load(c + first), tl.load(whole + first), tl.load(part + first)
    fall_r = (whole_r - whole_0) + (part_r - part_0)
    # One offset for the whole block, if the rows so far and every score to come stay within LIMIT of the lowest row:
    # the lowest row's, raised so far that nothing exceeds 2^SUMMIT.
    level_r = top - fall_r
    level = tl.min(tl.where(in_rows, level_r, float("inf")), 0)
    bound = tl.maximum(bound, tl.max(tl.where(in_rows, level_r, -float("inf")), 0) - level)
    t = m0 // TILE + tl.arange(0, ROWS // TILE)
    tl.store(begins + z * row_tiles + t, tl.zeros([ROWS // TILE], tl.int32) + begin, mask=t < row_tiles)
    tl.store(bounds + z * row_tiles + t, tl.zeros([ROWS // TILE], tl.float32) + bound, mask=t < row_tiles)
    if bound < LIMIT:
        level += tl.maximum(bound - SUMMIT, 0.0)
        top = fall_r + level
        shrink = tl.where(in_rows, tl.exp2(level_r - level), 0.0)
        acc *= shrink[:, None]
        mass *= shrink
        for n in range(begin, diagonal, KEYS):
            keys = _load(k, n, j, k_n, N, True, D, WIDE)
            rise_j = _rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT) - level
            if PAD:
                rise_j = tl.where(n + j >= unpadded, rise_j, -float("inf"))
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            p = tl.exp2(s * scale + rise_j[None, :])
            mass += tl.sum(p, 1)
            values = _load(v, n, j, v_n, N, True, D, WIDE)
            acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)
    else:
        for n in tl.range(begin, diagonal, KEYS, num_stages=1):
            keys = _load(k, n, j, k_n, N, True, D, WIDE)
            rise_j = _rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT)
            if PAD:
                rise_j = tl.where(n + j >= unpadded, rise_j, -float("inf"))
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            s = (s * scale + rise_j[None, :]) + fall_r[:, None]
            new_top = tl.maximum(top, tl.max(s, 1))
            shrink = tl.exp2(top - new_top)
            p = tl.exp2(s - new_top[:, None])
            mass = mass * shrink + tl.sum(p, 1)
            values = _load(v, n, j, v_n, N, True, D, WIDE)
            acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
            top = new_top

    mass = tl.where(mass == 0.0, 1.0, mass)
    lse = top + tl.log2(mass)
    tl.store(tail + z * M + m0 + r, part_r - lse, mask=in_rows)
    tl.store(row + z * M + m0 + r, whole_r + (part_r - lse), mask=in_rows)
    d = tl.arange(0, WIDE)
    at = o + ((b * M + m0) * H + h) * D + (r[:, None] * (H * D) + d[None, :])
    tl.store(at, (acc / mass[:, None]).to(o.dtype.element_ty), mask=in_rows[:, None] & (d < D)[None, :])


@triton.jit
def _backward_queries(
    do, o, q, k, v, c, whole, part, tail, begins, bounds, pad, dq, delta, rows, M, N, H, R, row_tiles,
    q_b, q_m, q_h, k_b, k_n, k_h, v_b, v_n, v_h, scale, LIMIT: tl.constexpr, SUMMIT: tl.constexpr,
    EXACT: tl.constexpr, PAD: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(M, ROWS)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = z // H, z % H
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * ROWS
    first = N - M + m0
    r, j, d = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, WIDE)
    in_rows = m0 + r < M
    c, whole, part = c + z * N, whole + z * N, part + z * N
    k, v = k + b * k_b + (h // R) * k_h, v + b * v_b + (h // R) * v_h
    unpadded = tl.load(pad + b).to(tl.int32) if PAD else 0

    head = (b * M * H + h) * D
    queries = _load(q + b * q_b + h * q_h, m0, r, q_m, M, False, D, WIDE)
    grads = _load(do + head, m0, r, H * D, M, False, D, WIDE)
    outs = _load(o + head, m0, r, H * D, M, False, D, WIDE)
    delta_r = tl.sum(grads.to(tl.float32) * outs.to(tl.float32), 1)
    tl.store(delta + z * M + m0 + r, delta_r, mask=in_rows)
    whole_r = tl.load(whole + first + r, mask=in_rows, other=0.0)
    tail_r = tl.load(tail + z * M + m0 + r, mask=in_rows, other=-float("inf"))

    acc = tl.zeros([ROWS, WIDE], tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    diagonal = first // KEYS * KEYS
    t = m0 // TILE + tl.arange(0, ROWS // TILE)
    begin = tl.min(tl.load(begins + z * row_tiles + t, mask=t < row_tiles, other=2147483647), 0) // KEYS * KEYS
    bound = tl.max(tl.load(bounds + z * row_tiles + t, mask=t < row_tiles, other=-float("inf")), 0)
    c_0, whole_0, part_0 = tl.load(c + first), tl.load(whole + first), tl.load(part + first)
    fall_r = (whole_r - whole_0) + (tail_r - part_0)
    # As in `_forward`, one offset for the block: what sets a row apart is a factor of its sums, taken at the end.
    highest = tl.max(fall_r, 0)
    bound += highest - tl.min(tl.where(in_rows, fall_r, float("inf")), 0)
    if bound < LIMIT:
        highest -= tl.maximum(bound - SUMMIT, 0.0)
        for n in range(begin, diagonal, KEYS):
            keys = _load(k, n, j, k_n, N, True, D, WIDE)
            values = _load(v, n, j, v_n, N, True, D, WIDE)
            rise_j = _rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT) + highest
            if PAD:
                rise_j = tl.where(n + j >= unpadded, rise_j, -float("inf"))
            p = tl.exp2(tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale + rise_j[None, :])
            ds = p * (tl.dot(grads, tl.trans(values), input_precision=PRECISION) - delta_r[:, None])
            sums += tl.sum(ds, 1)
            acc = tl.dot(ds.to(keys.dtype), keys, acc, input_precision=PRECISION)
        factor = tl.exp2(fall_r - highest)
        sums *= factor
        acc *= factor[:, None]
    else:
        for n in tl.range(begin, diagonal, KEYS, num_stages=1):
            keys = _load(k, n, j, k_n, N, True, D, WIDE)
            values = _load(v, n, j, v_n, N, True, D, WIDE)
            rise_j = _rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT)
            if PAD:
                rise_j = tl.where(n + j >= unpadded, rise_j, -float("inf"))
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            p = tl.exp2((s * scale + rise_j[None, :]) + fall_r[:, None])
            ds = p * (tl.dot(grads, tl.trans(values), input_precision=PRECISION) - delta_r[:, None])
            sums += tl.sum(ds, 1)
            acc = tl.dot(ds.to(keys.dtype), keys, acc, input_precision=PRECISION)

    for n in tl.range(diagonal, tl.minimum(first + ROWS, N), KEYS, num_stages=1):
        keys = _load(k, n, j, k_n, N, False, D, WIDE)
        values = _load(v, n, j, v_n, N, False, D, WIDE)
        whole_j = tl.load(whole + n + j, mask=n + j < N, other=0.0)
        part_j = tl.load(part + n + j, mask=n + j < N, other=0.0)
        s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        s += (whole_r[:, None] - whole_j[None, :]) + (tail_r[:, None] - part_j[None, :])
        seen = (n + j)[None, :] <= (first + r)[:, None]
        if PAD:
            seen = seen & (n + j >= unpadded)[None, :]
        p = tl.exp2(tl.where(seen, s, -float("inf")))
        ds = p * (tl.dot(grads, tl.trans(values), input_precision=PRECISION) - delta_r[:, None])
        sums += tl.sum(ds, 1)
        acc = tl.dot(ds.to(keys.dtype), keys, acc, input_precision=PRECISION)

    tl.store(rows + z * M + m0 + r, sums, mask=in_rows)
    at = dq + head + m0.to(tl.int64) * (H * D) + (r[:, None] * (H * D) + d[None, :])
    acc *= scale / LOG2E
    tl.store(at, acc.to(dq.dtype.element_ty), mask=in_rows[:, None] & (d < D)[None, :])


@triton.jit
def _backward_keys(
    do, q, k, v, c, whole, part, row, tail, delta, begins, pad, dk, dv, columns, M, N, H, R, row_tiles,
    q_b, q_m, q_h, k_b, k_n, k_h, v_b, v_n, v_h, scale, EXACT: tl.constexpr, PAD: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The scores lie transposed, keys by queries, so that p and ds multiply from the left as they come."""
    blocks, G = tl.cdiv(N, KEYS), H // R
    z = (tl.program_id(0) // blocks).to(tl.int64)
    b, g = z // G, z % G
    n0 = (tl.program_id(0) % blocks) * KEYS  # the keys that most queries see first
    r, j, d = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, WIDE)
    in_keys = n0 + j < N
    last = tl.minimum(n0 + KEYS, N) - 1
    unpadded = tl.load(pad + b).to(tl.int32) if PAD else 0
    keys = _load(k + b * k_b + g * k_h, n0, j, k_n, N, False, D, WIDE)
    values = _load(v + b * v_b + g * v_h, n0, j, v_n, N, False, D, WIDE)
    dkeys = tl.zeros([KEYS, WIDE], tl.float32)
    dvalues = tl.zeros([KEYS, WIDE], tl.float32)
    start = tl.maximum(n0 - (N - M), 0) // ROWS * ROWS
    below = tl.minimum(tl.cdiv(tl.maximum(n0 + KEYS - 1 - (N - M), 0), ROWS) * ROWS, M)  # from here all keys are seen

    for i in range(R):
        h = g * R + i
        y = b * H + h
        whole_j = tl.load(whole + y * N + n0 + j, mask=in_keys, other=0.0)
        part_j = tl.load(part + y * N + n0 + j, mask=in_keys, other=0.0)
        sums = tl.zeros([KEYS], tl.float32)
        queries_of = q + b * q_b + h * q_h
        grads_of = do + (b * M * H + h) * D
        for m in tl.range(start, below, ROWS, num_stages=1):
            in_rows = m + r < M
            queries = _load(queries_of, m, r, q_m, M, False, D, WIDE)
            grads = _load(grads_of, m, r, H * D, M, False, D, WIDE)
            whole_r = tl.load(whole + y * N + N - M + m + r, mask=in_rows, other=0.0)
            tail_r = tl.load(tail + y * M + m + r, mask=in_rows, other=-float("inf"))
            delta_r = tl.load(delta + y * M + m + r, mask=in_rows, other=0.0)
            s = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * scale
            s += (whole_r[None, :] - whole_j[:, None]) + (tail_r[None, :] - part_j[:, None])
            seen = (n0 + j)[:, None] <= (N - M + m + r)[None, :]
            if PAD:
                seen = seen & (n0 + j >= unpadded)[:, None]
            p = tl.exp2(tl.where(seen, s, -float("inf")))
            dvalues = tl.dot(p.to(grads.dtype), grads, dvalues, input_precision=PRECISION)
            ds = p * (tl.dot(values, tl.trans(grads), input_precision=PRECISION) - delta_r[None, :])
            sums += tl.sum(ds, 1)
            dkeys = tl.dot(ds.to(queries.dtype), queries, dkeys, input_precision=PRECISION)

        end = below  # the last query that has not forgotten these keys
        for at in range(below // TILE, row_tiles, TABLE):
            t = at + tl.arange(0, TABLE)
            begin_t = tl.load(begins + y * row_tiles + t, mask=t < row_tiles, other=2147483647)
            end = tl.maximum(end, tl.max(tl.where(begin_t <= last, (t + 1) * TILE, 0), 0))
        end = tl.minimum(end, M)
        c_0, whole_0, part_0 = tl.load(c + y * N + last), tl.load(whole + y * N + last), tl.load(part + y * N + last)
        rise_j = (whole_0 - whole_j) + (part_0 - part_j)
        if PAD:
            rise_j = tl.where(n0 + j >= unpadded, rise_j, -float("inf"))
        for m in range(below, end, ROWS):
            queries = _load(queries_of, m, r, q_m, M, EVEN, D, WIDE)
            grads = _load(grads_of, m, r, H * D, M, EVEN, D, WIDE)
            delta_r = _vector(delta + y * M, m + r, M, 0.0, EVEN)
            if EXACT:
                fall_r = _vector(whole + y * N + N - M, m + r, M, 0.0, EVEN) - whole_0
                fall_r += _vector(tail + y * M, m + r, M, -float("inf"), EVEN) - part_0
            else:
                fall_r = _vector(row + y * M, m + r, M, -float("inf"), EVEN) - c_0
            s = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
            p = tl.exp2((s * scale + rise_j[:, None]) + fall_r[None, :])
            dvalues = tl.dot(p.to(grads.dtype), grads, dvalues, input_precision=PRECISION)
            ds = p * (tl.dot(values, tl.trans(grads), input_precision=PRECISION) - delta_r[None, :])
            sums += tl.sum(ds, 1)
            dkeys = tl.dot(ds.to(queries.dtype), queries, dkeys, input_precision=PRECISION)
        tl.store(columns + y * N + n0 + j, sums, mask=in_keys)

    dkeys *= scale / LOG2E
    at = ((b * N + n0) * G + g) * D + (j[:, None] * (G * D) + d[None, :])
    inside = in_keys[:, None] & (d < D)[None, :]
    tl.store(dk + at, dkeys.to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + at, dvalues.to(dv.dtype.element_ty), mask=inside)


class Tuning(NamedTuple):
    """A kernel's block of queries and of keys, its warps, and the tiles in flight."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None  # a lower limit lets more programs share a multiprocessor


class Tunings(NamedTuple):
    forward: Tuning
    queries: Tuning
    keys: Tuning


def tunings(wide: int, dtype: torch.dtype, capability: tuple[int, int]) -> Tunings:
    """Measured on an H200 in bf16 at widths 64 and 128; the rest is chosen to fit."""
    if dtype == torch.float32:
        stages = 2 if wide <= 64 else 1
        return Tunings(Tuning(64, 32, 4, stages), Tuning(64, 32, 4, stages), Tuning(32, 64, 4, 1))
    if capability < (9, 0):
        return Tunings(Tuning(64, 64, 4, 2), Tuning(64, 64, 4, 2), Tuning(32, 64, 4, 2))
    if wide <= 64:
        return Tunings(Tuning(64, 64, 4, 3, 168), Tuning(64, 64, 4, 3, 168), Tuning(32, 64, 4, 3, 168))
    return Tunings(Tuning(64, 64, 4, 3), Tuning(64, 64, 4, 2), Tuning(32, 64, 4, 3))


def forgetting_forward(
    q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, log_f_BNH: Tensor, pad_B: Tensor | None, scale: float,
    forgotten: float, tuning: Tuning | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o_BMHD and what the backward pass needs: c_BHN (rounded, whole and part), row_BHM = c − lse and tail_BHM = part −
    lse, and of every tile of queries the first key it visits and its bound. `forgotten`: tiles bounded by it are left
    out."""
    (B, M, H, D), (N, G) = q_BMHD.shape, k_BNGD.shape[1:3]
    tiles, row_tiles = triton.cdiv(N, TILE.value), triton.cdiv(M, TILE.value)
    c, whole, part = (q_BMHD.new_empty(B, H, N, dtype=torch.float32) for _ in range(3))
    low, longest = (q_BMHD.new_empty(B, heads, tiles, dtype=torch.float32) for heads in (H, G))
    row, tail = (q_BMHD.new_empty(B, H, M, dtype=torch.float32) for _ in range(2))
    begins, bounds = (q_BMHD.new_empty(B, H, row_tiles, dtype=dtype) for dtype in (torch.int32, torch.float32))
    o = q_BMHD.new_empty(q_BMHD.shape)
    padded = {"PAD": pad_B is not None}
    sizes = _sizes(q_BMHD)
    _cumulate[(B * H,)](log_f_BNH, pad_B, c, whole, part, low, N, H, tiles, *log_f_BNH.stride(), **padded)
    _key_lengths[(triton.cdiv(N, 4 * TILE.value) * B * G,)](
        k_BNGD, longest, N, G, tiles, *k_BNGD.stride()[:3], D=D, WIDE=sizes["WIDE"]
    )
    chosen = tuning or _tunings(q_BMHD).forward
    _forward[(triton.cdiv(M, chosen.rows) * B * H,)](
        q_BMHD, k_BNGD, v_BNGD, c, whole, part, low, longest, pad_B, o, row, tail, begins, bounds, M, N, H, H // G,
        tiles, row_tiles, *_strides(q_BMHD, k_BNGD, v_BNGD), scale * LOG2E.value, forgotten, **_range(q_BMHD),
        **padded, **sizes, **_launch(chosen),
    )  # fmt: skip
    return o, c, whole, part, row, tail, begins, bounds


def forgetting_backward(
    do_BMHD: Tensor, o_BMHD: Tensor, q_BMHD: Tensor, k_BNGD: Tensor, v_BNGD: Tensor, c: Tensor, whole: Tensor,
    part: Tensor, row: Tensor, tail: Tensor, begins: Tensor, bounds: Tensor, pad_B: Tensor | None, scale: float,
    tuned: Tunings | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and log f. do and o are contiguous."""
    (B, M, H), (N, G) = q_BMHD.shape[:3], k_BNGD.shape[1:3]
    row_tiles = begins.shape[2]
    dq, dk, dv = q_BMHD.new_empty(q_BMHD.shape), k_BNGD.new_empty(k_BNGD.shape), v_BNGD.new_empty(v_BNGD.shape)
    delta, rows, columns = torch.empty_like(tail), torch.empty_like(tail), torch.empty_like(whole)
    dlog_f = q_BMHD.new_empty(B, N, H, dtype=torch.float32)
    padded, sizes = {"PAD": pad_B is not None}, _sizes(q_BMHD)
    strides, base2 = _strides(q_BMHD, k_BNGD, v_BNGD), scale * LOG2E.value
    _, by_queries, by_keys = tuned or _tunings(q_BMHD)
    _backward_queries[(triton.cdiv(M, by_queries.rows) * B * H,)](
        do_BMHD, o_BMHD, q_BMHD, k_BNGD, v_BNGD, c, whole, part, tail, begins, bounds, pad_B, dq, delta, rows, M, N, H,
        H // G, row_tiles, *strides, base2, **_range(q_BMHD), **padded, **sizes, **_launch(by_queries),
    )  # fmt: skip
    _backward_keys[(triton.cdiv(N, by_keys.keys) * B * G,)](
        do_BMHD, q_BMHD, k_BNGD, v_BNGD, c, whole, part, row, tail, delta, begins, pad_B, dk, dv, columns, M, N, H,
        H // G, row_tiles, *strides, base2, **padded, EVEN=M % by_keys.rows == 0, **sizes, **_launch(by_keys),
    )  # fmt: skip
    _uncumulate[(B * H,)](rows, columns, pad_B, dlog_f, M, N, H, **padded)
    return dq, dk, dv, dlog_f


def _tunings(q_BMHD: Tensor) -> Tunings:
    capability = torch.cuda.get_device_capability(q_BMHD.device) if q_BMHD.is_cuda else (0, 0)
    return tunings(_sizes(q_BMHD)["WIDE"], q_BMHD.dtype, capability)


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]


def _sizes(q_BMHD: Tensor) -> dict[str, Any]:
    D = q_BMHD.shape[3]
    # fp32 stays fp32: three tf32 products keep all its digits.
    exact = q_BMHD.dtype == torch.float32
    precision = "tf32x3" if exact else "tf32"
    return {"D": D, "WIDE": max(16, triton.next_power_of_2(D)), "PRECISION": precision, "EXACT": exact}


def _range(q_BMHD: Tensor) -> dict[str, Any]:
    """p up to 2^SUMMIT, summed over the keys, must not overflow; a row's largest p, from 2^(SUMMIT − LIMIT), must not
    vanish; and exponents that large lose digits which fp32 would miss."""
    limit, summit = {torch.float16: (13.0, 13.0), torch.float32: (16.0, 16.0)}.get(q_BMHD.dtype, (180.0, 90.0))
    return {"LIMIT": limit, "SUMMIT": summit}


def _launch(tuning: Tuning) -> dict[str, Any]:
    rows, keys, warps, stages, registers = tuning
    return {"ROWS": rows, "KEYS": keys, "num_warps": warps, "num_stages": stages, "maxnreg": registers}
