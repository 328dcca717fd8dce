"""The lower convex hull of a front.

LiteTransformerSearch, App. C (Javaheripi et al. 2022, arXiv:2203.02094) takes as ground truth "the lower convex hull"
of quality against latency: the models of lowest perplexity for any given latency. That is the falling part of the
hull, from the least cost to the least value; behind it no model is worth its cost. Andrew's monotone chain (1979).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Ints, as_costs, pareto_front


def lower_hull(cost: ArrayLike, value: ArrayLike) -> Ints:
    """The corners of the hull by rising cost, as places in the arrays; both are to be minimised.

    Points on an edge between two corners are left out; a corner that several equal points hold is given once, by the
    first of them.
    """
    points_N2 = as_costs(np.column_stack([np.asarray(cost, np.float64), np.asarray(value, np.float64)]))
    front = np.flatnonzero(pareto_front(points_N2))
    front = front[np.unique(points_N2[front], axis=0, return_index=True)[1]]  # copies go; cost rises, value falls
    corners: list[int] = []
    for point in front.tolist():
        while len(corners) > 1 and not _turns_left(*points_N2[[corners[-2], corners[-1], point]].tolist()):
            corners.pop()
        corners.append(point)
    return np.array(corners, dtype=np.int64)


def _turns_left(a: list[float], b: list[float], c: list[float]) -> bool:
    """Whether b lies strictly below the straight line from a to c."""
    return (b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0])
