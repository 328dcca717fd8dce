"""Rotary positions: channel pairs (i, i + D/2) turn by position · θ^(−2i/D) (Su et al. 2021, arXiv:2104.09864).

A rotation is linear and its adjoint is the rotation back, so the fast path needs no saved tensor. It multiplies by
tables as wide as all heads together and reads partners by a permutation: loops over the few channels of half a narrow
head would take most of the time.

Letters: B batch, T time, H heads, D head width, I = D/2 pairs, C = H·D channels; M stacked models (vmap).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plait.ops.paths import plain_wanted
from plait.ops.stacked import StackedFunction, cache_blocks


def rotary_angles(positions: Tensor, width: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of every position and pair as (…, 1, I), ready to broadcast over heads; `positions` of any shape.

    Computed in at least fp32 whatever the dtype they are for: at position 100,000 half precision no longer tells
    neighbours apart.
    """
    half = width // 2
    exact = torch.promote_types(dtype, torch.float32)
    index_I = torch.arange(half, device=positions.device, dtype=exact)
    angles = positions.to(exact)[..., None, None] * theta ** (-index_I / half)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_reference(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The definition. `cos` and `sin` are (T, 1, I), or (B, T, 1, I) when rows stand at different places."""
    first, second = x_BTHD.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same, fast on a CPU. Rows apart occur in generation, where T is short; a GPU's caches need no blocks."""
    H, D = x_BTHD.shape[-2:]
    if plain_wanted() or cos.dim() > 3 or x_BTHD.is_cuda:
        return rotate_reference(x_BTHD, cos, sin)
    cos_TC = torch.cat([cos, cos], dim=-1).expand(-1, H, D).flatten(-2)
    sin_TC = torch.cat([-sin, sin], dim=-1).expand(-1, H, D).flatten(-2)
    y_MBTC: Tensor = _Rotate.apply(x_BTHD.flatten(-2)[None], cos_TC[None], sin_TC[None], D)[0]
    return y_MBTC[0].view(x_BTHD.shape)


class _Rotate(StackedFunction):
    """(x, cos, sin) -> (y,), the heads' channels side by side; sin carries the sign of the first half."""

    @staticmethod
    def forward(x_MBTC: Tensor, cos_MTC: Tensor, sin_MTC: Tensor, head: int) -> Any:
        M, B, T, C = x_MBTC.shape
        partner_C = torch.arange(C, device=x_MBTC.device).view(-1, 2, head // 2).flip(1).flatten()
        y_MBTC = x_MBTC.new_empty(x_MBTC.shape)
        for m, b in cache_blocks(M, B, T * C, x_MBTC.device):
            x, y = x_MBTC[m, b], y_MBTC[m, b]
            torch.mul(x, cos_MTC[m, None], out=y)
            y.addcmul_(x[..., partner_C], sin_MTC[m, None])
        return (y_MBTC,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor]) -> None:
        del output
        ctx.save_for_backward(*inputs[1:3])
        ctx.head = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        cos_MTC, sin_MTC = ctx.saved_tensors
        (grad_x,) = _Rotate.apply(grad_y, cos_MTC, -sin_MTC, ctx.head)
        return grad_x, None, None, None
