"""Kernels of gated linear attention that the forward pass needs: running decays, states at chunk borders, outputs.

`plait.ops.gla_triton` explains how they fit together.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# A decay of 2^-160 is zero in fp32, and with this bound the sums over a chunk always stay finite.
STRONGEST = tl.constexpr(-160.0)
DEPTH_TILE = tl.constexpr(32)  # channels that share a depth


@triton.jit(do_not_specialize=["T"])
def cumulate(
    g, b, whole, depth, T, H, K, s_b, s_t, s_h, s_k, limit,
    C: tl.constexpr, LEVELS: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """b: the running sum of the log decays in base 2 from a chunk's start to each token, as BTHK. Exact: in two parts,
    integers and the rest, so that a difference of two such sums is accurate, however large they are.

    depth, of every tile of channels of a chunk: blocks of 2^depth tokens are the longest of which no half decays by
    more than 2^-limit."""
    z, n = tl.program_id(1), tl.program_id(0)
    t, k = n * C + tl.arange(0, C), tl.program_id(2) * BK + tl.arange(0, BK)
    inside = (t < T)[:, None] & (k < K)[None, :]
    from_g = g + (z // H).to(tl.int64) * s_b + (z % H) * s_h + t[:, None] * s_t + k[None, :] * s_k
    x = tl.maximum(tl.load(from_g, mask=inside, other=0.0).to(tl.float32) * LOG2E, STRONGEST)
    to_b = (z // H).to(tl.int64) * T * H * K + (t[:, None] * (H * K) + (z % H) * K + k[None, :])
    if VECTOR and not EXACT:
        halves = x
        deep = (tl.min(tl.min(halves, 1), 0) >= -limit).to(tl.int32)
        for level in tl.static_range(1, LEVELS):
            halves = tl.sum(tl.reshape(halves, (C >> level, 2, BK)), 1)
            deep += (tl.min(tl.min(halves, 1), 0) >= -limit).to(tl.int32)
        tl.store(depth + (z * tl.num_programs(0) + n) * tl.num_programs(2) + tl.program_id(2), deep)
    if EXACT:
        nearest = tl.floor(x + 0.5)
        tl.store(whole + to_b, tl.cumsum(nearest, 0), mask=inside)
        x -= nearest
    tl.store(b + to_b, tl.cumsum(x, 0), mask=inside)


@triton.jit
def sums(b, whole, at, mask, EXACT: tl.constexpr):
    """Running sums at these indices: the rest and the integers (the rest twice if there are none)."""
    x = tl.load(b + at, mask=mask, other=0.0)
    if EXACT:
        return x, tl.load(whole + at, mask=mask, other=0.0)
    return x, x


@triton.jit
def between(x, x_whole, y, y_whole, EXACT: tl.constexpr):
    """The decay from one running sum down to another: never above 1."""
    gap = x - y
    if EXACT:
        gap += x_whole - y_whole
    return tl.exp2(tl.minimum(gap, 0.0))


@triton.jit
def fetch(
    x, y, b, whole, n, i, k, v, in_k, in_v, T, H, K, x_t, y_t,
    BACK: tl.constexpr, VECTOR: tl.constexpr, BEFORE: tl.constexpr, EXACT: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """A chunk's keys and values (or queries and gradients), its running sums and their end. Beyond the first or last
    chunk: zeros."""
    t = n * C + i
    in_t, end = (t < T) & (t >= 0), tl.maximum(tl.minimum(n * C + C, T) - 1, 0)
    xs = tl.load(x + t[:, None] * x_t + k[None, :], mask=in_t[:, None] & in_k[None, :], other=0.0)
    ys = tl.load(y + t[:, None] * y_t + v[None, :], mask=in_t[:, None] & in_v[None, :], other=0.0)
    at = t - 1 if BACK and BEFORE else t
    begun = (at >= n * C) & in_t
    if VECTOR:
        here = at[:, None] * (H * K) + k[None, :]
        now, now_whole = sums(b, whole, here, begun[:, None] & in_k[None, :], EXACT)
        total, total_whole = sums(b, whole, end * (H * K) + k, in_k, EXACT)
    else:
        now, now_whole = sums(b, whole, at * H, begun, EXACT)
        total, total_whole = sums(b, whole, end * H, True, EXACT)
    return xs, ys, now, now_whole, total, total_whole


@triton.jit
def walk(
    z, x, y, b, whole, first, out, last, T, H, R, K, V, N, x_b, x_t, x_h, y_b, y_t, y_h, scale,
    BACK: tl.constexpr, VECTOR: tl.constexpr, BEFORE: tl.constexpr, EXACT: tl.constexpr, FIRST: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Carry a tile of the state through all chunks. The next chunk is prefetched while this one is added."""
    k, v = tl.program_id(1) * BK + tl.arange(0, BK), tl.program_id(2) * BV + tl.arange(0, BV)
    in_k, in_v, i = k < K, v < V, tl.arange(0, C)
    width = K if VECTOR else 1
    x += (z // H) * x_b + (z % H // R) * x_h
    y += (z // H) * y_b + (z % H) * y_h
    running = (z // H) * T * H * width + (z % H) * width
    b += running
    whole += running
    inside = in_k[:, None] & in_v[None, :]
    kv = k[:, None] * V + v[None, :]
    S = tl.zeros((BK, BV), tl.float32)
    if FIRST:
        S += tl.load(first + z * K * V + kv, mask=inside, other=0.0).to(tl.float32)
    xs, ys, now, now_whole, total, total_whole = fetch(
        x, y, b, whole, N - 1 if BACK else 0, i, k, v, in_k, in_v, T, H, K, x_t, y_t, BACK, VECTOR, BEFORE, EXACT, C
    )
    for step in range(N):
        n = N - 1 - step if BACK else step
        xs_next, ys_next, now_next, now_whole_next, total_next, total_whole_next = fetch(
            x, y, b, whole, n - 1 if BACK else n + 1, i, k, v, in_k, in_v, T, H, K, x_t, y_t, BACK, VECTOR, BEFORE,
            EXACT, C,
        )  # fmt: skip
        tl.store(out + (z * N + n) * K * V + kv, S.to(out.dtype.element_ty), mask=inside)
        if BACK:
            decay = between(now, now_whole, 0.0, 0.0, EXACT)
        elif VECTOR:
            decay = between(total[None, :], total_whole[None, :], now, now_whole, EXACT)
        else:
            decay = between(total, total_whole, now, now_whole, EXACT)
        across = between(total, total_whole, 0.0, 0.0, EXACT)
        if VECTOR:
            across = across[:, None]
        else:
            decay = decay[:, None]
        decayed = (xs * decay).to(out.dtype.element_ty)
        added = tl.dot(tl.trans(decayed), ys, input_precision=PRECISION)
        S = S * across + (added * scale if BACK else added)
        xs, ys, now, now_whole = xs_next, ys_next, now_next, now_whole_next
        total, total_whole = total_next, total_whole_next
    tl.store(last + z * K * V + kv, S, mask=inside)


@triton.jit(do_not_specialize=["T", "N"])
def states(
    k, v, b, whole, first, before, last, T, H, R, K, V, N, k_b, k_t, k_h, v_b, v_t, v_h,
    VECTOR: tl.constexpr, BEFORE: tl.constexpr, EXACT: tl.constexpr, FIRST: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state before every chunk, and the one after all."""
    walk(
        tl.program_id(0).to(tl.int64), k, v, b, whole, first, before, last, T, H, R, K, V, N, k_b, k_t, k_h,
        v_b, v_t, v_h, 1.0, False, VECTOR, BEFORE, EXACT, FIRST, C, BK, BV, PRECISION,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T", "N"])
def states_and_gradients(
    do, q, k, v, b, whole, first, dlast, before, after, last, dfirst, T, H, R, K, V, N,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, scale,
    VECTOR: tl.constexpr, BEFORE: tl.constexpr, EXACT: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Half of the programs: the state before every chunk. The others: the gradient of the state after every chunk, and
    of the one before all."""
    z = tl.program_id(0).to(tl.int64)
    many = tl.num_programs(0) // 2
    if z < many:
        walk(
            z, k, v, b, whole, first, before, last, T, H, R, K, V, N, k_b, k_t, k_h, v_b, v_t, v_h, 1.0,
            False, VECTOR, BEFORE, EXACT, FIRST, C, BK, BV, PRECISION,
        )  # fmt: skip
    else:
        walk(
            z - many, q, do, b, whole, dlast, after, dfirst, T, H, R, K, V, N, q_b, q_t, q_h, T * H * V, H * V, V,
            scale, True, VECTOR, BEFORE, EXACT, LAST, C, BK, BV, PRECISION,
        )  # fmt: skip


@triton.jit
def halves(b, whole, n, i, k, in_k, T, H, K, level, C: tl.constexpr, BEFORE: tl.constexpr, EXACT: tl.constexpr):
    """For halves of 2^level tokens: the decay of every token from or to the boundary with the adjacent half."""
    right = (i >> level) % 2 == 1
    border = tl.minimum(n * C + (((i >> (level + 1)) * 2 + 1) << level) - 1, T - 1)
    t = n * C + i
    at = tl.where(right & BEFORE, t - 1, t)
    mask = (t < T)[:, None] & in_k[None, :]
    x, x_whole = sums(b, whole, at[:, None] * (H * K) + k[None, :], mask, EXACT)
    y, y_whole = sums(b, whole, border[:, None] * (H * K) + k[None, :], mask, EXACT)
    gap = x - y
    if EXACT:
        gap += x_whole - y_whole
    return tl.exp2(-tl.abs(gap))


@triton.jit
def siblings(i, level):
    """Mask of queries (rows) in right halves and keys (columns) in the adjacent left half."""
    block = i >> level
    return (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)


@triton.jit
def depth_of(depth, z, n, N, k0, K, LEVELS: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr):
    """How many levels a tile of channels can skip: none if full precision is required."""
    if EXACT:
        return 0
    else:
        tiles = k0 // DEPTH_TILE + tl.arange(0, (BK + DEPTH_TILE - 1) // DEPTH_TILE)
        many = tl.cdiv(K, DEPTH_TILE)
        return tl.min(tl.load(depth + (z * N + n) * many + tiles, mask=tiles < many, other=LEVELS), 0)


@triton.jit
def inside(i, depth):
    """Mask of queries (rows) and earlier keys (columns) in the same block of 2^depth tokens."""
    return ((i[:, None] >> depth) == (i[None, :] >> depth)) & (i[:, None] > i[None, :])


@triton.jit
def from_middle(b, n, i, k, in_k, T, H, K, depth, limit, C: tl.constexpr, BEFORE: tl.constexpr):
    """The decay of each token's query and key relative to the middle of its block of 2^depth tokens: up to 2^±limit."""
    level = tl.maximum(depth - 1, 0)
    border = tl.minimum(n * C + (((i >> (level + 1)) * 2 + 1) << level) - 1, T - 1)
    t = n * C + i
    mask = (t < T)[:, None] & in_k[None, :]
    middle = tl.load(b + border[:, None] * (H * K) + k[None, :], mask=mask, other=0.0)
    to_key = tl.load(b + t[:, None] * (H * K) + k[None, :], mask=mask, other=0.0)
    to_query = to_key
    if BEFORE:
        to_query = tl.load(b + (t - 1)[:, None] * (H * K) + k[None, :], mask=mask & (i > 0)[:, None], other=0.0)
    return tl.exp2(tl.minimum(to_query - middle, limit)), tl.exp2(tl.minimum(middle - to_key, limit))


@triton.jit
def channel_scores(
    q, k, b, whole, depth, own, head, z, n, i, T, H, K, N, q_t, k_t, limit, BEFORE: tl.constexpr, EXACT: tl.constexpr,
    C: tl.constexpr, LEVELS: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores among a chunk's tokens with a decay per channel, the diagonal included. Pointers are at the head."""
    t = n * C + i
    in_t = t < T
    dtype = q.dtype.element_ty
    A = tl.zeros((C, C), tl.float32)
    diagonal = tl.zeros((C,), tl.float32)
    for k0 in range(0, K, BK):
        at = k0 + tl.arange(0, BK)
        in_k = at < K
        mask = in_t[:, None] & in_k[None, :]
        qs = tl.load(q + t[:, None] * q_t + at[None, :], mask=mask, other=0.0)
        ks = tl.load(k + t[:, None] * k_t + at[None, :], mask=mask, other=0.0)
        if not BEFORE:
            diagonal += tl.sum(qs.to(tl.float32) * ks.to(tl.float32), 1)
        deep = depth_of(depth, z, n, N, k0, K, LEVELS, BK, EXACT)
        if not EXACT:
            of_query, of_key = from_middle(b, n, i, at, in_k, T, H, K, deep, limit, C, BEFORE)
            product = tl.dot((qs * of_query).to(dtype), tl.trans((ks * of_key).to(dtype)), input_precision=PRECISION)
            A += tl.where(inside(i, deep), product, 0.0)
        for level in tl.range(deep, LEVELS, num_stages=1):
            decay = halves(b, whole, n, i, at, in_k, T, H, K, level, C, BEFORE, EXACT)
            product = tl.dot((qs * decay).to(dtype), tl.trans((ks * decay).to(dtype)), input_precision=PRECISION)
            A += tl.where(siblings(i, level), product, 0.0)
    if BEFORE:
        diagonal += tl.load(own + head + t * H, mask=in_t, other=0.0)
    return A + tl.where(i[:, None] == i[None, :], diagonal[:, None], 0.0)


@triton.jit(do_not_specialize=["T", "N"])
def outputs(
    q, k, v, b, whole, depth, own, before, o, T, H, R, K, V, N, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, scale,
    limit, VECTOR: tl.constexpr, BEFORE: tl.constexpr, EXACT: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One chunk of one head: scores among its tokens, then with them and with the state before it the outputs."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q += (z // H) * q_b + (z % H // R) * q_h
    k += (z // H) * k_b + (z % H // R) * k_h
    v += (z // H) * v_b + (z % H) * v_h
    head = (z // H) * T * H + z % H
    o += head * V
    b += head * K if VECTOR else head
    whole += head * K if VECTOR else head
    before += (z * N + n) * K * V
    i = tl.arange(0, C)
    t = n * C + i
    in_t = t < T
    dtype = o.dtype.element_ty
    if VECTOR:
        A = channel_scores(
            q, k, b, whole, depth, own, head, z, n, i, T, H, K, N, q_t, k_t, limit, BEFORE, EXACT, C, LEVELS, BK,
            PRECISION,
        )  # fmt: skip
        from_start = 1.0
    else:
        A = tl.zeros((C, C), tl.float32)
        for k0 in range(0, K, BK):
            at = k0 + tl.arange(0, BK)
            mask = in_t[:, None] & (at < K)[None, :]
            qs = tl.load(q + t[:, None] * q_t + at[None, :], mask=mask, other=0.0)
            ks = tl.load(k + t[:, None] * k_t + at[None, :], mask=mask, other=0.0)
            A = tl.dot(qs, tl.trans(ks), A, input_precision=PRECISION)
        now, now_whole = sums(b, whole, t * H, in_t, EXACT)
        decay = between(now[:, None], now_whole[:, None], now[None, :], now_whole[None, :], EXACT)
        A = tl.where(i[:, None] >= i[None, :], A * decay, 0.0)
        from_start = between(now, now_whole, 0.0, 0.0, EXACT)[:, None]
    weights = A.to(dtype)

    for v0 in range(0, V, BV):
        to = v0 + tl.arange(0, BV)
        in_v = to < V
        vs = tl.load(v + t[:, None] * v_t + to[None, :], mask=in_t[:, None] & in_v[None, :], other=0.0)
        os = tl.zeros((C, BV), tl.float32)
        for k0 in range(0, K, BK):
            at = k0 + tl.arange(0, BK)
            in_k = at < K
            qs = tl.load(q + t[:, None] * q_t + at[None, :], mask=in_t[:, None] & in_k[None, :], other=0.0)
            S = tl.load(before + at[:, None] * V + to[None, :], mask=in_k[:, None] & in_v[None, :], other=0.0)
            if VECTOR:
                last = t - 1 if BEFORE else t
                mask = ((last >= n * C) & in_t)[:, None] & in_k[None, :]
                now, now_whole = sums(b, whole, last[:, None] * (H * K) + at[None, :], mask, EXACT)
                qs = (qs * between(now, now_whole, 0.0, 0.0, EXACT)).to(dtype)
            os = tl.dot(qs, S, os, input_precision=PRECISION)
        os = scale * tl.dot(weights, vs, os * from_start, input_precision=PRECISION)
        mask = in_t[:, None] & in_v[None, :]
        tl.store(o + t[:, None] * (H * V) + to[None, :], os.to(dtype), mask=mask)
