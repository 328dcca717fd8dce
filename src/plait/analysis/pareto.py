"""Pareto fronts, non-dominated sorting and crowding distance, for any number of objectives.

A point dominates another if it is at least as good in every objective and better in at least one. Equal points do not
dominate each other, so either all or none of them are on the front. Only the order of values matters, so every column
is replaced by its dense ranks first; infinite values are allowed, missing values are an error.

Fronts: one or two objectives by sorting; three by a sweep with a staircase (Kung, Luccio & Preparata 1975),
O(n log n); more by blocks, O(n · front). Ranks: Zhang et al. 2015 (efficient non-dominated sort), with a staircase per
front, so that the front of a point is found by bisection. Crowding distance: Deb et al. 2002 (NSGA-II).

Letters: N points, U distinct points, M objectives, S strong points, W weak points.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plait.core.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

STRONG = 32  # points used to discard the points they dominate before the exact algorithm
FEW = 1000  # number of points below which nothing is discarded first
BLOCK = 256
CELLS = 1 << 24  # comparisons held in memory at once


def as_costs(points: ArrayLike, maximise: Collection[int] = ()) -> Floats:
    """The points as an N × M array of costs to minimise. `maximise`: indices of columns in which more is better."""
    costs_NM = np.array(points, dtype=np.float64)
    if costs_NM.ndim != 2 or costs_NM.shape[1] == 0:
        raise UserError(f"objectives are a row a point and a column each; these have the shape {costs_NM.shape}.")
    columns = costs_NM.shape[1]
    if wrong := [column for column in maximise if not 0 <= column < columns]:
        raise UserError(f"cannot maximise column {wrong[0]}: there are {columns}, counted from 0.")
    if np.isnan(costs_NM).any():
        row, column = np.argwhere(np.isnan(costs_NM))[0]
        raise UserError(f"point {row} has no value in objective {column}; leave out what was not measured.")
    costs_NM[:, list(maximise)] *= -1
    return costs_NM


def pareto_front(points: ArrayLike, maximise: Collection[int] = ()) -> Mask:
    """Which points are non-dominated, including all copies of such points."""
    ranks_NM = _dense_ranks(as_costs(points, maximise))
    alive_N = _clear(ranks_NM)
    ranks_UM, place_N = _distinct(ranks_NM[alive_N])
    found_N = np.zeros(len(ranks_NM), dtype=np.bool_)
    found_N[alive_N] = _front_of_distinct(ranks_UM)[place_N]
    return found_N


def front_ranks(points: ArrayLike) -> Ints:
    """Non-dominated sorting: 0 for the front, 1 for the front of the remaining points, and so on."""
    ranks_UM, place_N = _distinct(_dense_ranks(as_costs(points, ())))
    if ranks_UM.shape[1] > 3:
        return _peel(ranks_UM)[place_N]
    order_U, rows = _sweep_order(ranks_UM)
    stairs: list[_Staircase] = []
    level_U = np.empty(len(ranks_UM), dtype=np.int64)
    for point, (_, y, z) in zip(order_U.tolist(), rows, strict=True):
        # A point dominated within one front is dominated within all earlier fronts, so bisection finds its own.
        low, high = 0, len(stairs)
        while low < high:
            middle = (low + high) // 2
            if stairs[middle].covers(y, z):
                low = middle + 1
            else:
                high = middle
        if low == len(stairs):
            stairs.append(_Staircase())
        stairs[low].add(y, z)
        level_U[point] = low
    return level_U[place_N]


def crowding_distance(points: ArrayLike) -> Floats:
    """The crowding distance of each point of one front: the gap between its neighbours, summed over scaled objectives.

    The extremes of an objective have infinite distance. Ties are ordered by the other objectives. Of equal points only
    the first has a distance and the copies have 0, so that a selection takes each point once before any twice.
    """
    values_NM = as_costs(points)
    distinct_UM, first_U = np.unique(values_NM, axis=0, return_index=True)
    distance_U = np.zeros(len(distinct_UM))
    for column in range(distinct_UM.shape[1]):
        order_U = np.argsort(distinct_UM[:, column], kind="stable")  # rows are already in lexicographic order
        sorted_U = distinct_UM[order_U, column]
        distance_U[order_U[[0, -1]]] = np.inf
        extent = sorted_U[-1] - sorted_U[0]
        if extent > 0 and np.isfinite(extent):
            distance_U[order_U[1:-1]] += (sorted_U[2:] - sorted_U[:-2]) / extent
    distance_N = np.zeros(len(values_NM))
    distance_N[first_U] = distance_U
    return distance_N


class _Staircase:
    """The non-dominated pairs so far: y increases, z decreases."""

    def __init__(self) -> None:
        self.y: list[int] = []
        self.z: list[int] = []

    def covers(self, y: int, z: int) -> bool:
        """Whether some pair is at most (y, z) in both."""
        before = bisect_right(self.y, y)
        return before > 0 and self.z[before - 1] <= z

    def add(self, y: int, z: int) -> None:
        """Add a pair that is not covered, and remove those that it covers."""
        start = bisect_left(self.y, y)
        end = start
        while end < len(self.z) and self.z[end] >= z:
            end += 1
        self.y[start:end] = [y]
        self.z[start:end] = [z]


def _dense_ranks(costs_NM: Floats) -> NDArray[np.int32]:
    """The dense ranks of each column: 0 for the lowest value, ties equal. Columns are contiguous in memory."""
    ranks_NM = np.empty(costs_NM.shape, dtype=np.int32, order="F")
    for column in range(costs_NM.shape[1]):
        ranks_NM[:, column] = np.unique(costs_NM[:, column], return_inverse=True)[1]
    return ranks_NM


def _distinct(ranks_NM: NDArray[np.int32]) -> tuple[NDArray[np.int32], Ints]:
    """The distinct points in lexicographic order, and the index of each given point among them."""
    order_N = np.lexsort(ranks_NM.T[::-1])
    sorted_NM = ranks_NM[order_N]
    new_N = np.ones(len(order_N), dtype=np.bool_)
    new_N[1:] = (sorted_NM[1:] != sorted_NM[:-1]).any(axis=1)
    place_N = np.empty(len(order_N), dtype=np.int64)
    place_N[order_N] = np.cumsum(new_N) - 1
    return np.asfortranarray(sorted_NM[new_N]), place_N


def _clear(ranks_NM: NDArray[np.int32]) -> Ints:
    """The points that are not dominated by a few strong ones.

    Each strong point is the best by some random weighting of the objectives. The choice affects only the running time,
    never the front.
    """
    alive_N = np.arange(len(ranks_NM))
    columns = list(ranks_NM.T)
    sums = ranks_NM.sum(axis=1, dtype=np.int64)
    for weights_M in np.random.default_rng(0).dirichlet(np.ones(len(columns)), STRONG).astype(np.float32):
        if len(alive_N) <= FEW:
            break
        score = columns[0] * weights_M[0]
        for column, weight in zip(columns[1:], weights_M[1:], strict=True):
            score += column * weight
        strong = int(score.argmin())
        worse = sums > sums[strong]  # never true of the point itself or of its copies
        for column in columns:
            worse &= column >= column[strong]
        if worse.any():
            kept = ~worse
            alive_N, sums, columns = alive_N[kept], sums[kept], [column[kept] for column in columns]
    return alive_N


def _front_of_distinct(ranks_UM: NDArray[np.int32]) -> Mask:
    """The front of distinct points in lexicographic order."""
    objectives = ranks_UM.shape[1]
    found_U = np.zeros(len(ranks_UM), dtype=np.bool_)
    if objectives == 1:
        found_U[:1] = True
    elif objectives == 2:
        least_U = np.minimum.accumulate(ranks_UM[:, 1])
        found_U[:1] = True
        found_U[1:] = ranks_UM[1:, 1] < least_U[:-1]
    elif objectives == 3:
        order_U, rows = _sweep_order(ranks_UM)
        stairs, kept = _Staircase(), []
        for point, (_, y, z) in zip(order_U.tolist(), rows, strict=True):
            if not stairs.covers(y, z):
                stairs.add(y, z)
                kept.append(point)
        found_U[kept] = True
    else:
        found_U[_front_by_blocks(ranks_UM)] = True
    return found_U


def _sweep_order(ranks_UM: NDArray[np.int32]) -> tuple[Ints, list[list[int]]]:
    """An order in which no point is dominated by a later one, and the points in that order, for three objectives.

    The sweep is along the objective for which the other two are most correlated, so that their staircase stays short.
    """
    count, objectives = ranks_UM.shape
    padded_U3 = np.zeros((count, 3), dtype=np.int32)
    padded_U3[:, 3 - objectives :] = ranks_UM
    spread_U3 = padded_U3 - padded_U3.mean(axis=0) if count else padded_U3.astype(np.float64)
    size = np.sqrt((spread_U3**2).sum(axis=0)) + 1e-30
    likeness = (spread_U3.T @ spread_U3) / np.outer(size, size)
    axis = max(range(3), key=lambda left: likeness[(left + 1) % 3, (left + 2) % 3])
    turned_U3 = padded_U3[:, [axis, (axis + 1) % 3, (axis + 2) % 3]]
    order_U = np.lexsort(turned_U3.T[::-1])
    return order_U, turned_U3[order_U].tolist()


def _front_by_blocks(ranks_UM: NDArray[np.int32]) -> Ints:
    """The front by blocks, in order of increasing sum of ranks: a point can only be dominated by an earlier one."""
    rest = np.argsort(ranks_UM.sum(axis=1, dtype=np.int64), kind="stable")
    kept: list[Ints] = [rest[:0]]
    while len(rest):
        block, rest = rest[:BLOCK], rest[BLOCK:]
        block = block[~_covered(ranks_UM[block], ranks_UM[block], apart=True)]
        rest = rest[~_covered(ranks_UM[block], ranks_UM[rest])]
        kept.append(block)
    return np.concatenate(kept)


def _covered(strong_SM: NDArray[np.int32], weak_WM: NDArray[np.int32], apart: bool = False) -> Mask:
    """Which weak points are covered (equalled or bettered everywhere) by a strong one; `apart` skips the diagonal."""
    covered_W = np.zeros(len(weak_WM), dtype=np.bool_)
    step = max(1, CELLS // max(1, len(strong_SM)))
    for start in range(0, len(weak_WM), step):
        part_WM = weak_WM[start : start + step]
        below_SW = np.ones((len(strong_SM), len(part_WM)), dtype=np.bool_)
        for column in range(weak_WM.shape[1]):
            below_SW &= strong_SM[:, column, None] <= part_WM[None, :, column]
        if apart:
            np.fill_diagonal(below_SW, False)
        covered_W[start : start + step] = below_SW.any(axis=0)
    return covered_W


def _peel(ranks_UM: NDArray[np.int32]) -> Ints:
    """Non-dominated sorting front by front, for more than three objectives."""
    level_U = np.empty(len(ranks_UM), dtype=np.int64)
    left, level = np.arange(len(ranks_UM)), 0
    while len(left):
        chosen = np.zeros(len(left), dtype=np.bool_)
        chosen[_front_by_blocks(ranks_UM[left])] = True
        level_U[left[chosen]] = level
        left, level = left[~chosen], level + 1
    return level_U
