"""Kernels of gated linear attention's backward pass, one program per chunk: nothing is summed across programs.

`plait.ops.gla_triton` explains how they fit together. The gradient of a log decay sums over all pairs of tokens on
either side of it. No sum here adds a pair and subtracts it again, so that the small gradients of strong decays stay
accurate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plait.ops.gla_forward_triton import (
    between,
    channel_scores,
    depth_of,
    from_middle,
    halves,
    inside,
    siblings,
    sums,
)


@triton.jit
def passing(i, level, BEFORE: tl.constexpr):
    """Which decays m (rows) lie between each token t (columns) and the border of its half, as 0 and 1."""
    m, t = i[:, None], i[None, :]
    together = (m >> level) == (t >> level)
    right = (t >> level) % 2 == 1
    upto = m < t if BEFORE else m <= t
    return tl.where(together & ((right & upto) | (~right & (m > t))), 1.0, 0.0)


@triton.jit(do_not_specialize=["T", "N"])
def backward_channels(
    do, q, k, v, b, whole, depth, before, after, dq, dk, dg, down, T, H, K, V, N,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, scale, limit,
    BEFORE: tl.constexpr, EXACT: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries, keys and log decays, one decay per channel, of one chunk of one head. `before`:
    the state before the chunk; `after`: the gradient of the state after it."""
    n, z = tl.program_id(0), tl.program_id(2).to(tl.int64)
    q += (z // H) * q_b + (z % H) * q_h
    k += (z // H) * k_b + (z % H) * k_h
    v += (z // H) * v_b + (z % H) * v_h
    do += ((z // H) * T * H + z % H) * V
    running = ((z // H) * T * H + z % H) * K
    b += running
    whole += running
    before += (z * N + n) * K * V
    after += (z * N + n) * K * V
    i = tl.arange(0, C)
    t, at = n * C + i, tl.program_id(1) * BK + tl.arange(0, BK)
    in_t, in_k, end = t < T, at < K, tl.minimum(n * C + C, T) - 1
    mask = in_t[:, None] & in_k[None, :]
    dtype = v.dtype.element_ty
    same = i[:, None] == i[None, :]

    dA = tl.zeros((C, C), tl.float32)
    dqs, dks = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
    through = tl.zeros((BK,), tl.float32)
    for v0 in range(0, V, BV):
        to = v0 + tl.arange(0, BV)
        in_v = to < V
        mask_v, mask_s = in_t[:, None] & in_v[None, :], in_k[:, None] & in_v[None, :]
        dos = tl.load(do + t[:, None] * (H * V) + to[None, :], mask=mask_v, other=0.0)
        vs = tl.load(v + t[:, None] * v_t + to[None, :], mask=mask_v, other=0.0)
        S = tl.load(before + at[:, None] * V + to[None, :], mask=mask_s, other=0.0)
        dS = tl.load(after + at[:, None] * V + to[None, :], mask=mask_s, other=0.0)
        dA = tl.dot(dos, tl.trans(vs), dA, input_precision=PRECISION)
        dqs = tl.dot(dos, tl.trans(S), dqs, input_precision=PRECISION)
        dks = tl.dot(vs, tl.trans(dS), dks, input_precision=PRECISION)
        through += tl.sum(S.to(tl.float32) * dS.to(tl.float32), 1)
    dA *= scale
    ddiagonal = tl.sum(tl.where(same, dA, 0.0), 1)
    scored = tl.where(i[:, None] > i[None, :], dA, 0.0).to(dtype)
    if BEFORE:  # written by the first tile
        tl.store(down + ((z // H) * T + t) * H + z % H, ddiagonal, mask=in_t & (tl.program_id(1) == 0))

    qs = tl.load(q + t[:, None] * q_t + at[None, :], mask=mask, other=0.0)
    ks = tl.load(k + t[:, None] * k_t + at[None, :], mask=mask, other=0.0)
    now, now_whole = sums(b, whole, t[:, None] * (H * K) + at[None, :], mask, EXACT)
    total, total_whole = sums(b, whole, end * (H * K) + at, in_k, EXACT)
    dks *= between(total[None, :], total_whole[None, :], now, now_whole, EXACT)
    if BEFORE:
        begun = ((i > 0) & in_t)[:, None] & in_k[None, :]
        now, now_whole = sums(b, whole, (t - 1)[:, None] * (H * K) + at[None, :], begun, EXACT)
    dqs *= scale * between(now, now_whole, 0.0, 0.0, EXACT)
    # From before the chunk to its queries, from its keys to behind it, and right through.
    later = tl.where((i[:, None] < i[None, :]) | (same & (not BEFORE)), 1.0, 0.0).to(dtype)
    earlier = tl.where(i[:, None] > i[None, :], 1.0, 0.0).to(dtype)
    dgs = tl.dot(later, (qs * dqs).to(dtype), input_precision=PRECISION)
    dgs = tl.dot(earlier, (ks * dks).to(dtype), dgs, input_precision=PRECISION)
    dgs += (through * between(total, total_whole, 0.0, 0.0, EXACT))[None, :]
    deep = depth_of(depth, z, n, N, tl.program_id(1) * BK, K, LEVELS, BK, EXACT)
    if not EXACT:
        # For pairs within a block, both sums use the same rounded products, so that they cancel exactly.
        of_query, of_key = from_middle(b, n, i, at, in_k, T, H, K, deep, limit, C, BEFORE)
        q_here, k_here = (qs * of_query).to(dtype), (ks * of_key).to(dtype)
        score = tl.where(inside(i, deep), scored, 0.0).to(dtype)
        dq_here = tl.dot(score, k_here, input_precision=PRECISION)
        dk_here = tl.dot(tl.trans(score), q_here, input_precision=PRECISION)
        arriving, leaving = q_here * dq_here, k_here * dk_here
        dgs += tl.cumsum(arriving - leaving, 0, reverse=True)
        if BEFORE:
            dgs -= arriving
        dqs += of_query * dq_here
        dks += of_key * dk_here
    for level in tl.range(deep, LEVELS, num_stages=1):
        decay = halves(b, whole, n, i, at, in_k, T, H, K, level, C, BEFORE, EXACT)
        right = ((i >> level) % 2 == 1)[:, None]
        score = tl.where(siblings(i, level), scored, 0.0).to(dtype)
        dq_here = decay * tl.dot(score, (ks * decay).to(dtype), input_precision=PRECISION)
        dk_here = decay * tl.dot(tl.trans(score), (qs * decay).to(dtype), input_precision=PRECISION)
        dqs += dq_here
        dks += dk_here
        moved = tl.where(right, qs * dq_here, ks * dk_here).to(dtype)
        dgs = tl.dot(passing(i, level, BEFORE).to(dtype), moved, dgs, input_precision=PRECISION)
    if not BEFORE:
        dqs += ddiagonal[:, None] * ks
        dks += ddiagonal[:, None] * qs
    to_k = t[:, None] * (H * K) + at[None, :]
    tl.store(dq + running + to_k, dqs.to(dq.dtype.element_ty), mask=mask)
    tl.store(dk + running + to_k, dks.to(dk.dtype.element_ty), mask=mask)
    tl.store(dg + running + to_k, dgs.to(dg.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["T", "N"])
def backward_written(
    do, q, k, b, whole, depth, own, after, dv, T, H, K, V, N, q_b, q_t, q_h, k_b, k_t, k_h, scale, limit,
    BEFORE: tl.constexpr, EXACT: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the values, one decay per channel, of one chunk of one head."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q += (z // H) * q_b + (z % H) * q_h
    k += (z // H) * k_b + (z % H) * k_h
    head = (z // H) * T * H + z % H
    b += head * K
    whole += head * K
    after += (z * N + n) * K * V
    i = tl.arange(0, C)
    t = n * C + i
    in_t, end = t < T, tl.minimum(n * C + C, T) - 1
    dtype = dv.dtype.element_ty
    A = channel_scores(
        q, k, b, whole, depth, own, head, z, n, i, T, H, K, N, q_t, k_t, limit, BEFORE, EXACT, C, LEVELS, BK, PRECISION
    )
    weights = tl.trans((scale * A).to(dtype))
    for v0 in range(0, V, BV):
        to = v0 + tl.arange(0, BV)
        in_v = to < V
        mask_v = in_t[:, None] & in_v[None, :]
        dos = tl.load(do + head * V + t[:, None] * (H * V) + to[None, :], mask=mask_v, other=0.0)
        dvs = tl.dot(weights, dos, input_precision=PRECISION)
        for k0 in range(0, K, BK):
            at = k0 + tl.arange(0, BK)
            in_k = at < K
            mask = in_t[:, None] & in_k[None, :]
            ks = tl.load(k + t[:, None] * k_t + at[None, :], mask=mask, other=0.0)
            now, now_whole = sums(b, whole, t[:, None] * (H * K) + at[None, :], mask, EXACT)
            total, total_whole = sums(b, whole, end * (H * K) + at, in_k, EXACT)
            ks = (ks * between(total[None, :], total_whole[None, :], now, now_whole, EXACT)).to(dtype)
            dS = tl.load(after + at[:, None] * V + to[None, :], mask=in_k[:, None] & in_v[None, :], other=0.0)
            dvs = tl.dot(ks, dS, dvs, input_precision=PRECISION)
        tl.store(dv + head * V + t[:, None] * (H * V) + to[None, :], dvs.to(dtype), mask=mask_v)


@triton.jit(do_not_specialize=["T", "N"])
def backward_values(
    do, q, k, v, b, whole, before, after, dv, dg, T, H, R, K, V, N,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, scale,
    EXACT: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of values and log decays of one chunk of one head with one decay per token."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q += (z // H) * q_b + (z % H // R) * q_h
    k += (z // H) * k_b + (z % H // R) * k_h
    v += (z // H) * v_b + (z % H) * v_h
    head_v, running = ((z // H) * T * H + z % H) * V, (z // H) * T * H + z % H
    before += (z * N + n) * K * V
    after += (z * N + n) * K * V
    i = tl.arange(0, C)
    t = n * C + i
    in_t, rows, end = t < T, t[:, None], tl.minimum(n * C + C, T) - 1
    dtype = v.dtype.element_ty
    now, now_whole = sums(b, whole, running + t * H, in_t, EXACT)
    total, total_whole = sums(b, whole, running + end * H, True, EXACT)
    from_start = between(now, now_whole, 0.0, 0.0, EXACT)
    to_end = between(total, total_whole, now, now_whole, EXACT)

    A = tl.zeros((C, C), tl.float32)
    for k0 in range(0, K, BK):
        at = k0 + tl.arange(0, BK)
        mask = in_t[:, None] & (at < K)[None, :]
        qs = tl.load(q + rows * q_t + at[None, :], mask=mask, other=0.0)
        ks = tl.load(k + rows * k_t + at[None, :], mask=mask, other=0.0)
        A = tl.dot(qs, tl.trans(ks), A, input_precision=PRECISION)
    decay = between(now[:, None], now_whole[:, None], now[None, :], now_whole[None, :], EXACT)
    A = tl.where(i[:, None] >= i[None, :], scale * A * decay, 0.0)
    weights = A.to(dtype)

    dA = tl.zeros((C, C), tl.float32)
    arriving, leaving = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    through = 0.0
    for v0 in range(0, V, BV):
        to = v0 + tl.arange(0, BV)
        in_v = to < V
        mask_v = in_t[:, None] & in_v[None, :]
        dos = tl.load(do + head_v + rows * (H * V) + to[None, :], mask=mask_v, other=0.0)
        vs = tl.load(v + rows * v_t + to[None, :], mask=mask_v, other=0.0)
        dA = tl.dot(dos, tl.trans(vs), dA, input_precision=PRECISION)
        read, written = tl.zeros((C, BV), tl.float32), tl.zeros((C, BV), tl.float32)
        for k0 in range(0, K, BK):
            at = k0 + tl.arange(0, BK)
            in_k = at < K
            mask, mask_s = in_t[:, None] & in_k[None, :], in_k[:, None] & in_v[None, :]
            qs = tl.load(q + rows * q_t + at[None, :], mask=mask, other=0.0)
            ks = tl.load(k + rows * k_t + at[None, :], mask=mask, other=0.0)
            S = tl.load(before + at[:, None] * V + to[None, :], mask=mask_s, other=0.0)
            dS = tl.load(after + at[:, None] * V + to[None, :], mask=mask_s, other=0.0)
            read = tl.dot(qs, S, read, input_precision=PRECISION)
            written = tl.dot(ks, dS, written, input_precision=PRECISION)
            through += tl.sum(S.to(tl.float32) * dS.to(tl.float32))
        written *= to_end[:, None]
        arriving += tl.sum(dos * read, 1)
        leaving += tl.sum(vs * written, 1)
        dvs = tl.dot(tl.trans(weights), dos, written, input_precision=PRECISION)
        tl.store(dv + head_v + rows * (H * V) + to[None, :], dvs.to(dv.dtype.element_ty), mask=mask_v)
    pairs = tl.where(i[:, None] > i[None, :], A * dA, 0.0)
    arriving = scale * from_start * arriving + tl.sum(pairs, 1) - tl.sum(pairs, 0)
    dgs = tl.sum(tl.where(i[:, None] <= i[None, :], arriving[None, :], 0.0), 1)
    dgs += tl.sum(tl.where(i[:, None] > i[None, :], leaving[None, :], 0.0), 1)
    dgs += through * between(total, total_whole, 0.0, 0.0, EXACT)
    tl.store(dg + running + t * H, dgs.to(dg.dtype.element_ty), mask=in_t)


@triton.jit(do_not_specialize=["T", "N"])
def backward_keys(
    do, q, k, v, b, whole, before, after, dq, dk, T, H, R, K, V, N, PARTS,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, scale,
    EXACT: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of queries and keys of one chunk with one decay per token, summed over a part of the heads that share
    them: dq and dk are (parts, B, T, heads of keys, K)."""
    n, part = tl.program_id(0), tl.program_id(2).to(tl.int64)
    groups = H // R
    z, part = part // PARTS, part % PARTS  # z: batch and head of keys
    at = tl.program_id(1) * BK + tl.arange(0, BK)
    in_k, i = at < K, tl.arange(0, C)
    t = n * C + i
    in_t, rows, end = t < T, t[:, None], tl.minimum(n * C + C, T) - 1
    mask = in_t[:, None] & in_k[None, :]
    dtype = v.dtype.element_ty
    qs = tl.load(q + (z // groups) * q_b + (z % groups) * q_h + rows * q_t + at[None, :], mask=mask, other=0.0)
    ks = tl.load(k + (z // groups) * k_b + (z % groups) * k_h + rows * k_t + at[None, :], mask=mask, other=0.0)
    dqs, dks = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
    for r in range(part * R // PARTS, (part + 1) * R // PARTS):
        head = (z % groups) * R + r
        batch = z // groups
        running, head_v = batch * T * H + head, (batch * T * H + head) * V
        state = ((batch * H + head) * N + n) * K * V
        now, now_whole = sums(b, whole, running + t * H, in_t, EXACT)
        total, total_whole = sums(b, whole, running + end * H, True, EXACT)
        dA = tl.zeros((C, C), tl.float32)
        dq_here, dk_here = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
        for v0 in range(0, V, BV):
            to = v0 + tl.arange(0, BV)
            in_v = to < V
            mask_v, mask_s = in_t[:, None] & in_v[None, :], in_k[:, None] & in_v[None, :]
            dos = tl.load(do + head_v + rows * (H * V) + to[None, :], mask=mask_v, other=0.0)
            vs = tl.load(v + batch * v_b + head * v_h + rows * v_t + to[None, :], mask=mask_v, other=0.0)
            S = tl.load(before + state + at[:, None] * V + to[None, :], mask=mask_s, other=0.0)
            dS = tl.load(after + state + at[:, None] * V + to[None, :], mask=mask_s, other=0.0)
            dA = tl.dot(dos, tl.trans(vs), dA, input_precision=PRECISION)
            dq_here = tl.dot(dos, tl.trans(S), dq_here, input_precision=PRECISION)
            dk_here = tl.dot(vs, tl.trans(dS), dk_here, input_precision=PRECISION)
        decay = between(now[:, None], now_whole[:, None], now[None, :], now_whole[None, :], EXACT)
        score = tl.where(i[:, None] >= i[None, :], scale * dA * decay, 0.0).to(dtype)
        dqs += (scale * between(now, now_whole, 0.0, 0.0, EXACT))[:, None] * dq_here
        dks += between(total, total_whole, now, now_whole, EXACT)[:, None] * dk_here
        dqs = tl.dot(score, ks, dqs, input_precision=PRECISION)
        dks = tl.dot(tl.trans(score), qs, dks, input_precision=PRECISION)
    batches = tl.num_programs(2) // (groups * PARTS)
    out, to_k = ((part * batches + z // groups) * T * groups + z % groups) * K, rows * (groups * K) + at[None, :]
    tl.store(dq + out + to_k, dqs.to(dq.dtype.element_ty), mask=mask)
    tl.store(dk + out + to_k, dks.to(dk.dtype.element_ty), mask=mask)
