"""The kernels of `plait.ops.narrow_attention`: one program a sequence and head walks through tiles of scores.

A fleet has thousands of sequence-head pairs, so none needs to be shared between programs: the backward pass adds up the
gradients of queries, keys and values alone, in a fixed order, without atomics. It computes the scores of a tile with
keys as rows, which is how the two products that sum over queries want them. With so little arithmetic in a tile,
addresses and masks weigh as much: what is known beforehand (head width, whether tiles divide the sequence) is a
constant, and only tiles on the diagonal are masked.

Base-2 exponentials throughout: `lse` is the logarithm to base 2 of a row's sum.

Letters: S sequences, T time, H heads, D head width (padded to a power of two, at least 16, as matrix units want it).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Rows and columns of a tile and warps that hold it, measured on an H200 at D = 8 and 128 to 1,024 tokens.
FORWARD = {"ROWS": 64, "num_warps": 4, "num_stages": 1}
BACKWARD = {"ROWS": 64, "num_warps": 4, "num_stages": 1}


@triton.jit
def _rows(x, t, T, stride_t, D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr):
    """The rows t of one head, of which x is the first."""
    d = tl.arange(0, WIDE)
    at = x + t[:, None] * stride_t + d[None, :]
    if EVEN:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)
    return tl.load(at, mask=(t < T)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _put(x, rows, t, T, stride_t, D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr):
    d = tl.arange(0, WIDE)
    at = x + t[:, None] * stride_t + d[None, :]
    if EVEN:
        tl.store(at, rows, mask=(d < D)[None, :])
    else:
        tl.store(at, rows, mask=(t < T)[:, None] & (d < D)[None, :])


@triton.jit
def _forward_tile(
    query, k, v, row, column, most, total, out, T, k_t, v_t, scale,
    D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """One tile of the running softmax."""
    key = _rows(k, column, T, k_t, D, WIDE, EVEN)
    value = _rows(v, column, T, v_t, D, WIDE, EVEN)
    score = tl.dot(query, tl.trans(key))
    if DIAGONAL:  # a key beyond the end is beyond every row that counts
        score = tl.where(column[None, :] > row[:, None], -float("inf"), score)
    elif not CAUSAL and not EVEN:
        score = tl.where(column[None, :] >= T, -float("inf"), score)
    higher = tl.maximum(most, scale * tl.max(score, 1))
    p = tl.exp2(scale * score - higher[:, None])
    shrink = tl.exp2(most - higher)
    total = total * shrink + tl.sum(p, 1)
    out = tl.dot(p.to(value.dtype), value, out * shrink[:, None])
    return higher, total, out


@triton.jit
def _forward(
    q, k, v, o, lse, q_s, q_t, k_s, k_t, v_s, v_t, T, scale, H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    h, s, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    q, k, v, o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, o + (s * T * H + h) * D
    row = block * ROWS + tl.arange(0, ROWS)
    query = _rows(q, row, T, q_t, D, WIDE, EVEN)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(0, block * ROWS if CAUSAL else T, ROWS):
        column = start + tl.arange(0, ROWS)
        most, total, out = _forward_tile(
            query, k, v, row, column, most, total, out, T, k_t, v_t, scale, D, WIDE, EVEN, CAUSAL, False
        )
    if CAUSAL:
        most, total, out = _forward_tile(
            query, k, v, row, row, most, total, out, T, k_t, v_t, scale, D, WIDE, EVEN, CAUSAL, True
        )
    _put(o, (out / total[:, None]).to(o.dtype.element_ty), row, T, H * D, D, WIDE, EVEN)
    at = lse + (s * H + h) * T + row
    tl.store(at, most + tl.log2(total), mask=row < T)


@triton.jit
def _backward_tile(
    q, o, grad_o, grad_q, lse, delta, key, value, row, column, sum_k, sum_v, T, q_t, g_t, scale, natural, LATER,
    H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
    DIAGONAL: tl.constexpr,
):  # fmt: skip
    """One tile's share of all three gradients. Rows beyond the end have no gradient and so add nothing. The first tile
    of a row finds ⟨do, o⟩; a later one loads that, and the gradient of the query that earlier ones have left."""
    query = _rows(q, row, T, q_t, D, WIDE, EVEN)
    grad = _rows(grad_o, row, T, g_t, D, WIDE, EVEN)
    row_lse = tl.load(lse + row) if EVEN else tl.load(lse + row, mask=row < T, other=0.0)
    if LATER:
        row_delta = tl.load(delta + row) if EVEN else tl.load(delta + row, mask=row < T, other=0.0)
        earlier = _rows(grad_q, row, T, H * D, D, WIDE, EVEN).to(tl.float32)
    else:
        out = _rows(o, row, T, H * D, D, WIDE, EVEN)
        row_delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
        tl.store(delta + row, row_delta, mask=row < T)
        earlier = tl.zeros((row.shape[0], WIDE), tl.float32)
    score = tl.dot(key, tl.trans(query))  # keys × queries
    p = tl.exp2(scale * score - row_lse[None, :])
    if DIAGONAL:
        p = tl.where(column[:, None] > row[None, :], 0.0, p)
    elif not CAUSAL and not EVEN:
        p = tl.where(column[:, None] >= T, 0.0, p)
    sum_v = tl.dot(p.to(grad.dtype), grad, sum_v)
    grad_score = (p * (tl.dot(value, tl.trans(grad)) - row_delta[None, :])).to(query.dtype)
    sum_k = tl.dot(grad_score, query, sum_k)
    grad_query = earlier + natural * tl.dot(tl.trans(grad_score), key)
    _put(grad_q, grad_query.to(grad_q.dtype.element_ty), row, T, H * D, D, WIDE, EVEN)
    return sum_k, sum_v


@triton.jit
def _backward(
    q, k, v, o, lse, grad_o, delta, grad_q, grad_k, grad_v, q_s, q_t, k_s, k_t, v_s, v_t, g_s, g_t, T, scale, natural,
    H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    h, s = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q, k, v, grad_o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, grad_o + s * g_s + h * D
    here = (s * T * H + h) * D
    o, grad_q, grad_k, grad_v = o + here, grad_q + here, grad_k + here, grad_v + here
    lse, delta = lse + (s * H + h) * T, delta + (s * H + h) * T
    for start in range(0, T, ROWS):
        column = start + tl.arange(0, ROWS)
        key = _rows(k, column, T, k_t, D, WIDE, EVEN)
        value = _rows(v, column, T, v_t, D, WIDE, EVEN)
        sum_k = tl.zeros((ROWS, WIDE), tl.float32)
        sum_v = tl.zeros((ROWS, WIDE), tl.float32)
        if CAUSAL:
            sum_k, sum_v = _backward_tile(
                q, o, grad_o, grad_q, lse, delta, key, value, column, column, sum_k, sum_v, T, q_t, g_t, scale, natural,
                start > 0, H, D, WIDE, EVEN, CAUSAL, True,
            )  # fmt: skip
        for first in range(start + ROWS if CAUSAL else 0, T, ROWS):
            row = first + tl.arange(0, ROWS)
            sum_k, sum_v = _backward_tile(
                q, o, grad_o, grad_q, lse, delta, key, value, row, column, sum_k, sum_v, T, q_t, g_t, scale, natural,
                start > 0, H, D, WIDE, EVEN, CAUSAL, False,
            )  # fmt: skip
        _put(grad_k, (natural * sum_k).to(grad_k.dtype.element_ty), column, T, H * D, D, WIDE, EVEN)
        _put(grad_v, sum_v.to(grad_v.dtype.element_ty), column, T, H * D, D, WIDE, EVEN)
        tl.debug_barrier()  # the next tiles read the queries' gradients that other threads may have written


def narrow_forward(q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """(o, lse as (S, H, T) in fp32)."""
    S, T, H, _ = q_STHD.shape
    q, k, v = (_dense_rows(x) for x in (q_STHD, k_STHD, v_STHD))
    o = q.new_empty(q.shape)
    lse = q.new_empty(S, H, T, dtype=torch.float32)
    grid = (H, S, triton.cdiv(T, FORWARD["ROWS"]))
    strides = [n for x in (q, k, v) for n in x.stride()[:2]]
    _forward[grid](q, k, v, o, lse, *strides, T, scale * math.log2(math.e), **_sizes(FORWARD, q, causal))
    return o, lse


def narrow_backward(
    grad_o: Tensor, q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, o: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    S, T, H, _ = q_STHD.shape
    q, k, v, g = (_dense_rows(x) for x in (q_STHD, k_STHD, v_STHD, grad_o))
    several = BACKWARD["ROWS"] < T
    grad_q = q.new_empty(q.shape, dtype=torch.float32 if several else q.dtype)  # a sum over tiles keeps its digits
    grad_k, grad_v = q.new_empty(q.shape), q.new_empty(q.shape)
    strides = [n for x in (q, k, v, g) for n in x.stride()[:2]]
    _backward[H, S](
        q, k, v, o.contiguous(), lse.contiguous(), g, torch.empty_like(lse), grad_q, grad_k, grad_v, *strides, T,
        scale * math.log2(math.e), scale, **_sizes(BACKWARD, q, causal),
    )  # fmt: skip
    return grad_q.to(q.dtype), grad_k, grad_v


def _dense_rows(x_STHD: Tensor) -> Tensor:
    """With the heads of a token side by side."""
    return x_STHD if x_STHD.stride()[2:] == (x_STHD.shape[3], 1) else x_STHD.contiguous()


def _sizes(measured: dict[str, int], q_STHD: Tensor, causal: bool) -> dict[str, Any]:
    _, T, H, D = q_STHD.shape
    wide = max(16, triton.next_power_of_2(D))
    return {**measured, "H": H, "D": D, "WIDE": wide, "EVEN": T % measured["ROWS"] == 0, "CAUSAL": causal}
