"""The volume that a front dominates, up to a reference point: one number for how good a front is.

Two objectives by a sum over the sorted front, three by a sweep over the third with a staircase of the first two,
O(n log n) apart from moving list entries. More objectives follow While, Bradstreet & Barone 2012 (WFG): points are
taken from the worst to the best in the last objective; what a point adds to those behind it is its own box less what
they cover of it, and as they all reach beyond it in the last objective, that is a volume with one objective less. The
time grows exponentially with the objectives: fine for a few hundred points and up to six of them.

Letters: N points, M objectives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Floats, as_costs, pareto_front
from plait.core.errors import UserError


def hypervolume(points: ArrayLike, reference: ArrayLike, maximise: Collection[int] = ()) -> float:
    """The volume between the front of the points and the reference, which is in the units of the points.

    Points that are not better than the reference in every objective add nothing; neither do dominated ones and copies.
    """
    costs_NM = as_costs(points, maximise)
    if np.size(reference) != costs_NM.shape[1]:
        raise UserError(f"the reference point has {np.size(reference)} values for {costs_NM.shape[1]} objectives.")
    corner_M = as_costs(np.reshape(reference, (1, -1)), maximise)[0]
    reach_NM = corner_M - costs_NM  # how far each point reaches from the reference; more is better from here on
    reach_NM = reach_NM[(reach_NM > 0).all(axis=1)]
    if np.isinf(reach_NM).any():
        raise UserError("a point or the reference is infinite, and so is the hypervolume.")
    return _volume(reach_NM)


def _volume(reach_NM: Floats) -> float:
    """The union of the boxes from the origin to each point."""
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
    for place, point_M in enumerate(reach_NM):
        covered = _volume(np.minimum(reach_NM[place + 1 :, :-1], point_M[:-1]))
        total += float(point_M[-1]) * (float(np.prod(point_M[:-1])) - covered)
    return total


def _sweep(reach_N3: Floats) -> float:
    """From the farthest slice of the third objective to the origin, the area of the slices growing on the way."""
    order = np.argsort(-reach_N3[:, 2])
    xs: list[float] = []  # the staircase of the slice: x rises, y falls; steps of no width may stay, they add nothing
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
