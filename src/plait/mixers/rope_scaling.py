"""Rotary frequencies slowed so that a model trained on short contexts reads long ones.

A frequency ω_i = θ^(−2i/P) makes n_i = L ω_i / 2π turns within the L tokens of the training context. Slow ones, which
have not turned fully there, are divided by the factor s; fast ones are kept; between, the two are mixed.

    linear   every frequency is divided (Chen et al. 2023, arXiv:2306.15595)
    llama3   mixed linearly in the number of turns, from `low` to `high` (Llama 3.1's public code)
    yarn     mixed linearly in the channel, from where n = `high` to where n = `low`, rounded outwards; queries and keys
             grow by 0.1 ln s + 1 (Peng et al. 2023, arXiv:2309.00071)

Letters: I pairs of channels, P channels that turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RopeScaling:
    kind: str
    factor: float
    context: int  # before the scaling
    low: float  # turns within it
    high: float

    @property
    def magnitude(self) -> float:
        """What queries and keys are multiplied by."""
        return 0.1 * math.log(self.factor) + 1 if self.kind == "yarn" else 1.0

    def slowdown(self, width: int, theta: float, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What each pair's frequency is multiplied by, from 1/factor to 1."""
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
        """The pair whose frequency turns that often within the context; not a whole number."""
        return width * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(theta))
