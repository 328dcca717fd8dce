"""Rotary position embeddings: queries and keys are rotated by their positions, and scaled to longer contexts.

Pair i of a head's P rotated channels turns by the angle t ω_i at position t, ω_i = θ^(−2i/P) (Su et al. 2021,
arXiv:2104.09864).

Scaling lets a model trained on L tokens read longer contexts. Pair i makes n_i = L ω_i / 2π full turns within the L
training tokens. Frequencies of slow pairs, which make less than a full turn there, are divided by the factor s; fast
ones are kept; those in between are interpolated.

    linear   every frequency is divided (Chen et al. 2023, arXiv:2306.15595)
    llama3   interpolated linearly in the number of turns, from `low` to `high` (Llama 3.1's public code)
    yarn     interpolated linearly in the channel, from where n = `high` to where n = `low`, rounded outwards; queries
             and keys are multiplied by 0.1 ln s + 1 (Peng et al. 2023, arXiv:2309.00071)

Letters: B batch, T time, H heads, P rotated channels of a head, I = P / 2 pairs, A heads of queries, keys and values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait.ops.elementwise import fused_takes, rotary_angles, rotate, split_recorded, split_rotated
from plait.ops.paths import has_kernels, in_graph


@dataclass(frozen=True)
class RopeScaling:
    kind: str  # "linear", "llama3" or "yarn"
    factor: float  # s
    context: int  # L, the training context
    low: float  # frequencies with up to so many turns within L are divided by s
    high: float  # those with at least so many are kept

    @property
    def magnitude(self) -> float:
        """The factor that queries and keys are multiplied by."""
        return 0.1 * math.log(self.factor) + 1 if self.kind == "yarn" else 1.0

    def slowdown(self, width: int, theta: float, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The factor of each pair's frequency, (I,): from 1 / s (divided) to 1 (kept)."""
        index_I = torch.arange(width // 2, dtype=dtype, device=device)
        if self.kind == "linear":
            kept_I = torch.zeros_like(index_I)
        elif self.kind == "llama3":
            turns_I = self.context / (2 * math.pi) * theta ** (-2 * index_I / width)
            kept_I = ((turns_I - self.low) / (self.high - self.low)).clamp(0, 1)
        else:
            first = max(math.floor(self._channel(self.high, width, theta)), 0)
            last = min(math.ceil(self._channel(self.low, width, theta)), width - 1)
            kept_I = 1 - ((index_I - first) / max(last - first, 1e-3)).clamp(0, 1)
        return kept_I + (1 - kept_I) / self.factor

    def _channel(self, turns: float, width: int, theta: float) -> float:
        """Fractional index of the pair that makes so many turns within the training context."""
        return width * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(theta))


class Rotary(nn.Module):
    """Rotates queries and keys, (B, T, H, P), by their positions.

    Cosines and sines of the first positions are cached by dtype and device, so that a compiled graph reads them instead
    of computing a power, a sine and a cosine for every channel.
    """

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        self.head_dim, self.theta, self.scaling = head_dim, theta, scaling
        self._cache: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def forward(self, x_BTHD: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate by `positions`, (B, T); without them by 0, 1, 2 …"""
        if positions is None:
            cos, sin = self._first_angles(x_BTHD.shape[1], x_BTHD.dtype, x_BTHD.device)
        else:
            cos, sin = self._angles(positions, x_BTHD.dtype)
        return rotate(x_BTHD, cos, sin)

    def remember(self, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """Cache the angles of the first `tokens` positions, before a graph is compiled."""
        for kind in {dtype, torch.promote_types(dtype, torch.float32)}:
            self._first_angles(tokens, kind, device)

    def split(self, packed_BTAP: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Rotated queries and keys, and values, of a joint projection by one fused kernel; None if it is not
        available."""
        if not has_kernels(packed_BTAP) or packed_BTAP.shape[-1] != self.head_dim:
            return None
        if not fused_takes(packed_BTAP) and not split_recorded(packed_BTAP):
            return None
        self.remember(packed_BTAP.shape[1], packed_BTAP.dtype, packed_BTAP.device)  # for a graph without this kernel
        cos, sin = self._first_angles(packed_BTAP.shape[1], torch.float32, packed_BTAP.device)
        return split_rotated(packed_BTAP, cos.flatten(1), sin.flatten(1), heads)

    def _first_angles(self, tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        angles = self._cache.get((dtype, device))
        if angles is None or len(angles[0]) < tokens:
            angles = self._angles(torch.arange(tokens, device=device), dtype)
            if not in_graph() and device.type != "meta":  # graphs are traced with tensors that have no values
                self._cache[dtype, device] = angles
        cos, sin = angles
        return cos[:tokens], sin[:tokens]

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines at these positions, scaled where the context is."""
        if self.scaling is None:
            return rotary_angles(positions, self.head_dim, self.theta, dtype)
        exact = torch.promote_types(dtype, torch.float32)
        slowed_I = self.scaling.slowdown(self.head_dim, self.theta, exact, positions.device)
        cos, sin = rotary_angles(positions, self.head_dim, self.theta, dtype, slowed_I)
        return self.scaling.magnitude * cos, self.scaling.magnitude * sin
