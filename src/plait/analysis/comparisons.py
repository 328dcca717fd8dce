"""Comparisons of models as in LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094): matched pairs, savings
over a baseline, and shapes at equal size.

Matched pairs agree in some columns and differ most in another. App. F and Fig. 15 use them to show why a search needs
all objectives: one pair with equal memory and parameters differs by 2× in latency, another with equal latency and
parameters by 30 MB in memory.

Savings are the cost at equal quality, and the quality at equal cost, of a front against a scaled baseline (Sec. 5 and
App. G): "for any given perplexity achieved by the baseline", how much faster and smaller are the models on average?
The front is interpolated linearly between its points and not extrapolated.

The shape study (App. E and Fig. 14) compares wide, shallow models with narrow, deep ones: at a given number of decoder
parameters the aspect ratio d_model / n_layer, from 8 to 323, changes the perplexity by less than 7 %, the latency by
1.3× and the peak memory by 2.0×.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Floats, Ints, pareto_front
from plait.core.errors import UserError


@dataclass(frozen=True, order=True)
class MatchedPair:
    """Two models, as row indices: `low` and `high` in the column in which they differ."""

    ratio: float
    difference: float
    low: int
    high: int


def find_matched_pairs(
    equal: ArrayLike,
    far: ArrayLike,
    tolerance: float = 0.01,
    min_ratio: float = 1.0,
    min_difference: float = 0.0,
    at_most: int = 10,
) -> list[MatchedPair]:
    """The pairs with the largest ratio in `far` among those that agree in every column of `equal`.

    Two values agree if the larger is at most (1 + tolerance) times the smaller, so all must be positive.
    """
    equal_NE = np.asarray(equal, np.float64)
    far_N = np.asarray(far, np.float64)
    if equal_NE.ndim != 2 or equal_NE.shape[1] == 0 or len(equal_NE) != len(far_N):
        raise UserError("matched pairs need a row per model: one or more columns that agree and one that differs.")
    if not (equal_NE > 0).all() or not (far_N > 0).all():
        raise UserError("matched pairs are compared by ratios: every value must be present and positive.")
    if tolerance < 0:
        raise UserError(f"the tolerance is {tolerance:g}; it should be 0 or more.")
    order = np.lexsort((far_N, *equal_NE.T[::-1]))
    sorted_NE, sorted_far_N = equal_NE[order], far_N[order]
    ends = np.searchsorted(sorted_NE[:, 0], sorted_NE[:, 0] * (1 + tolerance), side="right")
    best: list[MatchedPair] = []  # a min-heap
    for row, end in enumerate(ends.tolist()):
        # The first column is sorted, so all later partners of a model directly follow it.
        partners = row + 1 + np.flatnonzero(_agree(sorted_NE[row], sorted_NE[row + 1 : end], tolerance))
        own, others = sorted_far_N[row], sorted_far_N[partners]
        ratio, difference = np.maximum(own, others) / np.minimum(own, others), np.abs(others - own)
        fits = (ratio >= min_ratio) & (difference >= min_difference) & (difference > 0)
        if len(best) == at_most:
            fits &= ratio >= best[0].ratio
        for index in np.flatnonzero(fits):
            rows = (int(order[row]), int(order[partners[index]]))
            low, high = rows if own < others[index] else rows[::-1]
            pair = MatchedPair(float(ratio[index]), float(difference[index]), low, high)
            if len(best) < at_most:
                heapq.heappush(best, pair)
            else:
                heapq.heappushpop(best, pair)
    return sorted(best, key=lambda pair: (-pair.ratio, -pair.difference, pair.low, pair.high))


def _agree(one_E: Floats, others_NE: Floats, tolerance: float) -> np.ndarray:
    within = np.maximum(one_E, others_NE) <= np.minimum(one_E, others_NE) * (1 + tolerance)
    return np.asarray(within.all(axis=1))


@dataclass(frozen=True)
class Comparison:
    """One baseline model and the front at the same value of the `held` column."""

    held: float
    baseline: float
    found: float

    @property
    def saving(self) -> float:
        """The fraction saved: 0.25 if the front needs three quarters."""
        return 1 - self.found / self.baseline

    @property
    def factor(self) -> float:
        """The ratio of the baseline's cost to the front's."""
        return self.baseline / self.found


@dataclass(frozen=True)
class Savings:
    """`compared` is sorted by the value held equal; `outside` counts baseline models beyond the ends of the front."""

    compared: list[Comparison]
    outside: int

    @property
    def mean(self) -> float:
        return _mean([point.saving for point in self.compared])

    @property
    def mean_difference(self) -> float:
        """In the units of the measured column: perplexity points, milliseconds."""
        return _mean([point.baseline - point.found for point in self.compared])


def savings_at_equal_quality(
    baseline_cost: ArrayLike, baseline_quality: ArrayLike, found_cost: ArrayLike, found_quality: ArrayLike
) -> Savings:
    """For each baseline model, the cost of the front at the same quality. Lower is better in both."""
    if not (np.asarray(baseline_cost) > 0).all() or not (np.asarray(found_cost) > 0).all():
        raise UserError("savings are fractions of a cost: every cost must be present and positive.")
    return _compare(_curve(baseline_quality, baseline_cost), _curve(found_quality, found_cost))


def gains_at_equal_cost(
    baseline_cost: ArrayLike, baseline_quality: ArrayLike, found_cost: ArrayLike, found_quality: ArrayLike
) -> Savings:
    """For each baseline model, the quality of the front at the same cost. Lower is better in both."""
    return _compare(_curve(baseline_cost, baseline_quality), _curve(found_cost, found_quality))


def _curve(held: ArrayLike, measured: ArrayLike) -> Floats:
    points_N2 = np.column_stack([np.asarray(held, np.float64), np.asarray(measured, np.float64)])
    if not len(points_N2):
        raise UserError("savings compare two sets of models; one of them is empty.")
    return points_N2


def _compare(baseline_N2: Floats, found_N2: Floats) -> Savings:
    front_F2 = np.unique(found_N2[pareto_front(found_N2)], axis=0)  # sorted by the value held equal
    compared, outside = [], 0
    for held, measured in baseline_N2[np.lexsort(baseline_N2.T[::-1])].tolist():
        if front_F2[0, 0] <= held <= front_F2[-1, 0]:
            interpolated = float(np.interp(held, front_F2[:, 0], front_F2[:, 1]))
            compared.append(Comparison(held, measured, interpolated))
        else:
            outside += 1
    return Savings(compared, outside)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


@dataclass(frozen=True)
class SizeGroup:
    """Models of about the same size, as row indices; `spread` is the ratio of largest to smallest of each metric."""

    models: Ints
    size: tuple[float, float]
    aspect: tuple[float, float]
    spread: dict[str, float]


@dataclass(frozen=True)
class AspectStudy:
    groups: list[SizeGroup]
    alone: int  # models without another of the same size

    def largest(self, metric: str) -> float:
        """The largest spread of a metric at equal size."""
        return max((group.spread[metric] for group in self.groups), default=float("nan"))


def aspect_study(
    width: ArrayLike, depth: ArrayLike, size: ArrayLike, metrics: Mapping[str, ArrayLike], tolerance: float = 0.02
) -> AspectStudy:
    """Group models of about equal size and report the range of shapes and the spread of each metric in each group.

    Starting from the smallest model, a group contains all models of at most (1 + tolerance) times the size of its
    first, so a spread includes the effect of that difference in size.
    """
    width_N, depth_N, size_N = (np.asarray(values, np.float64) for values in (width, depth, size))
    metric_N = {name: np.asarray(values, np.float64) for name, values in metrics.items()}
    for name, values in {"width": width_N, "depth": depth_N, "size": size_N, **metric_N}.items():
        if len(values) != len(size_N) or not (values > 0).all():
            raise UserError(f"the aspect study needs a positive value of '{name}' for every model.")
    aspect_N = width_N / depth_N
    order = np.argsort(size_N, kind="stable")
    groups, alone, start = [], 0, 0
    while start < len(order):
        end = int(np.searchsorted(size_N[order], size_N[order[start]] * (1 + tolerance), side="right"))
        models = order[start:end]
        if len(models) > 1:
            spread = {name: float(values[models].max() / values[models].min()) for name, values in metric_N.items()}
            groups.append(SizeGroup(models, _range(size_N[models]), _range(aspect_N[models]), spread))
        else:
            alone += 1
        start = end
    return AspectStudy(groups, alone)


def _range(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())
