"""Perplexity: what a loss in nats a token comes to, a number even where a model has diverged."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST_NATS = 700.0  # beyond, it would not be a number that JSON holds


def perplexity_of(nats: float) -> float:
    return float(perplexities(nats))


def perplexities(nats: ArrayLike) -> NDArray[np.float64]:
    """Of many losses at once."""
    return np.asarray(np.exp(np.minimum(np.asarray(nats, dtype=np.float64), MOST_NATS)))
