"""Norms over the last dimension: RMS (Zhang and Sennrich 2019, arXiv:1910.07467) and layer norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """The model's norm: 'rms' (one weight a channel) or 'layer' (weight and bias)."""
    return nn.RMSNorm(width, eps=eps) if kind == "rms" else nn.LayerNorm(width, eps=eps)


class HeadNorm(nn.Module):
    """RMS norm over each head's channels. The weight is one a channel and head, or one a channel shared by heads."""

    def __init__(self, heads: int, head_dim: int, *, eps: float, shared: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(head_dim) if shared else torch.ones(heads, head_dim))

    def forward(self, x_BTHD: Tensor) -> Tensor:
        return F.rms_norm(x_BTHD, x_BTHD.shape[-1:], eps=self.eps) * self.weight
