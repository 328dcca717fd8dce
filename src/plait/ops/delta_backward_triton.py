"""The delta rule's backward kernels: the transposed systems, the states' gradients from last to first, the inputs'.

`plait.ops.delta_triton` explains how they work together and defines the letters.
"""

import triton
import triton.language as tl

from plait.ops.delta_forward_triton import decays, until_end


@triton.jit(do_not_specialize=["T", "H"])
def prepare_backward(
    q, k, g, do, inverse, Y, R, scale, T, H, qsb, qst, qsh, ksb, kst, ksh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one chunk: Y = Xᵀ (e k) and R = (P X)ᵀ do, with P the scores and e the decay up to the chunk's end."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    N = tl.num_programs(0)
    b, h = z // H, z % H
    c, kk = tl.arange(0, C), tl.arange(0, WK)
    i, j = c[:, None], c[None, :]
    t = n * C + c
    inside = t < T
    rows = inside[:, None] & (kk < K)[None, :]
    q_CK = tl.load(q + b * qsb + h * qsh + t[:, None] * qst + kk[None, :], mask=rows, other=0.0)
    k_CK = tl.load(k + b * ksb + h * ksh + t[:, None] * kst + kk[None, :], mask=rows, other=0.0)
    at = (z * N + n) * C + c
    X = tl.load(inverse + at[:, None] * C + c[None, :])
    P = tl.dot(q_CK, tl.trans(k_CK), input_precision=PRECISION) * scale
    if GATED:
        g_C = tl.load(g + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
        P *= decays(g_C, i, j, C, EXACT)
        k_CK = (k_CK * tl.exp(until_end(g, b, h, t, c, T, H, C))[:, None]).to(k.dtype.element_ty)
    P = tl.where(i >= j, P, 0.0).to(k.dtype.element_ty)
    y = tl.dot(tl.trans(X), k_CK, input_precision=PRECISION)
    tl.store(Y + at[:, None] * WK + kk[None, :], y.to(Y.dtype.element_ty))
    PX = tl.dot(P, X, input_precision=PRECISION).to(k.dtype.element_ty)
    for first in tl.static_range(0, WV, BV):
        vv = first + tl.arange(0, BV)
        do_CV = tl.load(
            do + ((b * T + t[:, None]) * H + h) * V + vv[None, :], mask=inside[:, None] & (vv < V)[None, :], other=0.0
        )
        r = tl.dot(tl.trans(PX), do_CV, input_precision=PRECISION)
        tl.store(R + at[:, None] * WV + vv[None, :], r.to(R.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "H", "N"])
def states_backward(
    q, k, beta, g, do, Y, R, dfinal, dright, after, dfirst, scale, T, H, N, qsb, qst, qsh, ksb, kst, ksh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the last chunk to the first, for BV value channels: the gradient dS of the state after each chunk, and that
    of the right-hand side of its system, R + Y dS."""
    z = tl.program_id(1).to(tl.int64)
    b, h = z // H, z % H
    c, kk, vv = tl.arange(0, C), tl.arange(0, WK), tl.program_id(0) * BV + tl.arange(0, BV)
    here = (kk < K)[:, None] & (vv < V)[None, :]
    dS = tl.load(dfinal + (z * K + kk[:, None]) * V + vv[None, :], mask=here, other=0.0).to(tl.float32)
    for back in range(N):
        n = N - 1 - back
        tl.store(after + ((z * N + n) * WK + kk[:, None]) * WV + vv[None, :], dS.to(after.dtype.element_ty))
        t = n * C + c
        at = (z * N + n) * C + c
        inside = t < T
        rows = inside[:, None] & (kk < K)[None, :]
        q_CK = tl.load(q + b * qsb + h * qsh + t[:, None] * qst + kk[None, :], mask=rows, other=0.0)
        k_CK = tl.load(k + b * ksb + h * ksh + t[:, None] * kst + kk[None, :], mask=rows, other=0.0)
        do_CV = tl.load(
            do + ((b * T + t[:, None]) * H + h) * V + vv[None, :], mask=inside[:, None] & (vv < V)[None, :], other=0.0
        ).to(tl.float32)
        y_CK = tl.load(Y + at[:, None] * WK + kk[None, :])
        r_CV = tl.load(R + at[:, None] * WV + vv[None, :]).to(tl.float32)
        r_CV += tl.dot(y_CK, dS.to(Y.dtype.element_ty), input_precision=PRECISION)
        tl.store(dright + at[:, None] * WV + vv[None, :], r_CV.to(dright.dtype.element_ty))
        if GATED == 2:  # q and k are already decayed; g contains the sums of the chunks
            dS *= tl.exp(tl.load(g + ((z * N + n) * C + C - 1) * WK + kk))[:, None]
        else:
            beta_C = tl.load(beta + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
            do_CV *= scale
            r_CV *= beta_C[:, None]
            if GATED:
                g_C = tl.load(g + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
                d_C = tl.exp(tl.cumsum(g_C, axis=0))
                dS *= tl.exp(tl.sum(g_C, axis=0))
                do_CV *= d_C[:, None]
                r_CV *= d_C[:, None]
        dS += tl.dot(tl.trans(q_CK), do_CV.to(q.dtype.element_ty), input_precision=PRECISION)
        dS -= tl.dot(tl.trans(k_CK), r_CV.to(k.dtype.element_ty), input_precision=PRECISION)
    tl.store(dfirst + (z * K + kk[:, None]) * V + vv[None, :], dS, mask=here)


@triton.jit(do_not_specialize=["T", "H", "N"])
def gradients(
    q, k, v, beta, g, do, before, after, writes, dright, dq, dk, dv, dbeta, dg, scale, T, H, N,
    qsb, qst, qsh, ksb, kst, ksh, vsb, vst, vsh,
    K: tl.constexpr, WK: tl.constexpr, V: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
    C: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For one chunk: dq, dk, dv, dβ and dg; first the contributions of pairs of its tokens, then, for BK key channels
    at a time, those of the states before and after it."""
    n, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = z // H, z % H
    c, kk = tl.arange(0, C), tl.arange(0, WK)
    i, j = c[:, None], c[None, :]
    t = n * C + c
    inside = t < T
    rows = inside[:, None] & (kk < K)[None, :]
    at = (z * N + n) * C + c
    of_q, of_k = q + b * qsb + h * qsh + t[:, None] * qst, k + b * ksb + h * ksh + t[:, None] * kst
    of_v, of_o = v + b * vsb + h * vsh + t[:, None] * vst, ((b * T + t[:, None]) * H + h) * V
    beta_C = tl.load(beta + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
    dP = tl.zeros((C, C), dtype=tl.float32)  # of the scores
    dA = tl.zeros((C, C), dtype=tl.float32)  # of the system
    dbeta_C = tl.zeros((C,), dtype=tl.float32)
    for first in range(0, WV, BV):
        vv = first + tl.arange(0, BV)
        columns = inside[:, None] & (vv < V)[None, :]
        do_CV = tl.load(do + of_o + vv[None, :], mask=columns, other=0.0)
        v_CV = tl.load(of_v + vv[None, :], mask=columns, other=0.0)
        w_CV = tl.load(writes + at[:, None] * WV + vv[None, :])
        r_CV = tl.load(dright + at[:, None] * WV + vv[None, :])
        tl.store(dv + of_o + vv[None, :], (r_CV * beta_C[:, None]).to(dv.dtype.element_ty), mask=columns)
        dbeta_C += tl.sum(r_CV.to(tl.float32) * v_CV.to(tl.float32), axis=1)
        dP += tl.dot(do_CV, tl.trans(w_CV), input_precision=PRECISION)
        dA -= tl.dot(r_CV, tl.trans(w_CV), input_precision=PRECISION)
    q_CK = tl.load(of_q + kk[None, :], mask=rows, other=0.0)
    k_CK = tl.load(of_k + kk[None, :], mask=rows, other=0.0)
    dP = tl.where(i >= j, dP * scale, 0.0)
    dA = tl.where(i > j, dA, 0.0)
    if GATED:
        g_C = tl.load(g + (b * T + t) * H + h, mask=inside, other=0.0).to(tl.float32)
        D = decays(g_C, i, j, C, EXACT)
        dP *= D
        dA *= D
    kkt = dA * tl.dot(k_CK, tl.trans(k_CK), input_precision=PRECISION)
    dbeta_C += tl.sum(kkt, axis=1)
    if GATED:
        # The decay of token m affects all pairs with j < m and i >= m. Sums on either side are taken in fp32, never as
        # the difference of two.
        pairs = kkt * beta_C[:, None]
        pairs += tl.where(i > j, dP * tl.dot(q_CK, tl.trans(k_CK), input_precision=PRECISION), 0.0)
        if EXACT:
            dg_C = tl.sum(tl.where(i > j, tl.cumsum(pairs, axis=0, reverse=True), 0.0), axis=1)
        else:
            around = tl.sum(
                tl.where(i == j, tl.sum(pairs, axis=1)[:, None] - tl.sum(pairs, axis=0)[None, :], 0.0), axis=1
            )
            dg_C = tl.cumsum(around, axis=0, reverse=True)
        d_C, e_C = tl.exp(tl.cumsum(g_C, axis=0)), tl.exp(until_end(g, b, h, t, c, T, H, C))
        dsince_C = tl.zeros((C,), dtype=tl.float32)
        duntil_C = tl.zeros((C,), dtype=tl.float32)
        kept = 0.0
    dP_half = dP.to(k.dtype.element_ty)
    dA_half = (dA * beta_C[:, None]).to(k.dtype.element_ty)
    for low in range(0, WK, BK):
        kb = low + tl.arange(0, BK)
        dq_CB = tl.zeros((C, BK), dtype=tl.float32)
        dk_CB = tl.zeros((C, BK), dtype=tl.float32)
        dread_CB = tl.zeros((C, BK), dtype=tl.float32)  # through what the chunk reads from the state before it
        for first in range(0, WV, BV):
            vv = first + tl.arange(0, BV)
            columns = inside[:, None] & (vv < V)[None, :]
            do_CV = tl.load(do + of_o + vv[None, :], mask=columns, other=0.0)
            w_CV = tl.load(writes + at[:, None] * WV + vv[None, :])
            r_CV = tl.load(dright + at[:, None] * WV + vv[None, :])
            S = tl.load(before + ((z * N + n) * WK + kb[:, None]) * WV + vv[None, :])
            dS = tl.load(after + ((z * N + n) * WK + kb[:, None]) * WV + vv[None, :])
            dq_CB += tl.dot(do_CV, tl.trans(S), input_precision=PRECISION)
            dk_CB += tl.dot(w_CV, tl.trans(dS), input_precision=PRECISION)
            dread_CB -= tl.dot(r_CV, tl.trans(S), input_precision=PRECISION)
            if GATED:
                kept += tl.sum(S.to(tl.float32) * dS.to(tl.float32))
        here = inside[:, None] & (kb < K)[None, :]
        q_CB = tl.load(of_q + kb[None, :], mask=here, other=0.0)
        k_CB = tl.load(of_k + kb[None, :], mask=here, other=0.0)
        dq_CB *= scale
        if GATED:
            dq_CB *= d_C[:, None]
            dread_CB *= d_C[:, None]
            dk_CB *= e_C[:, None]
        read_C = tl.sum(k_CB.to(tl.float32) * dread_CB, axis=1)
        dbeta_C += read_C
        if GATED:
            dsince_C += tl.sum(q_CB.to(tl.float32) * dq_CB, axis=1) + beta_C * read_C
            duntil_C += tl.sum(k_CB.to(tl.float32) * dk_CB, axis=1)
        dq_CB += tl.dot(dP_half, k_CB, input_precision=PRECISION)
        dk_CB += tl.dot(tl.trans(dP_half), q_CB, input_precision=PRECISION) + dread_CB * beta_C[:, None]
        dk_CB += tl.dot(dA_half, k_CB, input_precision=PRECISION)
        dk_CB += tl.dot(tl.trans(dA_half), k_CB, input_precision=PRECISION)
        to = ((b * T + t[:, None]) * H + h) * K + kb[None, :]
        tl.store(dq + to, dq_CB.to(dq.dtype.element_ty), mask=here)
        tl.store(dk + to, dk_CB.to(dk.dtype.element_ty), mask=here)
    tl.store(dbeta + (b * T + t) * H + h, dbeta_C, mask=inside)
    if GATED:
        dg_C += kept * tl.exp(tl.sum(g_C, axis=0)) + tl.cumsum(dsince_C, axis=0, reverse=True)
        dg_C += tl.sum(tl.where(i > j, duntil_C[None, :], 0.0), axis=1)
        tl.store(dg + (b * T + t) * H + h, dg_C, mask=inside)
