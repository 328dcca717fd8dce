"""Models compared as LiteTransformerSearch does: matched pairs, savings against a baseline, shapes at equal size.

Pairs look the same on some axes and are far apart on another: App. F and Fig. 15 (Javaheripi et al. 2022,
arXiv:2203.02094) shows why a search must weigh all objectives at once: a pair with equal memory and parameters whose
latency differs by 2×, and a pair with equal latency and parameters whose memory differs by 30 MB.

Savings are the cost at equal quality and the quality at equal cost, against a scaled baseline, Sec. 5 and App. G: "for
any given perplexity achieved by the baseline", how much faster and smaller the found models are on average. Models do
not sit at the same perplexity, so the found front is read between its points along straight lines; beyond its ends
nothing is assumed.

Shapes, wide and shallow or narrow and deep, App. E and Fig. 14: at a given count of decoder parameters the aspect ratio
d_model / n_layer, from 8 to 323, changes the perplexity by less than 7 %, the latency by 1.3× and the peak memory by
2.0×.
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
    """`low` and `high` are places in the table, by the axis on which the two differ."""

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
    """The pairs that are farthest apart (by ratio) in `far`, of those that agree in every column of `equal`.

    Two values agree when the larger is at most (1 + tolerance) times the smaller, so all must be positive.
    """
    equal_NE = np.asarray(equal, np.float64)
    far_N = np.asarray(far, np.float64)
    if equal_NE.ndim != 2 or equal_NE.shape[1] == 0 or len(equal_NE) != len(far_N):
        raise UserError("matched pairs need a row per model: one or more columns that agree and one that differs.")
    if not (equal_NE > 0).all() or not (far_N > 0).all():
        raise UserError("matched pairs are told by ratios: every value must be there and positive.")
    if tolerance < 0:
        raise UserError(f"the tolerance is {tolerance:g}; it should be 0 or more.")
    order = np.lexsort((far_N, *equal_NE.T[::-1]))
    sorted_NE, sorted_far_N = equal_NE[order], far_N[order]
    ends = np.searchsorted(sorted_NE[:, 0], sorted_NE[:, 0] * (1 + tolerance), side="right")
    best: list[MatchedPair] = []  # a heap, the least first
    for place, end in enumerate(ends.tolist()):
        # The first column is sorted, so the partners of a model that have not had their turn stand right behind it.
        partners = place + 1 + np.flatnonzero(_agree(sorted_NE[place], sorted_NE[place + 1 : end], tolerance))
        one, others = sorted_far_N[place], sorted_far_N[partners]
        ratio, difference = np.maximum(one, others) / np.minimum(one, others), np.abs(others - one)
        fits = (ratio >= min_ratio) & (difference >= min_difference) & (difference > 0)
        if len(best) == at_most:
            fits &= ratio >= best[0].ratio
        for index in np.flatnonzero(fits):
            rows = (int(order[place]), int(order[partners[index]]))
            low, high = rows if one < others[index] else rows[::-1]
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
    """One baseline model and the found front where both agree in `held`."""

    held: float
    baseline: float
    found: float

    @property
    def saving(self) -> float:
        """The share saved: 0.25 where the found front needs three quarters."""
        return 1 - self.found / self.baseline

    @property
    def factor(self) -> float:
        """How many times as much the baseline needs."""
        return self.baseline / self.found


@dataclass(frozen=True)
class Savings:
    """`compared` by rising value of what is held equal; `outside` counts baseline models beyond the found front."""

    compared: list[Comparison]
    outside: int

    @property
    def mean(self) -> float:
        return _mean([each.saving for each in self.compared])

    @property
    def mean_difference(self) -> float:
        """In the units of the measured column: perplexity points, milliseconds."""
        return _mean([each.baseline - each.found for each in self.compared])


def savings_at_equal_quality(
    baseline_cost: ArrayLike, baseline_quality: ArrayLike, found_cost: ArrayLike, found_quality: ArrayLike
) -> Savings:
    """For each model of the baseline, what the found front needs for its quality. Lower is better in both."""
    if not (np.asarray(baseline_cost) > 0).all() or not (np.asarray(found_cost) > 0).all():
        raise UserError("savings are shares of a cost: every cost must be there and positive.")
    return _compare(_curve(baseline_quality, baseline_cost), _curve(found_quality, found_cost))


def gains_at_equal_cost(
    baseline_cost: ArrayLike, baseline_quality: ArrayLike, found_cost: ArrayLike, found_quality: ArrayLike
) -> Savings:
    """For each model of the baseline, the quality that the found front has at its cost. Lower is better in both."""
    return _compare(_curve(baseline_cost, baseline_quality), _curve(found_cost, found_quality))


def _curve(held: ArrayLike, measured: ArrayLike) -> Floats:
    points_N2 = np.column_stack([np.asarray(held, np.float64), np.asarray(measured, np.float64)])
    if not len(points_N2):
        raise UserError("savings compare two sets of models; one of them is empty.")
    return points_N2


def _compare(baseline_N2: Floats, found_N2: Floats) -> Savings:
    front_F2 = np.unique(found_N2[pareto_front(found_N2)], axis=0)  # by rising value of what is held equal
    compared, outside = [], 0
    for held, measured in baseline_N2[np.lexsort(baseline_N2.T[::-1])].tolist():
        if front_F2[0, 0] <= held <= front_F2[-1, 0]:
            found = float(np.interp(held, front_F2[:, 0], front_F2[:, 1]))
            compared.append(Comparison(held, measured, found))
        else:
            outside += 1
    return Savings(compared, outside)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


@dataclass(frozen=True)
class SizeGroup:
    """Models of one size. `spread` has the largest value of each metric over its smallest; `models` are places."""

    models: Ints
    size: tuple[float, float]
    aspect: tuple[float, float]
    spread: dict[str, float]


@dataclass(frozen=True)
class AspectStudy:
    groups: list[SizeGroup]
    alone: int  # models that share their size with no other

    def largest(self, metric: str) -> float:
        """The largest spread of a metric at equal size."""
        return max((group.spread[metric] for group in self.groups), default=float("nan"))


def aspect_study(
    width: ArrayLike, depth: ArrayLike, size: ArrayLike, metrics: Mapping[str, ArrayLike], tolerance: float = 0.02
) -> AspectStudy:
    """Groups models of equal size and tells how far apart they are in shape and in each metric.

    From the smallest model on, a group takes all that are at most (1 + tolerance) times its first. A spread therefore
    holds what a difference in size of that much does too.
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
