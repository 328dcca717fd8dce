"""How well a cheap proxy ranks models: rank correlation, and how much of the true top it finds.

LiteTransformerSearch, Sec. 4 and App. J (Javaheripi et al. 2022, arXiv:2203.02094): SRC is Spearman's rank
correlation, SRC(k %) the same among the truly best k %, CR(k %) the common ratio, the share of the truly best k % that
is in the proxy's best k %. k % of n models are floor(k n / 100) of them, and at least one.

Everywhere more is better: negate a perplexity or a loss. A ranking in which all are equal correlates with nothing: nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Floats, Mask
from plait.core.errors import UserError

PAIRS = 1 << 22  # compared at once by kendall


def ranks(values: ArrayLike) -> Floats:
    """1 for the least; equal values share the mean of their ranks."""
    _, place, copies = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(copies)
    return np.asarray((last - (copies - 1) / 2)[place], np.float64)


def spearman(proxy: ArrayLike, truth: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's, of the ranks."""
    proxy_N, truth_N = _pair(proxy, truth)
    if len(proxy_N) < 2:
        return float("nan")
    a_N, b_N = (ranks(values) - (len(values) + 1) / 2 for values in (proxy_N, truth_N))
    size = float(np.sqrt((a_N @ a_N) * (b_N @ b_N)))
    return float(np.clip(a_N @ b_N / size, -1, 1)) if size else float("nan")


def kendall(proxy: ArrayLike, truth: ArrayLike) -> float:
    """Kendall's tau-b: pairs in the same order less pairs in opposite orders, ties accounted for."""
    a_N, b_N = _pair(proxy, truth)
    agree, apart_a, apart_b = 0, 0, 0
    step = max(1, PAIRS // max(1, len(a_N)))
    for start in range(0, len(a_N), step):
        one = slice(start, start + step)
        a_SN, b_SN = (_sign(values[one, None], values[None, :]) for values in (a_N, b_N))
        agree += int((a_SN * b_SN).sum(dtype=np.int64))
        apart_a += int(np.count_nonzero(a_SN))
        apart_b += int(np.count_nonzero(b_SN))
    return agree / float(np.sqrt(float(apart_a) * float(apart_b))) if apart_a and apart_b else float("nan")


def common_ratio(proxy: ArrayLike, truth: ArrayLike, percent: float) -> float:
    """CR(k %). Where equal values stand at the cut, they share the places left: the ratio is the expected one."""
    proxy_N, truth_N = _pair(proxy, truth)
    count = top_count(len(proxy_N), percent)
    return float(_share(proxy_N, count) @ _share(truth_N, count)) / count


def top_spearman(proxy: ArrayLike, truth: ArrayLike, percent: float) -> float:
    """SRC(k %): among the truly best k %, with all that equal the last of them."""
    proxy_N, truth_N = _pair(proxy, truth)
    chosen_N = truth_N >= _cut(truth_N, top_count(len(truth_N), percent))
    return spearman(proxy_N[chosen_N], truth_N[chosen_N])


def top_count(models: int, percent: float) -> int:
    if not 0 < percent <= 100:
        raise UserError(f"the top {percent:g} %: give more than 0 and at most 100.")
    if models == 0:
        raise UserError("there is nothing to rank.")
    return max(1, int(np.floor(models * percent / 100 + 1e-9)))


@dataclass(frozen=True)
class Bin:
    """The models of one size, and how well the proxy ranks them."""

    low: float
    high: float
    models: int
    src: float


def spearman_by_size(proxy: ArrayLike, truth: ArrayLike, size: ArrayLike, bins: int | Sequence[float]) -> list[Bin]:
    """SRC in bins of size (Fig. 12): so many bins with equally many models, or the bins between these edges.

    A bin holds low ≤ size < high, the last one its upper end too. Models outside of all edges are left out.
    """
    proxy_N, truth_N = _pair(proxy, truth)
    size_N = np.asarray(size, np.float64)
    if isinstance(bins, int):
        if bins < 1:
            raise UserError(f"{bins} bins: there must be at least 1.")
        edges = np.unique(np.quantile(size_N, np.linspace(0, 1, bins + 1)))
    else:
        edges = np.asarray(bins, np.float64)
        if len(edges) < 2 or (np.diff(edges) <= 0).any():
            given = ", ".join(f"{edge:g}" for edge in edges)
            raise UserError(f"the edges of bins should be two or more that rise; given: {given}.")
    if len(edges) == 1:  # all of one size
        edges = np.repeat(edges, 2)
    found = []
    for place, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        within_N = (size_N >= low) & ((size_N <= high) if place == len(edges) - 2 else (size_N < high))
        src = spearman(proxy_N[within_N], truth_N[within_N])
        found.append(Bin(low, high, int(within_N.sum()), src))
    return found


def _sign(one: Floats, other: Floats) -> np.ndarray:
    """-1, 0 or 1. Not the sign of a difference, which is nan between infinities."""
    return (one > other).astype(np.int8) - (one < other).astype(np.int8)


def _pair(proxy: ArrayLike, truth: ArrayLike) -> tuple[Floats, Floats]:
    proxy_N, truth_N = np.asarray(proxy, np.float64), np.asarray(truth, np.float64)
    if proxy_N.shape != truth_N.shape or proxy_N.ndim != 1:
        raise UserError(f"a value a model is needed on both sides; the shapes are {proxy_N.shape} and {truth_N.shape}.")
    if np.isnan(proxy_N).any() or np.isnan(truth_N).any():
        raise UserError("missing values cannot be ranked; leave those models out.")
    return proxy_N, truth_N


def _cut(values_N: Floats, count: int) -> float:
    """The value of the last of the best `count`."""
    return float(np.partition(values_N, len(values_N) - count)[len(values_N) - count])


def _share(values_N: Floats, count: int) -> Floats:
    """How much of each model is in the top: 1, 0, or its share of the places that equal values compete for."""
    cut = _cut(values_N, count)
    above_N: Mask = values_N > cut
    at_N: Mask = values_N == cut
    each = (count - above_N.sum()) / at_N.sum()
    return np.where(above_N, 1.0, np.where(at_N, each, 0.0))
