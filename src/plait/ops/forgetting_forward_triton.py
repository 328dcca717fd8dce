"""The forward kernels of `plait.ops.forgetting_triton`: tables of gates and keys, tile by tile, and the attention.

Letters: as in `plait.ops.forgetting_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(64)  # positions per table entry
TABLE = tl.constexpr(256)  # table entries read at once
CHUNK = tl.constexpr(1024)  # steps of a running sum taken at once
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def cumulate(log_f, pad, c, whole, part, low, N, H, tiles, stride_b, stride_n, stride_h, PAD: tl.constexpr):
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
        lowest = tl.min(tl.reshape(rounded, (CHUNK // TILE, TILE)), 1)  # past the end, c is constant
        t = at // TILE + tl.arange(0, CHUNK // TILE)
        tl.store(low + z * tiles + t, lowest, mask=t < tiles)


@triton.jit
def key_lengths(k, longest, N, G, tiles, stride_b, stride_n, stride_h, D: tl.constexpr, WIDE: tl.constexpr):
    """max ‖k‖ of every tile, four tiles per program."""
    blocks = tl.cdiv(N, 4 * TILE)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    base = k + (z // G) * stride_b + (z % G) * stride_h
    x = load_rows(base, block * 4 * TILE, tl.arange(0, 4 * TILE), stride_n, N, False, D, WIDE).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, 1))
    t = block * 4 + tl.arange(0, 4)
    tl.store(longest + z * tiles + t, tl.max(tl.reshape(length, (4, TILE)), 1), mask=t < tiles)


@triton.jit
def load_rows(base, start, r, stride, end, WITHIN: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):
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
def load_vector(base, r, end, other, WITHIN: tl.constexpr):
    if WITHIN:
        return tl.load(base + r)
    else:
        return tl.load(base + r, mask=r < end, other=other)


@triton.jit
def rise(c, whole, part, n, c_0, whole_0, part_0, EXACT: tl.constexpr):
    """c_0 − c_n. In half precision a single fp32 number suffices: rounding of p exceeds that of c (while c > −2^14)."""
    if EXACT:
        return (whole_0 - tl.load(whole + n)) + (part_0 - tl.load(part + n))
    else:
        return c_0 - tl.load(c + n)


@triton.jit
def forward(
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

    queries = load_rows(q + b * q_b + h * q_h, m0, r, q_m, M, False, D, WIDE)
    whole_r = tl.load(whole + first + r, mask=in_rows, other=0.0)
    part_r = tl.load(part + first + r, mask=in_rows, other=0.0)
    acc = tl.zeros([ROWS, WIDE], tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    diagonal = first // KEYS * KEYS
    for n in tl.range(diagonal, tl.minimum(first + ROWS, N), KEYS, num_stages=1):
        keys = load_rows(k, n, j, k_n, N, False, D, WIDE)
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
        values = load_rows(v, n, j, v_n, N, False, D, WIDE)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    top = tl.where(top == -float("inf"), 0.0, top)  # a row that does not see itself is padding

    # Bound the probability that earlier tiles can have.
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
    # c_i − c_j = (c_i − c_first) + (c_first − c_j): both terms have the same sign, so their rounding does not matter.
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
            keys = load_rows(k, n, j, k_n, N, True, D, WIDE)
            rise_j = rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT) - level
            if PAD:
                rise_j = tl.where(n + j >= unpadded, rise_j, -float("inf"))
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            p = tl.exp2(s * scale + rise_j[None, :])
            mass += tl.sum(p, 1)
            values = load_rows(v, n, j, v_n, N, True, D, WIDE)
            acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)
    else:
        for n in tl.range(begin, diagonal, KEYS, num_stages=1):
            keys = load_rows(k, n, j, k_n, N, True, D, WIDE)
            rise_j = rise(c, whole, part, n + j, c_0, whole_0, part_0, EXACT)
            if PAD:
                rise_j = tl.where(n + j >= unpadded, rise_j, -float("inf"))
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            s = (s * scale + rise_j[None, :]) + fall_r[:, None]
            new_top = tl.maximum(top, tl.max(s, 1))
            shrink = tl.exp2(top - new_top)
            p = tl.exp2(s - new_top[:, None])
            mass = mass * shrink + tl.sum(p, 1)
            values = load_rows(v, n, j, v_n, N, True, D, WIDE)
            acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
            top = new_top

    mass = tl.where(mass == 0.0, 1.0, mass)
    lse = top + tl.log2(mass)
    tl.store(tail + z * M + m0 + r, part_r - lse, mask=in_rows)
    tl.store(row + z * M + m0 + r, whole_r + (part_r - lse), mask=in_rows)
    d = tl.arange(0, WIDE)
    at = o + ((b * M + m0) * H + h) * D + (r[:, None] * (H * D) + d[None, :])
    tl.store(at, (acc / mass[:, None]).to(o.dtype.element_ty), mask=in_rows[:, None] & (d < D)[None, :])
