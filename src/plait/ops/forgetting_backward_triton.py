"""The backward kernels of `plait.ops.forgetting_triton`: dq by blocks of queries, dk and dv by blocks of keys; dlog f.

Letters: as in `plait.ops.forgetting_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plait.ops.forgetting_forward_triton import CHUNK, LOG2E, TABLE, TILE, load_rows, load_vector, rise


@triton.jit
def backward_queries(
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
    queries = load_rows(q + b * q_b + h * q_h, m0, r, q_m, M, False, D, WIDE)
    grads = load_rows(do + head, m0, r, H * D, M, False, D, WIDE)
    outs = load_rows(o + head, m0, r, H * D, M, False, D, WIDE)
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
    # As in `_forward`, one offset for the whole block: row-specific factors are applied to the sums at the end.
    highest = tl.max(fall_r, 0)
    bound += highest - tl.min(tl.where(in_rows, fall_r, float("inf")), 0)
    if bound < LIMIT:
        highest -= tl.maximum(bound - SUMMIT, 0.0)
        for n in range(begin, diagonal, KEYS):
            keys = load_rows(k, n, j, k_n, N, True, D, WIDE)
            values = load_rows(v, n, j, v_n, N, True, D, WIDE)
            rise_j = rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT) + highest
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
            keys = load_rows(k, n, j, k_n, N, True, D, WIDE)
            values = load_rows(v, n, j, v_n, N, True, D, WIDE)
            rise_j = rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT)
            if PAD:
                rise_j = tl.where(n + j >= unpadded, rise_j, -float("inf"))
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            p = tl.exp2((s * scale + rise_j[None, :]) + fall_r[:, None])
            ds = p * (tl.dot(grads, tl.trans(values), input_precision=PRECISION) - delta_r[:, None])
            sums += tl.sum(ds, 1)
            acc = tl.dot(ds.to(keys.dtype), keys, acc, input_precision=PRECISION)

    for n in tl.range(diagonal, tl.minimum(first + ROWS, N), KEYS, num_stages=1):
        keys = load_rows(k, n, j, k_n, N, False, D, WIDE)
        values = load_rows(v, n, j, v_n, N, False, D, WIDE)
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
def backward_keys(
    do, q, k, v, c, whole, part, row, tail, delta, begins, pad, dk, dv, columns, M, N, H, R, row_tiles,
    q_b, q_m, q_h, k_b, k_n, k_h, v_b, v_n, v_h, scale, EXACT: tl.constexpr, PAD: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Scores are stored transposed, keys by queries, so that p and ds can be left factors without a transpose."""
    blocks, G = tl.cdiv(N, KEYS), H // R
    z = (tl.program_id(0) // blocks).to(tl.int64)
    b, g = z // G, z % G
    n0 = (tl.program_id(0) % blocks) * KEYS  # the keys that most queries see first
    r, j, d = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, WIDE)
    in_keys = n0 + j < N
    last = tl.minimum(n0 + KEYS, N) - 1
    unpadded = tl.load(pad + b).to(tl.int32) if PAD else 0
    keys = load_rows(k + b * k_b + g * k_h, n0, j, k_n, N, False, D, WIDE)
    values = load_rows(v + b * v_b + g * v_h, n0, j, v_n, N, False, D, WIDE)
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
            queries = load_rows(queries_of, m, r, q_m, M, False, D, WIDE)
            grads = load_rows(grads_of, m, r, H * D, M, False, D, WIDE)
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

        end = below  # the last query for which these keys still matter
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
            queries = load_rows(queries_of, m, r, q_m, M, EVEN, D, WIDE)
            grads = load_rows(grads_of, m, r, H * D, M, EVEN, D, WIDE)
            delta_r = load_vector(delta + y * M, m + r, M, 0.0, EVEN)
            if EXACT:
                fall_r = load_vector(whole + y * N + N - M, m + r, M, 0.0, EVEN) - whole_0
                fall_r += load_vector(tail + y * M, m + r, M, -float("inf"), EVEN) - part_0
            else:
                fall_r = load_vector(row + y * M, m + r, M, -float("inf"), EVEN) - c_0
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


@triton.jit
def uncumulate(rows, columns, pad, grad, M, N, H, PAD: tl.constexpr):
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
