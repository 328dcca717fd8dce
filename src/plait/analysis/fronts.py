"""Quality of Pareto fronts: lower convex hull, hypervolume, and distance from the true front.

Hull: LiteTransformerSearch, App. C (Javaheripi et al. 2022, arXiv:2203.02094) uses "the lower convex hull" of quality
against latency as ground truth: the models of lowest perplexity at any given latency. That is the decreasing part of
the hull, from lowest cost to best quality. Computed by Andrew's monotone chain (1979).

Hypervolume: with two objectives a sum over the sorted front, with three a sweep over the third that maintains the
staircase of the first two, O(n log n) apart from list insertions. More objectives follow While, Bradstreet & Barone
2012 (WFG): points are processed from worst to best in the last objective, and a point contributes its box minus the
part covered by the later points, which is a hypervolume with one objective less. The time is exponential in the number
of objectives: fine for a few hundred points and up to six objectives.

Distance: LiteTransformerSearch, App. C, eq. 2: each point of the proxy's front is matched with the point of the true
front nearest in latency; d_avg is the mean of |p - p_gt| / p_gt over their perplexities.

Letters: N points, M objectives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Floats, Ints, as_costs, pareto_front
from plait.core.errors import UserError


def lower_hull(cost: ArrayLike, value: ArrayLike) -> Ints:
    """Indices of the corners of the hull by increasing cost; cost and value are minimised.

    Points on an edge between two corners are excluded; of equal points only the first is returned.
    """
    points_N2 = as_costs(np.column_stack([np.asarray(cost, np.float64), np.asarray(value, np.float64)]))
    front = np.flatnonzero(pareto_front(points_N2))
    front = front[np.unique(points_N2[front], axis=0, return_index=True)[1]]  # without duplicates, by increasing cost
    corners: list[int] = []
    for point in front.tolist():
        while len(corners) > 1 and not _turns_left(*points_N2[[corners[-2], corners[-1], point]].tolist()):
            corners.pop()
        corners.append(point)
    return np.array(corners, dtype=np.int64)


def _turns_left(a: list[float], b: list[float], c: list[float]) -> bool:
    """Whether b is strictly below the line from a to c."""
    return (b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0])


def hypervolume(points: ArrayLike, reference: ArrayLike, maximise: Collection[int] = ()) -> float:
    """The hypervolume dominated by the points with respect to a reference point, which is in the points' units.

    Points that are not better than the reference in every objective, dominated points and duplicates add nothing.
    """
    costs_NM = as_costs(points, maximise)
    if np.size(reference) != costs_NM.shape[1]:
        raise UserError(f"the reference point has {np.size(reference)} values for {costs_NM.shape[1]} objectives.")
    corner_M = as_costs(np.reshape(reference, (1, -1)), maximise)[0]
    reach_NM = corner_M - costs_NM  # improvement over the reference; more is better from here on
    reach_NM = reach_NM[(reach_NM > 0).all(axis=1)]
    if np.isinf(reach_NM).any():
        raise UserError("a point or the reference is infinite, and so is the hypervolume.")
    return _volume(reach_NM)


def _volume(reach_NM: Floats) -> float:
    """The volume of the union of the boxes from the origin to each point."""
    if len(reach_NM) == 0:
        return 0.0
    objectives = reach_NM.shape[1]
    if objectives == 1:
        return float(reach_NM.max())
    reach_NM = np.unique(reach_NM[pareto_front(reach_NM, range(objectives))], axis=0)
    if objectives == 2:
        x_N, y_N = reach_NM.T  # x rises, so y falls
        return float(np.diff(x_N, prepend=0.0) @ y_N)
    if objectives == 3:
        return _sweep(reach_NM)
    reach_NM = reach_NM[np.argsort(reach_NM[:, -1])]
    total = 0.0
    for at, point_M in enumerate(reach_NM):
        covered = _volume(np.minimum(reach_NM[at + 1 :, :-1], point_M[:-1]))
        total += float(point_M[-1]) * (float(np.prod(point_M[:-1])) - covered)
    return total


def _sweep(reach_N3: Floats) -> float:
    """The volume in three dimensions: slices along the third objective, with growing area."""
    order = np.argsort(-reach_N3[:, 2])
    xs: list[float] = []  # the staircase of the slice: x increases, y decreases; steps of zero width are harmless
    ys: list[float] = []
    area = volume = 0.0
    depths = np.append(reach_N3[order, 2], 0.0).tolist()
    for (x, y, depth), following in zip(reach_N3[order].tolist(), depths[1:], strict=True):
        end = bisect_left(xs, x)
        if end == len(xs) or ys[end] < y:
            start = end
            floor = ys[end] if end < len(ys) else 0.0
            right = x
            while start > 0 and ys[start - 1] <= y:
                start -= 1
                area += (right - xs[start]) * (y - floor)
                right, floor = xs[start], ys[start]
            left = xs[start - 1] if start else 0.0
            area += (right - left) * (y - floor)
            xs[start:end] = [x]
            ys[start:end] = [y]
        volume += area * (depth - following)
    return volume


@dataclass(frozen=True)
class FrontDistance:
    """`claimed` and `nearest` are row indices: the proxy's front, and the matched points of the true front."""

    mean: float
    claimed: Ints
    nearest: Ints
    gaps: Floats


def front_distance(cost: ArrayLike, quality: ArrayLike, claimed: ArrayLike, true_front: ArrayLike) -> FrontDistance:
    """d_avg between two sets of models, given as row indices. Lower is better in cost and quality.

    Ties between equally near points go to the lower cost, then to the lower quality value.
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
    """d_avg of the front by a proxy (more is better) against the lower hull of the trained models.

    Without `hull` the ground truth is the whole Pareto front, including models above the hull.
    """
    claimed = np.flatnonzero(pareto_front(np.column_stack([cost, proxy]), maximise=[1]))
    points_N2 = np.column_stack([cost, quality])
    true_front = lower_hull(*points_N2.T) if hull else np.flatnonzero(pareto_front(points_N2))
    return front_distance(cost, quality, claimed, true_front)


@dataclass(frozen=True)
class Dominated:
    """A model and the first model on the front that dominates it, as row indices."""

    model: int
    by: int


def dominated_models(points: ArrayLike, maximise: Collection[int] = (), strict: bool = False) -> list[Dominated]:
    """The dominated models of a claimed front. `strict`: only those that are worse in every objective."""
    costs_NM = as_costs(points, maximise)
    front_F = np.flatnonzero(pareto_front(costs_NM))
    dominated = []
    for model, cost_M in enumerate(costs_NM):
        if strict:
            wins = (costs_NM[front_F] < cost_M).all(axis=1)
        else:
            wins = (costs_NM[front_F] <= cost_M).all(axis=1) & (costs_NM[front_F] < cost_M).any(axis=1)
        if wins.any():
            dominated.append(Dominated(model, int(front_F[wins.argmax()])))
    return dominated
