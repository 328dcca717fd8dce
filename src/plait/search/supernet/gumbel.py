"""How much of each choice goes into a layer: Gumbel softmax (Jang et al. 2017, arXiv:1611.01144).

    m = softmax((logits + g) / temperature),   g = -log(-log(u)),   u uniform in (0, 1)

With noise g the largest entry of logits + g is choice i with probability softmax(logits)_i; the lower the temperature,
the nearer m comes to that choice alone.

Letters: L layers, K choices of a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plait.core.random_streams import seed_of


def noise(seed: int, step: int, shape: tuple[int, ...]) -> Tensor:
    """Gumbel noise of one step: the same whenever and wherever it is asked for."""
    stream = torch.Generator().manual_seed(seed_of(f"gumbel/{seed}/{step}"))
    exponential = torch.empty(shape, dtype=torch.float64).exponential_(generator=stream)
    return -exponential.log().float()


def mixture(logits_LK: Tensor, noise_LK: Tensor, temperature: float, sampling: str) -> Tensor:
    """m, its rows summing to one. Choices that a layer does not have are -inf in the logits and 0 here."""
    soft_LK = ((logits_LK + noise_LK.to(logits_LK.device)) / temperature).softmax(dim=1)
    if sampling == "soft":
        return soft_LK
    chosen_LK = torch.zeros_like(soft_LK).scatter(1, soft_LK.argmax(dim=1, keepdim=True), 1.0)
    # The difference is exactly zero: the values are those of the one choice, the gradient is the soft one's.
    return chosen_LK + (soft_LK - soft_LK.detach())
