"""Norms over the last dimension: RMS (Zhang and Sennrich 2019, arXiv:1910.07467) and layer norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plait.ops.rms_norm import rms_norm


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """The model's norm: 'rms' (one weight a channel) or 'layer' (weight and bias)."""
    return RmsNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps=eps)


class HeadNorm(nn.Module):
    """RMS norm over each head's channels. The weight is one a channel and head, or one a channel shared by heads."""

    def __init__(self, heads: int, head_dim: int, *, eps: float, shared: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(head_dim) if shared else torch.ones(heads, head_dim))

    def forward(self, x_BTHD: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return rms_norm(x_BTHD, self.weight, self.eps)
        return rms_norm(x_BTHD, torch.ones_like(self.weight[0]), self.eps) * self.weight
