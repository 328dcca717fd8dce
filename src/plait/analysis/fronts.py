"""How far a front that was claimed is from the true one.

LiteTransformerSearch, App. C, eq. 2 (Javaheripi et al. 2022, arXiv:2203.02094): for every point of the front that the
proxy found, the true front's point nearest in latency; d_avg is the mean of |p - p_gt| / p_gt over their perplexities.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.hull import lower_hull
from plait.analysis.pareto import Floats, Ints, as_costs, pareto_front
from plait.core.errors import UserError


@dataclass(frozen=True)
class FrontDistance:
    """`claimed` and `nearest` are places in the table: the proxy's front, and its partners on the true one."""

    mean: float
    claimed: Ints
    nearest: Ints
    gaps: Floats


def front_distance(cost: ArrayLike, quality: ArrayLike, claimed: ArrayLike, true_front: ArrayLike) -> FrontDistance:
    """d_avg between two sets of models, given by their places. Lower is better in cost and quality.

    Of two partners that are equally near, the one of lower cost counts, and then the one of lower quality value.
    """
    cost_N, quality_N = np.asarray(cost, np.float64), np.asarray(quality, np.float64)
    claimed_C, true_T = np.asarray(claimed, np.int64), np.asarray(true_front, np.int64)
    if not len(claimed_C) or not len(true_T):
        raise UserError("d_avg compares two fronts; one of them is empty.")
    true_T = true_T[np.lexsort((quality_N[true_T], cost_N[true_T]))]
    nearest = np.array([true_T[np.abs(cost_N[true_T] - cost_N[point]).argmin()] for point in claimed_C])
    if (quality_N[nearest] == 0).any():
        raise UserError("d_avg is relative to the true quality, which is 0 for a model of the true front.")
    gaps = np.abs(quality_N[claimed_C] - quality_N[nearest]) / np.abs(quality_N[nearest])
    return FrontDistance(float(gaps.mean()), claimed_C, nearest, gaps)


def proxy_front_distance(cost: ArrayLike, proxy: ArrayLike, quality: ArrayLike, hull: bool = True) -> FrontDistance:
    """d_avg of the front that a proxy finds (more is better), against the lower hull of what training found.

    Without `hull` the ground truth is the whole front, with the models above the hull's edges.
    """
    claimed = np.flatnonzero(pareto_front(np.column_stack([cost, proxy]), maximise=[1]))
    points_N2 = np.column_stack([cost, quality])
    true_front = lower_hull(*points_N2.T) if hull else np.flatnonzero(pareto_front(points_N2))
    return front_distance(cost, quality, claimed, true_front)


@dataclass(frozen=True)
class Dominated:
    """A model and one that dominates it: of those that do, the one on the front that stands first in the table."""

    model: int
    by: int


def dominated_models(points: ArrayLike, maximise: Collection[int] = (), strict: bool = False) -> list[Dominated]:
    """The models of a claimed front that do not belong there. `strict`: only those that lose in every objective."""
    costs_NM = as_costs(points, maximise)
    front_F = np.flatnonzero(pareto_front(costs_NM))
    found = []
    for model, cost_M in enumerate(costs_NM):
        if strict:
            wins = (costs_NM[front_F] < cost_M).all(axis=1)
        else:
            wins = (costs_NM[front_F] <= cost_M).all(axis=1) & (costs_NM[front_F] < cost_M).any(axis=1)
        if wins.any():
            found.append(Dominated(model, int(front_F[wins.argmax()])))
    return found
