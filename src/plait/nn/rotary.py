"""Rotary positions (Su et al. 2021, arXiv:2104.09864): channel pairs (i, i + D/2) turn by position · θ^(−2i/D)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x_BTHD: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate every head's channels. `positions` is (T,), or (B, T) when rows stand at different places.

    Angles are computed in at least fp32 whatever the dtype of `x`: at position 100,000 half precision no longer
    tells neighbours apart.
    """
    half = x_BTHD.shape[-1] // 2
    exact = torch.promote_types(x_BTHD.dtype, torch.float32)
    index = torch.arange(half, device=x_BTHD.device, dtype=exact)
    angles = positions.to(exact)[..., None] * theta ** (-index / half)
    cos, sin = angles.cos()[..., None, :].to(x_BTHD.dtype), angles.sin()[..., None, :].to(x_BTHD.dtype)
    first, second = x_BTHD.split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
