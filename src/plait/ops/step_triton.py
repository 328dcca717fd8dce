"""One token of generation on a GPU: the recurrence and the short convolution, each in one kernel instead of a dozen.

A step of generation moves few numbers, so its time is dominated by kernel launches. `plait.ops.gla` and
`plait.ops.shortconv` define what is computed. Sums are in fp32.

Letters: B batch, H heads, G heads of queries and keys, K key, V value; C channels, W width of the convolution.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from plait.ops.stacking import with_dense_rows

VALUES = 32  # value channels per program, with all keys
CHANNELS = 256


@triton.jit
def _recurrence(
    q, k, v, g, bonus, state, o, new, scale, qsb, qsg, ksb, ksg, vsb, vsh, H, R,
    K: tl.constexpr, V: tl.constexpr, WIDE: tl.constexpr, VALUES: tl.constexpr, PER_HEAD: tl.constexpr,
    BONUS: tl.constexpr,
):  # fmt: skip
    z = tl.program_id(0).to(tl.int64)
    b, h = z // H, z % H
    c, x = tl.arange(0, WIDE), tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    in_k, in_v = c < K, x < V
    inside = in_k[:, None] & in_v[None, :]
    at = (z * K + c[:, None]) * V + x[None, :]
    queries = tl.load(q + b * qsb + (h // R) * qsg + c, mask=in_k, other=0.0).to(tl.float32) * scale
    keys = tl.load(k + b * ksb + (h // R) * ksg + c, mask=in_k, other=0.0).to(tl.float32)
    values = tl.load(v + b * vsb + h * vsh + x, mask=in_v, other=0.0).to(tl.float32)
    before = tl.load(state + at, mask=inside, other=0.0)
    written = keys[:, None] * values[None, :]
    if PER_HEAD:
        after = tl.exp(tl.load(g + z).to(tl.float32)) * before + written
    else:
        decay = tl.exp(tl.load(g + z * K + c, mask=in_k, other=0.0).to(tl.float32))
        after = decay[:, None] * before + written
    tl.store(new + at, after, mask=inside)
    read = after
    if BONUS:
        read = before + tl.load(bonus + h * K + c, mask=in_k, other=0.0).to(tl.float32)[:, None] * written
    tl.store(o + z * V + x, tl.sum(queries[:, None] * read, axis=0), mask=in_v)


def gla_step_kernel(
    q_BGK: Tensor, k_BGK: Tensor, v_BHV: Tensor, g: Tensor, state_BHKV: Tensor, scale: float, bonus_HK: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(o_BHV, the new state), both in fp32."""
    B, H, K, V = state_BHKV.shape
    q, k, v = (with_dense_rows(x) for x in (q_BGK, k_BGK, v_BHV))
    state, new, o = state_BHKV.contiguous(), state_BHKV.new_empty(B, H, K, V), state_BHKV.new_empty(B, H, V)
    _recurrence[B * H, triton.cdiv(V, VALUES)](
        q, k, v, g.contiguous(), None if bonus_HK is None else bonus_HK.contiguous(), state, o, new, scale,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], H, H // q.shape[1], K=K, V=V,
        WIDE=triton.next_power_of_2(K), VALUES=VALUES, PER_HEAD=g.dim() == 2, BONUS=bonus_HK is not None, num_warps=4,
    )  # fmt: skip
    return o, new


@triton.jit
def _convolution(
    x, state, weight, bias, y, new, C, xsb,
    W: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    now = tl.load(x + b * xsb + c, mask=inside, other=0.0)
    z = tl.load(weight + c * W + W - 1, mask=inside, other=0.0).to(tl.float32) * now.to(tl.float32)
    if BIAS:
        z += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    for i in tl.static_range(W - 1):
        past = tl.load(state + (b * (W - 1) + i) * C + c, mask=inside, other=0.0)
        z += tl.load(weight + c * W + i, mask=inside, other=0.0).to(tl.float32) * past.to(tl.float32)
        if i > 0:
            tl.store(new + (b * (W - 1) + i - 1) * C + c, past, mask=inside)
    if W > 1:
        tl.store(new + (b * (W - 1) + W - 2) * C + c, now, mask=inside)
    if SILU:
        z *= tl.sigmoid(z)
    tl.store(y + b * C + c, z.to(y.dtype.element_ty), mask=inside)


def conv_step_kernel(
    x_BC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, state_BHC: Tensor, *, silu: bool
) -> tuple[Tensor, Tensor]:
    """(y_BC, the new history), in the dtype of the input."""
    (B, C), W = x_BC.shape, weight_CW.shape[1]
    x, y, new = with_dense_rows(x_BC), x_BC.new_empty(B, C), state_BHC.new_empty(state_BHC.shape)
    _convolution[B, triton.cdiv(C, CHANNELS)](
        x, state_BHC.contiguous(), weight_CW.contiguous(), bias_C, y, new, C, x.stride(0), W=W,
        BIAS=bias_C is not None, SILU=silu, CHANNELS=CHANNELS, num_warps=4,
    )  # fmt: skip
    return y, new
