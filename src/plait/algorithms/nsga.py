"""NSGA-III's reference directions and niches (Deb & Jain 2014, IEEE Trans. Evol. Comput. 18(4), Sec. IV).

Letters: N candidates, M objectives, R directions.

NSGA-II (Deb et al. 2002) and NSGA-III (Deb & Jain 2014), a generation at a time in NumPy.

A generation: parents by binary tournament (the earlier front wins, then the emptier place), uniform crossover,
mutation, repair of layers that their width does not allow; then parents and children together, of which the best fronts
survive whole and the last one in part. NSGA-II keeps those with the most room around them; NSGA-III, better with
more than three objectives, those that leave no direction of the objective space without a candidate.

Letters: P population, N candidates, G genes, M objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Objective
from plait.algorithms.search import Search
from plait.analysis.pareto import crowding_distance, front_ranks
from plait.space.space import Genes, Space

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


class Nsga2(Search):
    method: ClassVar[str] = "nsga2"

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        *,
        iterations: int = 50,
        population: int = 200,
        mutation: float | None = None,
        crossover: float = 0.9,
        **rest: Any,
    ) -> None:
        super().__init__(space, objectives, iterations=1 + iterations, **rest)
        self.population, self.crossover = population, crossover
        self.mutation = 1 / space.genes if mutation is None else mutation
        self.genes_PG = self.archive.genes_NG
        self.costs_PM = self.archive.costs_NM

    def settings(self) -> dict[str, Any]:
        return {"population": self.population, "mutation": self.mutation, "crossover": self.crossover}

    def step(self, rng: np.random.Generator) -> None:
        if not self.iteration:
            found = self.first(rng, self.population)
        else:
            rank_P = front_ranks(self.costs_PM)
            room_P = self.room(rank_P)
            found = self.collect(lambda n: self._children(rng, n, rank_P, room_P), self.population)
            self.exhausted = not len(found)
        self.keep(found)
        genes_NG = np.concatenate([self.genes_PG, found.genes_NG])
        costs_NM = np.concatenate([self.costs_PM, found.costs_NM])
        survivors = self._survivors(rng, costs_NM)
        self.genes_PG, self.costs_PM = genes_NG[survivors], costs_NM[survivors]

    def room(self, rank_P: Ints) -> Floats:
        """The crowding distance of each within its own front."""
        room_P = np.zeros(len(rank_P))
        for rank in np.unique(rank_P):
            of_front = rank_P == rank
            room_P[of_front] = crowding_distance(self.costs_PM[of_front])
        return room_P

    def fill(self, rng: np.random.Generator, costs_NM: Floats, taken: Ints, last: Ints, want: int) -> Ints:
        """`want` of the last front, which does not fit as a whole."""
        return np.asarray(last[np.argsort(-crowding_distance(costs_NM[last]), kind="stable")[:want]])

    def _survivors(self, rng: np.random.Generator, costs_NM: Floats) -> Ints:
        rank_N = front_ranks(costs_NM)
        size_of_front = np.bincount(rank_N)
        whole = int(np.searchsorted(np.cumsum(size_of_front), self.population, side="right"))
        taken = np.flatnonzero(rank_N < whole)
        if whole == len(size_of_front) or len(taken) == self.population:
            return taken
        last = np.flatnonzero(rank_N == whole)
        return np.concatenate([taken, self.fill(rng, costs_NM, taken, last, self.population - len(taken))])

    def _children(self, rng: np.random.Generator, n: int, rank_P: Ints, room_P: Floats) -> Genes:
        one_NG, other_NG = (self.genes_PG[self._tournament(rng, n, rank_P, room_P)] for _ in range(2))
        crossed_NG = self.space.crossover(rng, one_NG, other_NG)
        children_NG = np.where(rng.random((n, 1)) < self.crossover, crossed_NG, one_NG)
        return self.space.repair(rng, self.space.mutate(rng, children_NG, self.mutation))

    def _tournament(self, rng: np.random.Generator, n: int, rank_P: Ints, room_P: Floats) -> Ints:
        one_N, other_N = rng.integers(len(rank_P), size=(2, n))
        earlier = rank_P[one_N] < rank_P[other_N]
        roomier = (rank_P[one_N] == rank_P[other_N]) & (room_P[one_N] >= room_P[other_N])
        return np.asarray(np.where(earlier | roomier, one_N, other_N))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"genes": self.genes_PG, "costs": self.costs_PM}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.genes_PG, self.costs_PM = arrays["genes"], arrays["costs"]


class Nsga3(Nsga2):
    method: ClassVar[str] = "nsga3"

    def fill(self, rng: np.random.Generator, costs_NM: Floats, taken: Ints, last: Ints, want: int) -> Ints:
        return fill_by_niches(rng, costs_NM, taken, last, want, directions(costs_NM.shape[1], self.population))

    def room(self, rank_P: Ints) -> Floats:
        """NSGA-III tells candidates of one front apart only when it fills the next population."""
        return np.zeros(len(rank_P))
