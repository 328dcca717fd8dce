"""The kernels that a decay per channel adds to the delta rule's: sums of g, scores, systems, outputs; then backward.

`plait.ops.channel_delta_triton` explains how they work together and defines the letters. Decays are never inverted:
blocks of 16 tokens are connected through the boundary between them, (q decayed since the boundary) · (k decayed up to
it), and within a block every pair of tokens has its own sum of g.
"""

import triton
import triton.language as tl

from plait.ops.delta_forward_triton import invert

BLOCK = tl.constexpr(16)


@triton.jit(do_not_specialize=["T", "H", "N"])
def sums(g, G, T, H, N, K: tl.constexpr, WK: tl.constexpr, C: tl.constexpr, BACK: tl.constexpr):
    """The sums of g within each chunk, up to and with a token, G_ZNCK; `BACK`: of the gradient, from a token on."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = z // H, z % H
    c, kk = tl.arange(0, C), tl.arange(0, WK)
    t = n * C + c
    rows = (t < T)[:, None] & (kk < K)[None, :]
    of_g, of_G = ((b * T + t[:, None]) * H + h) * K + kk[None, :], ((z * N + n) * C + c[:, None]) * WK + kk[None, :]
    if BACK:
        tl.store(g + of_g, tl.cumsum(tl.load(G + of_G), axis=0, reverse=True), mask=rows)
    else:
        g_CK = tl.load(g + of_g, mask=rows, other=0.0).to(tl.float32)
        tl.store(G + of_G, tl.cumsum(g_CK, axis=0))


@triton.jit(do_not_specialize=["T", "H", "N"])
def scores(
    q, k, e, G, P, A, scale, T, H, N, qsb, qst, qsh, ksb, kst, ksh, esb, est, esh,
    K: tl.constexpr, WK: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of 16 tokens i: P_ij = scale Σ_k q_i D_ij k_j for j <= i and A_ij = Σ_k e_i D_ij k_j for j < i."""
    n, z, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    b, h = z // H, z % H
    c, r, kk = tl.arange(0, C), tl.arange(0, BLOCK), tl.arange(0, WK)
    start = block * BLOCK
    i, t = start + r, n * C + start + r
    G += (z * N + n) * C * WK
    of_k = k + b * ksb + h * ksh + kk
    rows = (t < T)[:, None] & (kk < K)[None, :]
    q_RK = tl.load(q + b * qsb + h * qsh + t[:, None] * qst + kk[None, :], mask=rows, other=0.0).to(tl.float32)
    e_RK = tl.load(e + b * esb + h * esh + t[:, None] * est + kk[None, :], mask=rows, other=0.0).to(tl.float32)
    G_RK = tl.load(G + i[:, None] * WK + kk[None, :])
    border = tl.load(G + (start - 1) * WK + kk, mask=kk < tl.where(start > 0, WK, 0), other=0.0)
    since = tl.exp(G_RK - border[None, :])
    earlier = c < start
    before = (earlier & (n * C + c < T))[:, None] & (kk < K)[None, :]
    k_CK = tl.load(of_k[None, :] + (n * C + c)[:, None] * kst, mask=before, other=0.0).to(tl.float32)
    G_CK = tl.load(G + c[:, None] * WK + kk[None, :], mask=earlier[:, None] & (kk < WK)[None, :], other=0.0)
    until = tl.trans((k_CK * tl.exp(tl.where(earlier[:, None], border[None, :] - G_CK, 0.0))).to(k.dtype.element_ty))
    P_RC = tl.dot((q_RK * since).to(k.dtype.element_ty), until, input_precision=PRECISION)
    A_RC = tl.dot((e_RK * since).to(k.dtype.element_ty), until, input_precision=PRECISION)
    for j in range(BLOCK):
        at = start + j
        k_K = tl.load(of_k + (n * C + at) * kst, mask=kk < tl.where(n * C + at < T, K, 0), other=0.0).to(tl.float32)
        G_K = tl.load(G + at * WK + kk)
        pair = tl.exp(tl.where((r >= j)[:, None], G_RK - G_K[None, :], float("-inf"))) * k_K[None, :]
        here = (c == at)[None, :]
        P_RC = tl.where(here, tl.sum(q_RK * pair, axis=1)[:, None], P_RC)
        A_RC = tl.where(here & (r > j)[:, None], tl.sum(e_RK * pair, axis=1)[:, None], A_RC)
    to = ((z * N + n) * C + i[:, None]) * C + c[None, :]
    tl.store(P + to, (P_RC * scale).to(P.dtype.element_ty))
    tl.store(A + to, A_RC)


@triton.jit(do_not_specialize=["T", "H", "N"])
def solve(
    q, k, e, v, G, A, inverse, Q, E, L, W, U, scale, T, H, N,
    qsb, qst, qsh, ksb, kst, ksh, esb, est, esh, vsb, vst, vsh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    JOIN: tl.constexpr, SOLVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one chunk: Q = scale d q, E = d e and L = (decay to the end) k; with `SOLVE` also X, W = X E and U = X v."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = z // H, z % H
    c, kk = tl.arange(0, C), tl.arange(0, WK)
    t = n * C + c
    inside = t < T
    rows = inside[:, None] & (kk < K)[None, :]
    at = (z * N + n) * C + c
    to = at[:, None] * WK + kk[None, :]
    half = k.dtype.element_ty
    G_CK = tl.load(G + to)
    end_K = tl.load(G + ((z * N + n) * C + C - 1) * WK + kk)
    d_CK = tl.exp(G_CK)
    q_CK = tl.load(q + b * qsb + h * qsh + t[:, None] * qst + kk[None, :], mask=rows, other=0.0)
    tl.store(Q + to, (q_CK * d_CK * scale).to(half))
    k_CK = tl.load(k + b * ksb + h * ksh + t[:, None] * kst + kk[None, :], mask=rows, other=0.0)
    tl.store(L + to, (k_CK * tl.exp(end_K[None, :] - G_CK)).to(half))
    e_CK = tl.load(e + b * esb + h * esh + t[:, None] * est + kk[None, :], mask=rows, other=0.0)
    e_in = (e_CK * d_CK).to(half)
    tl.store(E + to, e_in)
    if SOLVE:
        X = invert(tl.load(A + at[:, None] * C + c[None, :]), C, JOIN).to(half)
        tl.store(inverse + at[:, None] * C + c[None, :], X)
        tl.store(W + to, tl.dot(X, e_in, input_precision=PRECISION).to(half))
        for first in tl.static_range(0, WV, BV):
            vv = first + tl.arange(0, BV)
            columns = inside[:, None] & (vv < V)[None, :]
            v_CV = tl.load(v + b * vsb + h * vsh + t[:, None] * vst + vv[None, :], mask=columns, other=0.0)
            u = tl.dot(X, v_CV, input_precision=PRECISION)
            tl.store(U + at[:, None] * WV + vv[None, :], u.to(half))


@triton.jit(do_not_specialize=["T", "H", "N"])
def channel_outputs(
    Q, P, before, writes, o, T, H, N, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o = Q S + P w of one chunk and BV value channels."""
    n, z = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, h = z // H, z % H
    c, kk, vv = tl.arange(0, C), tl.arange(0, WK), tl.program_id(0) * BV + tl.arange(0, BV)
    t = n * C + c
    at = ((z * N + n) * C + c)[:, None]
    S = tl.load(before + ((z * N + n) * WK + kk[:, None]) * WV + vv[None, :])
    o_CV = tl.dot(tl.load(Q + at * WK + kk[None, :]), S, input_precision=PRECISION)
    w_CV = tl.load(writes + at * WV + vv[None, :])
    o_CV += tl.dot(tl.load(P + at * C + c[None, :]), w_CV, input_precision=PRECISION)
    tl.store(
        o + ((b * T + t[:, None]) * H + h) * V + vv[None, :], o_CV.to(o.dtype.element_ty),
        mask=(t < T)[:, None] & (vv < V)[None, :],
    )  # fmt: skip


# ---- backward


@triton.jit(do_not_specialize=["T", "H", "N"])
def channel_prepare_backward(
    L, P, inverse, do, Y, R, T, H, N, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one chunk: Y = Xᵀ L and R = (P X)ᵀ do."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = z // H, z % H
    c, kk = tl.arange(0, C), tl.arange(0, WK)
    t = n * C + c
    at = ((z * N + n) * C + c)[:, None]
    half = Y.dtype.element_ty
    X = tl.load(inverse + at * C + c[None, :])
    y = tl.dot(tl.trans(X), tl.load(L + at * WK + kk[None, :]), input_precision=PRECISION)
    tl.store(Y + at * WK + kk[None, :], y.to(half))
    PX = tl.trans(tl.dot(tl.load(P + at * C + c[None, :]), X, input_precision=PRECISION).to(half))
    for first in tl.static_range(0, WV, BV):
        vv = first + tl.arange(0, BV)
        of_o = ((b * T + t[:, None]) * H + h) * V + vv[None, :]
        do_CV = tl.load(do + of_o, mask=(t < T)[:, None] & (vv < V)[None, :], other=0.0)
        tl.store(R + at * WV + vv[None, :], tl.dot(PX, do_CV, input_precision=PRECISION).to(half))


@triton.jit(do_not_specialize=["T", "H", "N"])
def channel_gradients(
    k, G, do, before, after, writes, dright, dq, de, dk, dend, dP, dA, dv, scale, T, H, N, ksb, kst, ksh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one chunk: dv, the gradients of its scores and system, and what reaches q, e, k and the chunk's whole decay by
    way of the states before and after it (in fp32)."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = z // H, z % H
    c = tl.arange(0, C)
    i, j = c[:, None], c[None, :]
    t = n * C + c
    inside = t < T
    at = ((z * N + n) * C + c)[:, None]
    of_o = ((b * T + t[:, None]) * H + h) * V
    dP_CC = tl.zeros((C, C), dtype=tl.float32)
    dA_CC = tl.zeros((C, C), dtype=tl.float32)
    for first in range(0, WV, BV):
        vv = first + tl.arange(0, BV)
        columns = inside[:, None] & (vv < V)[None, :]
        do_CV = tl.load(do + of_o + vv[None, :], mask=columns, other=0.0)
        w_CV = tl.load(writes + at * WV + vv[None, :])
        r_CV = tl.load(dright + at * WV + vv[None, :])
        tl.store(dv + of_o + vv[None, :], r_CV, mask=columns)
        dP_CC += tl.dot(do_CV, tl.trans(w_CV), input_precision=PRECISION)
        dA_CC -= tl.dot(r_CV, tl.trans(w_CV), input_precision=PRECISION)
    tl.store(dP + at * C + j, tl.where(i >= j, dP_CC * scale, 0.0).to(dP.dtype.element_ty))
    tl.store(dA + at * C + j, tl.where(i > j, dA_CC, 0.0).to(dA.dtype.element_ty))
    for low in range(0, WK, BK):
        kk = low + tl.arange(0, BK)
        dq_CK = tl.zeros((C, BK), dtype=tl.float32)
        dk_CK = tl.zeros((C, BK), dtype=tl.float32)
        de_CK = tl.zeros((C, BK), dtype=tl.float32)
        kept_K = tl.zeros((BK,), dtype=tl.float32)
        for first in range(0, WV, BV):
            vv = first + tl.arange(0, BV)
            do_CV = tl.load(do + of_o + vv[None, :], mask=inside[:, None] & (vv < V)[None, :], other=0.0)
            w_CV = tl.load(writes + at * WV + vv[None, :])
            r_CV = tl.load(dright + at * WV + vv[None, :])
            S = tl.load(before + ((z * N + n) * WK + kk[:, None]) * WV + vv[None, :])
            dS = tl.load(after + ((z * N + n) * WK + kk[:, None]) * WV + vv[None, :])
            dq_CK += tl.dot(do_CV, tl.trans(S), input_precision=PRECISION)
            dk_CK += tl.dot(w_CV, tl.trans(dS), input_precision=PRECISION)
            de_CK -= tl.dot(r_CV, tl.trans(S), input_precision=PRECISION)
            kept_K += tl.sum(S.to(tl.float32) * dS.to(tl.float32), axis=1)
        G_CK = tl.load(G + at * WK + kk[None, :])
        end_K = tl.load(G + ((z * N + n) * C + C - 1) * WK + kk)
        rows = inside[:, None] & (kk < K)[None, :]
        k_CK = tl.load(k + b * ksb + h * ksh + t[:, None] * kst + kk[None, :], mask=rows, other=0.0).to(tl.float32)
        d_CK = tl.exp(G_CK)
        dk_CK *= tl.exp(end_K[None, :] - G_CK)
        tl.store(dq + at * WK + kk[None, :], dq_CK * d_CK * scale)
        tl.store(de + at * WK + kk[None, :], de_CK * d_CK)
        tl.store(dk + at * WK + kk[None, :], dk_CK)
        tl.store(dend + (z * N + n) * WK + kk, kept_K * tl.exp(end_K) + tl.sum(k_CK * dk_CK, axis=0))


@triton.jit(do_not_specialize=["T", "H", "N"])
def pair_gradients(
    q, k, e, G, dP, dA, dq_state, de_state, dk_state, dend, dq, de, dk, dG, T, H, N,
    qsb, qst, qsh, ksb, kst, ksh, esb, est, esh,
    K: tl.constexpr, WK: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of 16 tokens: dq, de, dk and dG, with what goes through pairs of tokens. As keys they are connected to later
    blocks through the boundary after them, as queries to earlier blocks through the boundary before them."""
    n, z, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    b, h = z // H, z % H
    c, r, kk = tl.arange(0, C), tl.arange(0, BLOCK), tl.arange(0, WK)
    start = block * BLOCK
    i, t, t_C = start + r, n * C + start + r, n * C + c
    half = k.dtype.element_ty
    first = (z * N + n) * C
    G += first * WK
    dP += first * C
    dA += first * C
    own = (first + i[:, None]) * WK + kk[None, :]
    in_K = (kk < K)[None, :]
    rows = (t < T)[:, None] & in_K
    of_q, of_k, of_e = q + b * qsb + h * qsh + kk, k + b * ksb + h * ksh + kk, e + b * esb + h * esh + kk
    G_RK = tl.load(G + i[:, None] * WK + kk[None, :])
    G_CK = tl.load(G + c[:, None] * WK + kk[None, :])
    # The tokens as queries, and the keys of earlier blocks.
    front = tl.load(G + (start - 1) * WK + kk, mask=kk < tl.where(start > 0, WK, 0), other=0.0)[None, :]
    earlier = (c < start)[:, None]
    k_CK = tl.load(of_k[None, :] + t_C[:, None] * kst, mask=earlier & (t_C < T)[:, None] & in_K, other=0.0).to(
        tl.float32
    )
    until = (k_CK * tl.exp(tl.where(earlier, front - G_CK, float("-inf")))).to(half)
    since = tl.exp(G_RK - front)
    dP_RC = tl.load(dP + i[:, None] * C + c[None, :])
    dA_RC = tl.load(dA + i[:, None] * C + c[None, :])
    dq_RK = tl.load(dq_state + own) + since * tl.dot(dP_RC, until, input_precision=PRECISION)
    de_RK = tl.load(de_state + own) + since * tl.dot(dA_RC, until, input_precision=PRECISION)
    # The tokens as keys, and the queries of later blocks.
    behind = tl.load(G + (start + BLOCK - 1) * WK + kk)[None, :]
    later = (c >= start + BLOCK)[:, None]
    here = later & (t_C < T)[:, None] & in_K
    passed = tl.exp(tl.where(later, G_CK - behind, float("-inf")))
    q_CK = (tl.load(of_q[None, :] + t_C[:, None] * qst, mask=here, other=0.0).to(tl.float32) * passed).to(half)
    e_CK = (tl.load(of_e[None, :] + t_C[:, None] * est, mask=here, other=0.0).to(tl.float32) * passed).to(half)
    dP_CR = tl.load(dP + c[None, :] * C + i[:, None])
    dA_CR = tl.load(dA + c[None, :] * C + i[:, None])
    dk_RK = tl.dot(dP_CR, q_CK, input_precision=PRECISION) + tl.dot(dA_CR, e_CK, input_precision=PRECISION)
    dk_RK = tl.load(dk_state + own) + tl.exp(behind - G_RK) * dk_RK
    # Pairs within the block. A token's pair with itself has no decay: it is added after dG, where it would cancel.
    q_RK = tl.load(of_q[None, :] + t[:, None] * qst, mask=rows, other=0.0).to(tl.float32)
    e_RK = tl.load(of_e[None, :] + t[:, None] * est, mask=rows, other=0.0).to(tl.float32)
    k_RK = tl.load(of_k[None, :] + t[:, None] * kst, mask=rows, other=0.0).to(tl.float32)
    for j in range(BLOCK):
        at = start + j
        k_K = tl.load(of_k + (n * C + at) * kst, mask=kk < tl.where(n * C + at < T, K, 0), other=0.0).to(tl.float32)
        G_K = tl.load(G + at * WK + kk)
        pair = tl.exp(tl.where((r > j)[:, None], G_RK - G_K[None, :], float("-inf")))
        dP_R = tl.load(dP + i * C + at).to(tl.float32)[:, None]
        dA_R = tl.load(dA + i * C + at).to(tl.float32)[:, None]
        dq_RK += dP_R * pair * k_K[None, :]
        de_RK += dA_R * pair * k_K[None, :]
        dk_K = tl.sum(pair * (dP_R * q_RK + dA_R * e_RK), axis=0)
        dk_RK += tl.where((r == j)[:, None], dk_K[None, :], 0.0)
    dG_RK = q_RK * dq_RK + e_RK * de_RK - k_RK * dk_RK
    self_R = tl.load(dP + i * C + i).to(tl.float32)[:, None]
    dq_RK += self_R * k_RK
    dk_RK += self_R * q_RK
    end_K = tl.load(dend + (z * N + n) * WK + kk)
    tl.store(dG + own, dG_RK + tl.where((i == C - 1)[:, None], end_K[None, :], 0.0))
    to = ((b * T + t[:, None]) * H + h) * K + kk[None, :]
    tl.store(dq + to, dq_RK.to(dq.dtype.element_ty), mask=rows)
    tl.store(de + to, de_RK.to(de.dtype.element_ty), mask=rows)
    tl.store(dk + to, dk_RK.to(dk.dtype.element_ty), mask=rows)
