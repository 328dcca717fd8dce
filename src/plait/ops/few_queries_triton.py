"""The kernels of `plait.ops.narrow_attention` for few queries at arbitrary positions: they form one tile of rows, which
stays in registers while a program loops over keys; every key's gradient is written once.

Narrow heads share a program, so that it reads whole sectors of memory: rows of one head have zeros in the channels of
the other, and products leave them apart.

Letters: S sequences, T time, N queries at positions of their own, H heads, D head width (a program's heads together
padded to a power of two, at least 16, as matrix units want it).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait.ops.narrow_attention_triton import dense_rows, forward_tile, load_rows, put_rows

#: Keys of a tile: the fastest of ten on an H200 with 16 queries, D = 8 and 256 and 1,024 tokens.
TILE = {"COLUMNS": 32, "num_warps": 2, "num_stages": 3}
MOST_ROWS = 64  # of several heads together; more are of one head


@triton.jit
def load_few(x, head, n, N, stride_n, D: tl.constexpr, WIDE: tl.constexpr):
    """The rows n of a pack of heads, of which x is the first: a row has zeros in the channels of other heads."""
    d = tl.arange(0, WIDE)
    own = (d // D)[None, :] == head[:, None]
    return tl.load(x + n[:, None] * stride_n + d[None, :], mask=(n < N)[:, None] & own, other=0.0)


@triton.jit
def put_few(x, rows, head, n, N, stride_n, D: tl.constexpr, WIDE: tl.constexpr):
    d = tl.arange(0, WIDE)
    own = (d // D)[None, :] == head[:, None]
    tl.store(x + n[:, None] * stride_n + d[None, :], rows.to(x.dtype.element_ty), mask=(n < N)[:, None] & own)


@triton.jit
def forward_at(
    q, k, v, at, o, lse, q_s, q_t, k_s, k_t, v_s, v_t, N, T, scale, H: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    h, s = tl.program_id(0) * HEADS, tl.program_id(1).to(tl.int64)
    q, k, v, o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, o + (s * N * H + h) * D
    head, n = tl.arange(0, HEADS * ROWS) // ROWS, tl.arange(0, HEADS * ROWS) % ROWS
    position = tl.load(at + s * N + n, mask=n < N, other=0)
    query = load_few(q, head, n, N, q_t, D, WIDE)
    most = tl.full((HEADS * ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((HEADS * ROWS,), tl.float32)
    out = tl.zeros((HEADS * ROWS, WIDE), tl.float32)
    for start in range(0, tl.max(position, 0) + 1, COLUMNS):  # every row sees the first key, so no maximum is −∞
        column = start + tl.arange(0, COLUMNS)
        most, total, out = forward_tile(
            query, k, v, position, column, most, total, out, T, k_t, v_t, scale, HEADS * D, WIDE, EVEN, True, True,
            False,
        )  # fmt: skip
    put_few(o, out / total[:, None], head, n, N, H * D, D, WIDE)
    tl.store(lse + (s * H + h + head) * N + n, most + tl.log2(total), mask=n < N)


@triton.jit
def backward_at(
    q, k, v, at, o, lse, grad_o, grad_q, grad_k, grad_v, q_s, q_t, k_s, k_t, v_s, v_t, g_s, g_t, N, T, scale, natural,
    H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    h, s = tl.program_id(0) * HEADS, tl.program_id(1).to(tl.int64)
    q, k, v, grad_o = q + s * q_s + h * D, k + s * k_s + h * D, v + s * v_s + h * D, grad_o + s * g_s + h * D
    of_queries, of_keys = (s * N * H + h) * D, (s * T * H + h) * D
    head, n = tl.arange(0, HEADS * ROWS) // ROWS, tl.arange(0, HEADS * ROWS) % ROWS
    position = tl.load(at + s * N + n, mask=n < N, other=0)
    query = load_few(q, head, n, N, q_t, D, WIDE)
    grad = load_few(grad_o, head, n, N, g_t, D, WIDE)  # rows beyond the end have no gradient and so add nothing
    out = load_few(o + of_queries, head, n, N, H * D, D, WIDE)
    row_lse = tl.load(lse + (s * H + h + head) * N + n, mask=n < N, other=0.0)
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    sum_q = tl.zeros((HEADS * ROWS, WIDE), tl.float32)
    for start in range(0, T, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        key = load_rows(k, column, T, k_t, HEADS * D, WIDE, EVEN)
        value = load_rows(v, column, T, v_t, HEADS * D, WIDE, EVEN)
        score = scale * tl.dot(key, tl.trans(query)) - row_lse[None, :]  # keys × queries
        p = tl.where(column[:, None] > position[None, :], 0.0, tl.exp2(score))
        share_v = tl.dot(p.to(grad.dtype), grad)
        grad_score = (p * (tl.dot(value, tl.trans(grad)) - delta[None, :])).to(query.dtype)
        share_k = natural * tl.dot(grad_score, query)
        sum_q = tl.dot(tl.trans(grad_score), key, sum_q)
        put_rows(grad_k + of_keys, share_k.to(grad_k.dtype.element_ty), column, T, H * D, HEADS * D, WIDE, EVEN)
        put_rows(grad_v + of_keys, share_v.to(grad_v.dtype.element_ty), column, T, H * D, HEADS * D, WIDE, EVEN)
    put_few(grad_q + of_queries, natural * sum_q, head, n, N, H * D, D, WIDE)


def narrow_forward_at(
    q_SNHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, at_SN: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(o, lse as (S, H, N) in fp32). `at_SN` is of int32."""
    S, N, H, _ = q_SNHD.shape
    q, k, v = (dense_rows(x) for x in (q_SNHD, k_STHD, v_STHD))
    o, lse = q.new_empty(q.shape), q.new_empty(S, H, N, dtype=torch.float32)
    strides = [n for x in (q, k, v) for n in x.stride()[:2]]
    sizes = _sizes_at(q, k)
    forward_at[H // sizes["HEADS"], S](
        q, k, v, at_SN.contiguous(), o, lse, *strides, N, k.shape[1], scale * math.log2(math.e), **sizes
    )
    return o, lse


def narrow_backward_at(
    grad_o: Tensor, q_SNHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, at_SN: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    S, N, H, _ = q_SNHD.shape
    q, k, v, g = (dense_rows(x) for x in (q_SNHD, k_STHD, v_STHD, grad_o))
    grads = tuple(x.new_empty(x.shape) for x in (q, k, v))
    strides = [n for x in (q, k, v, g) for n in x.stride()[:2]]
    sizes = _sizes_at(q, k)
    backward_at[H // sizes["HEADS"], S](
        q, k, v, at_SN.contiguous(), o.contiguous(), lse.contiguous(), g, *grads, *strides, N, k.shape[1],
        scale * math.log2(math.e), scale, **sizes,
    )  # fmt: skip
    return grads[0], grads[1], grads[2]


def _sizes_at(q_SNHD: Tensor, k_STHD: Tensor) -> dict[str, Any]:
    _, N, H, D = q_SNHD.shape
    wide, rows = (max(16, triton.next_power_of_2(n)) for n in (D, N))
    heads = wide // D if wide % D == 0 else 1
    heads = heads if H % heads == 0 and heads * rows <= MOST_ROWS else 1
    sizes = {"H": H, "D": D, "WIDE": wide, "HEADS": heads, "ROWS": rows}
    return {**TILE, **sizes, "EVEN": k_STHD.shape[1] % TILE["COLUMNS"] == 0}
