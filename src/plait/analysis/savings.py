"""What a found front saves against a scaled baseline: the cost at equal quality, the quality at equal cost.

LiteTransformerSearch, Sec. 5 and App. G (Javaheripi et al. 2022, arXiv:2203.02094): "for any given perplexity achieved
by the baseline", how much faster and smaller the found models are on average. Models do not sit at the same
perplexity, so the found front is read between its points along straight lines; beyond its ends nothing is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Floats, pareto_front
from plait.core.errors import UserError


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
