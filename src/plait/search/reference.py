"""NSGA-III's reference directions and niches (Deb & Jain 2014, IEEE Trans. Evol. Comput. 18(4), Sec. IV).

Letters: N candidates, M objectives, R directions.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def directions(objectives: int, at_most: int) -> Floats:
    """Evenly spread points of the simplex (Das & Dennis 1998), as many as fit in `at_most`, M of them at least."""
    divisions = 1
    while objectives > 1 and comb(divisions + objectives, objectives - 1) <= at_most:
        divisions += 1
    # A way to part the divisions among the objectives is a choice of bars between them.
    bars = combinations(range(divisions + objectives - 1), objectives - 1)
    edges_RB = np.array([(-1, *row, divisions + objectives - 1) for row in bars])
    return (np.diff(edges_RB, axis=1) - 1) / divisions


def normalised(costs_NM: Floats) -> Floats:
    """From the ideal point, in units of where the plane through the extreme points meets each axis."""
    from_ideal_NM = costs_NM - costs_NM.min(axis=0)
    objectives = costs_NM.shape[1]
    # Extreme along an axis: the least largest share of any other.
    weights_MM = np.where(np.eye(objectives, dtype=bool), 1.0, 1e6)
    extreme_MM = from_ideal_NM[(from_ideal_NM[None] * weights_MM[:, None]).max(axis=2).argmin(axis=1)]
    try:
        with np.errstate(divide="ignore"):
            reach_M = 1 / np.linalg.solve(extreme_MM, np.ones(objectives))
    except np.linalg.LinAlgError:
        reach_M = np.full(objectives, np.nan)
    if not np.isfinite(reach_M).all() or (reach_M <= 0).any():
        reach_M = from_ideal_NM.max(axis=0)  # the extremes span no plane
    return np.asarray(from_ideal_NM / np.where(reach_M > 0, reach_M, 1.0))


def nearest_direction(points_NM: Floats, directions_RM: Floats) -> tuple[Ints, Floats]:
    """For each point the direction it lies closest to, and how far off the line."""
    unit_RM = directions_RM / np.linalg.norm(directions_RM, axis=1, keepdims=True)
    along_NR = points_NM @ unit_RM.T
    off_NR = np.sqrt(np.maximum((points_NM**2).sum(axis=1, keepdims=True) - along_NR**2, 0))
    niche_N = off_NR.argmin(axis=1)
    return niche_N, off_NR[np.arange(len(niche_N)), niche_N]


def fill_by_niches(
    rng: np.random.Generator, costs_NM: Floats, taken: Ints, last: Ints, want: int, directions_RM: Floats
) -> Ints:
    """`want` of the last front, each for the direction that has the fewest so far."""
    chosen_from = np.concatenate([taken, last])
    niche_N, off_N = nearest_direction(normalised(costs_NM[chosen_from]), directions_RM)
    crowd_R = np.bincount(niche_N[: len(taken)], minlength=len(directions_RM))
    # Of a direction's candidates the one nearest to its line comes first, the others in any order.
    of_niche: dict[int, list[int]] = {}
    for place in (len(taken) + rng.permutation(len(last))).tolist():
        of_niche.setdefault(int(niche_N[place]), []).append(place)
    for niche, places in of_niche.items():
        if not crowd_R[niche]:
            nearest = min(places, key=lambda place: off_N[place])
            places.remove(nearest)
            places.append(nearest)
    picked: list[int] = []
    while len(picked) < want:
        open_niches = np.array(list(of_niche))
        crowd = crowd_R[open_niches]
        niche = int(rng.choice(open_niches[crowd == crowd.min()]))
        picked.append(of_niche[niche].pop())
        crowd_R[niche] += 1
        if not of_niche[niche]:
            del of_niche[niche]
    return chosen_from[picked]
