"""The kernels of `plait.ops.narrow_attention`: one program a sequence and head walks through tiles of scores.

A fleet has thousands of sequence-head pairs, so none needs to be shared between programs: the backward pass adds up the
gradients of queries, keys and values alone, in a fixed order. It computes the scores of a tile with keys as rows, which
is how the two products that sum over queries want them. With so little arithmetic in a tile, addresses, masks and what
is added to every score weigh as much: what is known beforehand (head width, whether tiles divide the sequence) is a
constant, only tiles on the diagonal are masked, and heads that leave channels of their tile empty put them to use,
which costs nothing, for products run over all channels anyway:

* a channel of ones behind the values sums the probabilities of a row;
* −lse behind the queries and −⟨do, o⟩ behind the output's gradients, each in three parts that hold fp32's digits, meet
  ones behind keys and values: the products of a tile come as q·k − lse and dp − ⟨do, o⟩. The first tile of a row of
  tiles writes such rows down, the others read them.

Base-2 exponentials throughout: `lse` is the logarithm to base 2 of a row's sum.

Letters: S sequences, T time, H heads, D head width (padded to a power of two, at least 16, as matrix units want it).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from plait.ops.narrow_backward_triton import backward
from plait.ops.narrow_forward_triton import PARTS, forward

#: Rows and columns of a tile and warps that hold it, measured on an H200 at D = 8 and 128 to 1,024 tokens.
FORWARD = {"ROWS": 64, "num_warps": 4, "num_stages": 1}
BACKWARD = {"ROWS": 64, "num_warps": 4, "num_stages": 1, "maxnreg": 128}


def narrow_forward(q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """(o, lse as (S, H, T) in fp32)."""
    S, T, H, _ = q_STHD.shape
    q, k, v = (_dense_rows(x) for x in (q_STHD, k_STHD, v_STHD))
    o = q.new_empty(q.shape)
    lse = q.new_empty(S, H, T, dtype=torch.float32)
    grid = (H, S, triton.cdiv(T, FORWARD["ROWS"]))
    strides = [n for x in (q, k, v) for n in x.stride()[:2]]
    forward[grid](q, k, v, o, lse, *strides, T, scale * math.log2(math.e), **_sizes(FORWARD, q, causal))
    return o, lse


def narrow_backward(
    grad_o: Tensor, q_STHD: Tensor, k_STHD: Tensor, v_STHD: Tensor, o: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    S, T, H, D = q_STHD.shape
    q, k, v, g = (_dense_rows(x) for x in (q_STHD, k_STHD, v_STHD, grad_o))
    sizes = _sizes(BACKWARD, q, causal)
    added_q = q.new_empty(S, H, T, D, dtype=torch.float32)  # a sum over tiles keeps its digits
    kept_q, kept_g = (q.new_empty(S, H, T, sizes["WIDE"]) if sizes["FOLD"] else q for _ in range(2))
    grad_q, grad_k, grad_v = (q.new_empty(q.shape) for _ in range(3))
    strides = [n for x in (q, k, v, g) for n in x.stride()[:2]]
    backward[H, S](
        q, k, v, o.contiguous(), lse.contiguous(), g, torch.empty_like(lse), added_q, kept_q, kept_g, grad_q, grad_k,
        grad_v, *strides, T, scale * math.log2(math.e), scale, **sizes,
    )  # fmt: skip
    if not causal:  # no tile of a row is known to be its last
        grad_q.copy_(added_q.transpose(1, 2))
    return grad_q, grad_k, grad_v


def _dense_rows(x_STHD: Tensor) -> Tensor:
    """With the heads of a token side by side."""
    return x_STHD if x_STHD.stride()[2:] == (x_STHD.shape[3], 1) else x_STHD.contiguous()


def _sizes(measured: dict[str, int], q_STHD: Tensor, causal: bool) -> dict[str, Any]:
    _, T, H, D = q_STHD.shape
    wide = max(16, triton.next_power_of_2(D))
    even = T % measured["ROWS"] == 0
    return {**measured, "H": H, "D": D, "WIDE": wide, "EVEN": even, "CAUSAL": causal, "FOLD": D + PARTS.value <= wide}
