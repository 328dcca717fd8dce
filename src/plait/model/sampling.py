"""From logits to the next token: the likeliest, or a draw from what temperature, top-k and top-p leave.

Top-p ("nucleus"): Holtzman et al. 2020, arXiv:1904.09751 (§3.1).

Letters: B batch, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.core.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. The three cuts apply in this order: temperature, then top-k, then top-p."""

    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int = 0  # only the k likeliest; 0: all
    top_p: float = 1.0  # only the likeliest whose probabilities first sum to p

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature}: must be 0 (greedy) or a positive number.")
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k}: must be 0 (no limit) or positive.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p}: must be above 0 and at most 1.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


def choose(logits_BV: Tensor, sampling: Sampling, draws_B: Tensor | None) -> Tensor:
    """One token per row. `draws_B` are uniform numbers in [0, 1), each from its row's own stream (None if greedy).

    A row is read from its own logits and draw alone, in float64, so its neighbours cannot change it.
    """
    if sampling.greedy:
        return logits_BV.argmax(-1)
    assert draws_B is not None
    p_BV, order_BV = kept_probabilities(logits_BV, sampling)
    cumulative_BV = p_BV.cumsum(-1)
    # The draw is scaled to what was kept; `right` passes over tokens of probability zero.
    aim_B1 = draws_B.to(p_BV)[:, None] * cumulative_BV[:, -1:]
    place_B1 = torch.searchsorted(cumulative_BV, aim_B1, right=True)
    last_B1 = (p_BV > 0).sum(-1, keepdim=True) - 1  # rounding may push an aim past the end
    return order_BV.gather(-1, torch.minimum(place_B1, last_B1))[:, 0]


def kept_probabilities(logits_BV: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Probabilities in falling order, zero where a cut removes a token, and the tokens they belong to."""
    # A stable order: of equal logits the lower token comes first, on every device.
    sorted_BV, order_BV = (logits_BV.double() / sampling.temperature).sort(dim=-1, descending=True, stable=True)
    p_BV = sorted_BV.softmax(-1)
    if 0 < sampling.top_k < p_BV.shape[-1]:
        p_BV[:, sampling.top_k :] = 0.0
        p_BV = p_BV / p_BV.sum(-1, keepdim=True)
    if sampling.top_p < 1:
        before_BV = p_BV.cumsum(-1) - p_BV
        p_BV = p_BV.masked_fill(before_BV >= sampling.top_p, 0.0)
    return p_BV, order_BV
