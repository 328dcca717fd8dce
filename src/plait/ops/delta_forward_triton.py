"""The delta rule's forward kernels: a chunk's triangular system, the states at the chunks' borders, the outputs.

`plait.ops.delta_triton` explains how they work together and defines the letters.
"""

import triton
import triton.language as tl


@triton.jit
def invert(A, C: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)⁻¹ for a strictly lower triangular A_CC, in fp32.

    By substitution in the blocks of 16 on the diagonal, all at once, then by joining blocks in pairs:
    [[P, 0], [Q, R]]⁻¹ = [[P⁻¹, 0], [−R⁻¹ Q P⁻¹, R⁻¹]]. Both are as stable as substitution, even for similar keys; a
    product of powers of A would not be.
    """
    BLOCKS: tl.constexpr = C // 16
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    by_block = tl.reshape(tl.where(i // 16 == j // 16, A, 0.0), (C, BLOCKS, 16))
    diagonal = tl.reshape(tl.sum(by_block, axis=1), (BLOCKS, 16, 16))
    row, column = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    X = tl.where(row == column, 1.0, tl.zeros((BLOCKS, 16, 16), dtype=tl.float32))
    for r in range(15):  # row r of the inverse is done: eliminate it from those below
        done = tl.sum(tl.where(row == r, X, 0.0), axis=1)
        share = tl.sum(tl.where(column == r, diagonal, 0.0), axis=2)
        X -= share[:, :, None] * done[:, None, :]
    wide = tl.broadcast_to(tl.reshape(X, (C, 1, 16)), (C, BLOCKS, 16))
    inverse = tl.where(i // 16 == j // 16, tl.reshape(wide, (C, C)), 0.0)
    if C > 16:
        inverse = _join(inverse, A, i, j, 16, PRECISION)
    if C > 32:
        inverse = _join(inverse, A, i, j, 32, PRECISION)
    return inverse


@triton.jit
def _join(inverse, A, i, j, HALF: tl.constexpr, PRECISION: tl.constexpr):
    between = tl.where((i // (2 * HALF) == j // (2 * HALF)) & (i // HALF != j // HALF), A, 0.0)
    moved = tl.dot(between, inverse, input_precision=PRECISION)
    return inverse - tl.dot(inverse, moved, input_precision=PRECISION)


@triton.jit
def decays(g, i, j, C: tl.constexpr, EXACT: tl.constexpr):
    """exp Σ_{j<m<=i} g_m for j <= i, otherwise 0: in fp32 without differences of running sums, which would lose digits
    after a strong decay."""
    if EXACT:
        log = tl.cumsum(tl.where(i > j, g[:, None] + tl.zeros((C, C), dtype=tl.float32), 0.0), axis=0)
    else:
        total = tl.cumsum(g, axis=0)
        log = total[:, None] - total[None, :]
    return tl.exp(tl.where(i >= j, log, float("-inf")))


@triton.jit
def until_end(g, b, h, t, c, T, H, C: tl.constexpr):
    """Σ_{m>t} g_m up to the end of the chunk."""
    following = tl.load(g + (b * T + t + 1) * H + h, mask=(t + 1 < T) & (c + 1 < C), other=0.0)
    return tl.cumsum(following.to(tl.float32), axis=0, reverse=True)


@triton.jit(do_not_specialize=["T", "H"])
def prepare(
    k, v, beta, g, inverse, W, U, T, H, ksb, kst, ksh, vsb, vst, vsh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr, JOIN: tl.constexpr,
):  # fmt: skip
    """For one chunk: the inverse X of its system, W = X (β d k) and U = X (β v)."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    N = tl.num_programs(0)
    b, h = z // H, z % H
    c, kk = tl.arange(0, C), tl.arange(0, WK)
    i, j = c[:, None], c[None, :]
    t = n * C + c
    inside = t < T
    k_CK = tl.load(
        k + b * ksb + h * ksh + t[:, None] * kst + kk[None, :], mask=inside[:, None] & (kk < K)[None, :], other=0.0
    )
    beta_C = tl.load(beta + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
    A = tl.dot(k_CK, tl.trans(k_CK), input_precision=PRECISION) * beta_C[:, None]
    weight = beta_C
    if GATED:
        g_C = tl.load(g + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
        A *= decays(g_C, i, j, C, EXACT)
        weight = beta_C * tl.exp(tl.cumsum(g_C, axis=0))
    X = invert(tl.where(i > j, A, 0.0), C, JOIN).to(k.dtype.element_ty)
    at = (z * N + n) * C + c
    tl.store(inverse + at[:, None] * C + c[None, :], X)
    k_in = (k_CK * weight[:, None]).to(k.dtype.element_ty)
    w = tl.dot(X, k_in, input_precision=PRECISION)
    tl.store(W + at[:, None] * WK + kk[None, :], w.to(W.dtype.element_ty))
    for first in tl.static_range(0, WV, BV):
        vv = first + tl.arange(0, BV)
        v_CV = tl.load(
            v + b * vsb + h * vsh + t[:, None] * vst + vv[None, :], mask=inside[:, None] & (vv < V)[None, :], other=0.0
        )
        u = tl.dot(X, (v_CV * beta_C[:, None]).to(v.dtype.element_ty), input_precision=PRECISION)
        tl.store(U + at[:, None] * WV + vv[None, :], u.to(U.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "H", "N"])
def states(
    k, g, W, U, first, writes, before, final, T, H, N, ksb, kst, ksh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    GATED: tl.constexpr, FIRST: tl.constexpr, AGAIN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From chunk to chunk, for BV value channels: the state before each chunk, and what its tokens write, U − W S.
    `AGAIN`: the writes are already known, and only the states are recomputed."""
    z = tl.program_id(1).to(tl.int64)
    b, h = z // H, z % H
    c, kk, vv = tl.arange(0, C), tl.arange(0, WK), tl.program_id(0) * BV + tl.arange(0, BV)
    here = (kk < K)[:, None] & (vv < V)[None, :]
    S = tl.zeros((WK, BV), dtype=tl.float32)
    if FIRST:
        S += tl.load(first + (z * K + kk[:, None]) * V + vv[None, :], mask=here, other=0.0)
    for n in range(N):
        tl.store(before + ((z * N + n) * WK + kk[:, None]) * WV + vv[None, :], S.to(before.dtype.element_ty))
        t = n * C + c
        at = (z * N + n) * C + c
        k_CK = tl.load(
            k + b * ksb + h * ksh + t[:, None] * kst + kk[None, :],
            mask=(t < T)[:, None] & (kk < K)[None, :], other=0.0,
        )  # fmt: skip
        if AGAIN:
            w_CV = tl.load(writes + at[:, None] * WV + vv[None, :]).to(tl.float32)
        else:
            w_CK = tl.load(W + at[:, None] * WK + kk[None, :])
            w_CV = tl.load(U + at[:, None] * WV + vv[None, :]).to(tl.float32)
            w_CV -= tl.dot(w_CK, S.to(W.dtype.element_ty), input_precision=PRECISION)
            tl.store(writes + at[:, None] * WV + vv[None, :], w_CV.to(writes.dtype.element_ty))
        if GATED == 2:  # k is already decayed up to the end; g contains the sums of the chunks
            S *= tl.exp(tl.load(g + ((z * N + n) * C + C - 1) * WK + kk))[:, None]
        elif GATED:
            g_C = tl.load(g + (b * T + t) * H + h, mask=t < T, other=0.0).to(tl.float32)
            w_CV *= tl.exp(until_end(g, b, h, t, c, T, H, C))[:, None]
            S *= tl.exp(tl.sum(g_C, axis=0))
        S += tl.dot(tl.trans(k_CK), w_CV.to(k.dtype.element_ty), input_precision=PRECISION)
    if not AGAIN:
        tl.store(final + (z * K + kk[:, None]) * V + vv[None, :], S, mask=here)


@triton.jit(do_not_specialize=["T", "H", "N"])
def outputs(
    q, k, g, before, writes, o, scale, T, H, N, qsb, qst, qsh, ksb, kst, ksh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o = scale (d q S + (q kᵀ ∘ D) w) of one chunk and BV value channels."""
    n, z = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, h = z // H, z % H
    c, kk, vv = tl.arange(0, C), tl.arange(0, WK), tl.program_id(0) * BV + tl.arange(0, BV)
    i, j = c[:, None], c[None, :]
    t = n * C + c
    inside = t < T
    rows = inside[:, None] & (kk < K)[None, :]
    q_CK = tl.load(q + b * qsb + h * qsh + t[:, None] * qst + kk[None, :], mask=rows, other=0.0)
    k_CK = tl.load(k + b * ksb + h * ksh + t[:, None] * kst + kk[None, :], mask=rows, other=0.0)
    S = tl.load(before + ((z * N + n) * WK + kk[:, None]) * WV + vv[None, :])
    w_CV = tl.load(writes + ((z * N + n) * C + c)[:, None] * WV + vv[None, :])
    o_CV = tl.dot(q_CK, S, input_precision=PRECISION)
    P = tl.dot(q_CK, tl.trans(k_CK), input_precision=PRECISION)
    if GATED:
        g_C = tl.load(g + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
        P *= decays(g_C, i, j, C, EXACT)
        o_CV *= tl.exp(tl.cumsum(g_C, axis=0))[:, None]
    P = tl.where(i >= j, P, 0.0)
    o_CV += tl.dot(P.to(k.dtype.element_ty), w_CV, input_precision=PRECISION)
    tl.store(
        o + ((b * T + t[:, None]) * H + h) * V + vv[None, :], (o_CV * scale).to(o.dtype.element_ty),
        mask=inside[:, None] & (vv < V)[None, :],
    )  # fmt: skip
