"""The backward pass of `plait.ops.forgetting_triton` behind closed gates: small gradients to full precision.

    ds_ij = p_ij (dp_ij − δ_i),    dp_ij = ⟨do_i, v_j⟩,    δ_i = Σ_j p_ij dp_ij = ⟨do_i, o_i⟩

Behind a closed gate a query sees little but its own key: p_ii is nearly 1, and dp_ii − δ_i is a difference of two
nearly equal numbers, which rounding destroys. Such blocks therefore compute δ in a separate pass, as a difference from
dp_ii, which keeps all digits however small the other p are:

    own_i = δ_i − dp_ii = Σ_{j<i} p_ij (dp_ij − dp_ii),    ds_ii = −p_ii own_i.

A block of queries is sharp if it looks back by at most one tile and gives its own keys half of its attention or more.
For sharp blocks, and blocks of keys that only they and a tile of other queries see, these kernels run after those of
`plait.ops.forgetting_backward_triton` and overwrite their results; for all other blocks they return immediately. All
tiles are masked, and all differences of c are exact.

Letters: as in `plait.ops.forgetting_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plait.ops.forgetting_forward_triton import LOG2E, TABLE, TILE, load_rows

SHARP = tl.constexpr(0.5)  # mean attention of sharp queries to their own keys


@triton.jit
def last_to_see(begins, below, last, row_tiles, M):
    """The end of the queries, from `below` on, for which a block of keys up to `last` still matters."""
    end = below
    for at in range(below // TILE, row_tiles, TABLE):
        t = at + tl.arange(0, TABLE)
        begin_t = tl.load(begins + t, mask=t < row_tiles, other=2147483647)
        end = tl.maximum(end, tl.max(tl.where(begin_t <= last, (t + 1) * TILE, 0), 0))
    return tl.minimum(end, M)


@triton.jit
def any_sharp(sharp, y0, R, start, below, row_tiles):
    """Whether a block of the queries from `start` to `below` is sharp for some head of a group."""
    sharpest = 0
    for i in range(R):
        for t in range(start // TILE, tl.cdiv(below, TILE)):
            sharpest = tl.maximum(sharpest, tl.load(sharp + (y0 + i) * row_tiles + t))
    return sharpest > 0


@triton.jit
def few_see(begins, y0, R, below, last, row_tiles, M):
    """Whether, for every head of a group, at most a tile of queries from `below` on sees the keys up to `last`."""
    most = 0
    for i in range(R):
        most = tl.maximum(most, last_to_see(begins + (y0 + i) * row_tiles, below, last, row_tiles, M) - below)
    return most <= TILE


@triton.jit
def probabilities(
    queries, keys, whole_r, tail_r, whole, part, n, N, i, unpadded, scale, PAD: tl.constexpr, PRECISION: tl.constexpr
):
    """p of the queries at positions i and the keys at n."""
    whole_n = tl.load(whole + n, mask=n < N, other=0.0)
    part_n = tl.load(part + n, mask=n < N, other=0.0)
    s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    s += (whole_r[:, None] - whole_n[None, :]) + (tail_r[:, None] - part_n[None, :])
    seen = n[None, :] <= i[:, None]
    if PAD:
        seen = seen & (n >= unpadded)[None, :]
    return tl.exp2(tl.where(seen, s, -float("inf")))


@triton.jit
def sharp_queries(
    do, q, k, v, whole, part, tail, begins, pad, dq, delta, own, rows, sharp, M, N, H, R, row_tiles,
    q_b, q_m, q_h, k_b, k_n, k_h, v_b, v_n, v_h, scale, PAD: tl.constexpr, EXACT: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """δ, own, dq and the sums of ds over keys; `sharp` records which blocks were computed."""
    blocks = tl.cdiv(M, ROWS)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = z // H, z % H
    m0 = (tl.program_id(0) % blocks) * ROWS
    first = N - M + m0
    begin = tl.load(begins + z * row_tiles + m0 // TILE)
    tl.store(sharp + z * row_tiles + m0 // TILE, 0)
    if first - begin >= 2 * TILE:
        return
    r, j, d = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, WIDE)
    in_rows = m0 + r < M
    whole, part = whole + z * N, part + z * N
    k, v = k + b * k_b + (h // R) * k_h, v + b * v_b + (h // R) * v_h
    unpadded = tl.load(pad + b).to(tl.int32) if PAD else 0
    queries = load_rows(q + b * q_b + h * q_h, m0, r, q_m, M, False, D, WIDE)
    whole_r = tl.load(whole + first + r, mask=in_rows, other=0.0)
    tail_r = tl.load(tail + z * M + m0 + r, mask=in_rows, other=-float("inf"))
    own_keys = load_rows(k, first, r, k_n, N, False, D, WIDE)
    part_r = tl.load(part + first + r, mask=in_rows, other=0.0)
    p_own = tl.exp2(tl.sum(queries.to(tl.float32) * own_keys.to(tl.float32), 1) * scale + (tail_r - part_r))
    if tl.sum(tl.where(first + r >= unpadded, p_own, 0.0), 0) < tl.minimum(ROWS, M - m0) * SHARP:
        return
    tl.store(sharp + z * row_tiles + m0 // TILE, 1)
    head = (b * M * H + h) * D
    grads = load_rows(do + head, m0, r, H * D, M, False, D, WIDE)
    itself = load_rows(v, first, r, v_n, N, False, D, WIDE)

    dp_own = tl.sum(grads.to(tl.float32) * itself.to(tl.float32), 1)
    own_r = tl.zeros([ROWS], tl.float32)
    begin, end = begin // KEYS * KEYS, tl.minimum(first + ROWS, N)
    for n in tl.range(begin, end, KEYS, num_stages=1):
        keys = load_rows(k, n, j, k_n, N, False, D, WIDE)
        values = load_rows(v, n, j, v_n, N, False, D, WIDE)
        p = probabilities(
            queries, keys, whole_r, tail_r, whole, part, n + j, N, first + r, unpadded, scale, PAD, PRECISION
        )
        p = tl.where((n + j)[None, :] < (first + r)[:, None], p, 0.0)
        own_r += tl.sum(p * (tl.dot(grads, tl.trans(values), input_precision=PRECISION) - dp_own[:, None]), 1)
    delta_r = dp_own + own_r
    tl.store(delta + z * M + m0 + r, delta_r, mask=in_rows)
    tl.store(own + z * M + m0 + r, own_r, mask=in_rows)

    acc = tl.zeros([ROWS, WIDE], tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    for n in tl.range(begin, end, KEYS, num_stages=1):
        keys = load_rows(k, n, j, k_n, N, False, D, WIDE)
        values = load_rows(v, n, j, v_n, N, False, D, WIDE)
        p = probabilities(
            queries, keys, whole_r, tail_r, whole, part, n + j, N, first + r, unpadded, scale, PAD, PRECISION
        )
        change = tl.dot(grads, tl.trans(values), input_precision=PRECISION) - delta_r[:, None]
        ds = p * tl.where((n + j)[None, :] == (first + r)[:, None], -own_r[:, None], change)
        sums += tl.sum(ds, 1)
        acc = tl.dot(ds.to(keys.dtype), keys, acc, input_precision=PRECISION)
    tl.store(rows + z * M + m0 + r, sums, mask=in_rows)
    at = dq + head + m0.to(tl.int64) * (H * D) + (r[:, None] * (H * D) + d[None, :])
    acc *= scale / LOG2E
    tl.store(at, acc.to(dq.dtype.element_ty), mask=in_rows[:, None] & (d < D)[None, :])


@triton.jit
def sharp_keys(
    do, q, k, v, whole, part, tail, delta, own, begins, sharp, pad, dk, dv, columns, M, N, H, R, row_tiles,
    q_b, q_m, q_h, k_b, k_n, k_h, v_b, v_n, v_h, scale, EXACT: tl.constexpr, PAD: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """dk, dv and the sums of ds over queries. Scores are stored transposed, keys by queries."""
    blocks, G = tl.cdiv(N, KEYS), H // R
    z = (tl.program_id(0) // blocks).to(tl.int64)
    b, g = z // G, z % G
    n0 = (tl.program_id(0) % blocks) * KEYS
    last = tl.minimum(n0 + KEYS, N) - 1
    start = tl.maximum(n0 - (N - M), 0) // ROWS * ROWS
    below = tl.minimum(tl.cdiv(tl.maximum(n0 + KEYS - 1 - (N - M), 0), ROWS) * ROWS, M)
    if not any_sharp(sharp, b * H + g * R, R, start, below, row_tiles):
        return
    if not few_see(begins, b * H + g * R, R, below, last, row_tiles, M):
        return
    r, j, d = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, WIDE)
    in_keys = n0 + j < N
    unpadded = tl.load(pad + b).to(tl.int32) if PAD else 0
    keys = load_rows(k + b * k_b + g * k_h, n0, j, k_n, N, False, D, WIDE)
    values = load_rows(v + b * v_b + g * v_h, n0, j, v_n, N, False, D, WIDE)
    dkeys = tl.zeros([KEYS, WIDE], tl.float32)
    dvalues = tl.zeros([KEYS, WIDE], tl.float32)
    for i in range(R):
        h = g * R + i
        y = b * H + h
        whole_j = tl.load(whole + y * N + n0 + j, mask=in_keys, other=0.0)
        part_j = tl.load(part + y * N + n0 + j, mask=in_keys, other=0.0)
        sums = tl.zeros([KEYS], tl.float32)
        end = last_to_see(begins + y * row_tiles, below, last, row_tiles, M)
        for m in tl.range(start, end, ROWS, num_stages=1):
            in_rows, at_r = m + r < M, N - M + m + r
            queries = load_rows(q + b * q_b + h * q_h, m, r, q_m, M, False, D, WIDE)
            grads = load_rows(do + (b * M * H + h) * D, m, r, H * D, M, False, D, WIDE)
            whole_r = tl.load(whole + y * N + at_r, mask=in_rows, other=0.0)
            tail_r = tl.load(tail + y * M + m + r, mask=in_rows, other=-float("inf"))
            delta_r = tl.load(delta + y * M + m + r, mask=in_rows, other=0.0)
            sharp_r = tl.load(sharp + y * row_tiles + (m + r) // TILE, mask=in_rows, other=0) > 0
            own_r = tl.load(own + y * M + m + r, mask=sharp_r, other=0.0)
            s = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * scale
            s += (whole_r[None, :] - whole_j[:, None]) + (tail_r[None, :] - part_j[:, None])
            seen = (n0 + j)[:, None] <= at_r[None, :]
            if PAD:
                seen = seen & (n0 + j >= unpadded)[:, None]
            p = tl.exp2(tl.where(seen, s, -float("inf")))
            dvalues = tl.dot(p.to(grads.dtype), grads, dvalues, input_precision=PRECISION)
            change = tl.dot(values, tl.trans(grads), input_precision=PRECISION) - delta_r[None, :]
            itself = ((n0 + j)[:, None] == at_r[None, :]) & sharp_r[None, :]
            ds = p * tl.where(itself, -own_r[None, :], change)
            sums += tl.sum(ds, 1)
            dkeys = tl.dot(ds.to(queries.dtype), queries, dkeys, input_precision=PRECISION)
        tl.store(columns + y * N + n0 + j, sums, mask=in_keys)
    dkeys *= scale / LOG2E
    at = ((b * N + n0) * G + g) * D + (j[:, None] * (G * D) + d[None, :])
    inside = in_keys[:, None] & (d < D)[None, :]
    tl.store(dk + at, dkeys.to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + at, dvalues.to(dv.dtype.element_ty), mask=inside)
