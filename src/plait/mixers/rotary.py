"""Rotary positions with remembered angles."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plait.ops.rotary import rotary_angles, rotate


class Rotary(nn.Module):
    """Turns queries and keys by their positions.

    The angles of a sequence's first tokens are remembered by dtype and device: a compiled graph then reads them where
    it would compute a power, a sine and a cosine for every channel.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        self._known: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def forward(self, x_BTHD: Tensor, positions: Tensor | None = None) -> Tensor:
        """Turn by `positions`, or by 0, 1, 2 … when none are given."""
        if positions is None:
            cos, sin = self._first(x_BTHD.shape[1], x_BTHD.dtype, x_BTHD.device)
        else:
            cos, sin = rotary_angles(positions, self.head_dim, self.theta, x_BTHD.dtype)
        return rotate(x_BTHD, cos, sin)

    def _first(self, tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        known = self._known.get((dtype, device))
        if known is None or len(known[0]) < tokens:
            known = rotary_angles(torch.arange(tokens, device=device), self.head_dim, self.theta, dtype)
            if not torch.compiler.is_compiling() and device.type != "meta":
                self._known[dtype, device] = known
        return known[0][:tokens], known[1][:tokens]
