"""Pairs of models that look the same on some axes and are far apart on another.

LiteTransformerSearch, App. F and Fig. 15 (Javaheripi et al. 2022, arXiv:2203.02094) shows why a search must weigh all
objectives at once: a pair with equal memory and parameters whose latency differs by 2×, and a pair with equal latency
and parameters whose memory differs by 30 MB.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Floats
from plait.core.errors import UserError


@dataclass(frozen=True, order=True)
class Twins:
    """`low` and `high` are places in the table, by the axis on which the two differ."""

    ratio: float
    difference: float
    low: int
    high: int


def find_twins(
    equal: ArrayLike,
    far: ArrayLike,
    tolerance: float = 0.01,
    min_ratio: float = 1.0,
    min_difference: float = 0.0,
    at_most: int = 10,
) -> list[Twins]:
    """The pairs that are farthest apart (by ratio) in `far`, of those that agree in every column of `equal`.

    Two values agree when the larger is at most (1 + tolerance) times the smaller, so all must be positive.
    """
    equal_NE = np.asarray(equal, np.float64)
    far_N = np.asarray(far, np.float64)
    if equal_NE.ndim != 2 or equal_NE.shape[1] == 0 or len(equal_NE) != len(far_N):
        raise UserError("twins need a row a model: one or more columns that agree and one that differs.")
    if not (equal_NE > 0).all() or not (far_N > 0).all():
        raise UserError("twins are told by ratios: every value must be there and positive.")
    if tolerance < 0:
        raise UserError(f"the tolerance is {tolerance:g}; it should be 0 or more.")
    order = np.lexsort((far_N, *equal_NE.T[::-1]))
    sorted_NE, sorted_far_N = equal_NE[order], far_N[order]
    ends = np.searchsorted(sorted_NE[:, 0], sorted_NE[:, 0] * (1 + tolerance), side="right")
    best: list[Twins] = []  # a heap, the least first
    for place, end in enumerate(ends.tolist()):
        # The first column is sorted, so the partners of a model that have not had their turn stand right behind it.
        partners = place + 1 + np.flatnonzero(_agree(sorted_NE[place], sorted_NE[place + 1 : end], tolerance))
        one, others = sorted_far_N[place], sorted_far_N[partners]
        ratio, difference = np.maximum(one, others) / np.minimum(one, others), np.abs(others - one)
        fits = (ratio >= min_ratio) & (difference >= min_difference) & (difference > 0)
        if len(best) == at_most:
            fits &= ratio >= best[0].ratio
        for index in np.flatnonzero(fits):
            pair = (int(order[place]), int(order[partners[index]]))
            low, high = pair if one < others[index] else pair[::-1]
            twins = Twins(float(ratio[index]), float(difference[index]), low, high)
            if len(best) < at_most:
                heapq.heappush(best, twins)
            else:
                heapq.heappushpop(best, twins)
    return sorted(best, key=lambda twins: (-twins.ratio, -twins.difference, twins.low, twins.high))


def _agree(one_E: Floats, others_NE: Floats, tolerance: float) -> np.ndarray:
    within = np.maximum(one_E, others_NE) <= np.minimum(one_E, others_NE) * (1 + tolerance)
    return np.asarray(within.all(axis=1))
