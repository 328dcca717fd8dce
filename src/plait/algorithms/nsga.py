"""NSGA-II (Deb et al. 2002) and NSGA-III (Deb & Jain 2014, IEEE Trans. Evol. Comput. 18(4)), vectorised in NumPy.

Each generation selects parents by binary tournament (lower rank wins, then larger crowding distance), applies uniform
crossover and mutation, and repairs infeasible layers. Of parents and children together the best fronts survive whole
and the last one in part: NSGA-II keeps its least crowded candidates; NSGA-III, better with more than three objectives,
fills the niches of evenly spread reference directions (Sec. IV).

Letters: P population, N candidates, G genes, M objectives, R reference directions.
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
    """Reference directions: evenly spread points of the simplex (Das & Dennis 1998), at most `at_most`, at least M."""
    divisions = 1
    while objectives > 1 and comb(divisions + objectives, objectives - 1) <= at_most:
        divisions += 1
    # Stars and bars: splitting the divisions among the objectives is choosing positions of bars between them.
    bars = combinations(range(divisions + objectives - 1), objectives - 1)
    edges_RB = np.array([(-1, *row, divisions + objectives - 1) for row in bars])
    return (np.diff(edges_RB, axis=1) - 1) / divisions


def normalised(costs_NM: Floats) -> Floats:
    """Costs relative to the ideal point, divided by the intercepts of the plane through the extreme points."""
    from_ideal_NM = costs_NM - costs_NM.min(axis=0)
    objectives = costs_NM.shape[1]
    # The extreme point of an axis minimises the achievement scalarising function with a small weight on that axis.
    weights_MM = np.where(np.eye(objectives, dtype=bool), 1.0, 1e6)
    extreme_MM = from_ideal_NM[(from_ideal_NM[None] * weights_MM[:, None]).max(axis=2).argmin(axis=1)]
    try:
        with np.errstate(divide="ignore"):
            intercept_M = 1 / np.linalg.solve(extreme_MM, np.ones(objectives))
    except np.linalg.LinAlgError:
        intercept_M = np.full(objectives, np.nan)
    if not np.isfinite(intercept_M).all() or (intercept_M <= 0).any():
        intercept_M = from_ideal_NM.max(axis=0)  # the extreme points do not span a plane
    return np.asarray(from_ideal_NM / np.where(intercept_M > 0, intercept_M, 1.0))


def nearest_direction(points_NM: Floats, directions_RM: Floats) -> tuple[Ints, Floats]:
    """The closest reference direction of each point, and the perpendicular distance to it."""
    unit_RM = directions_RM / np.linalg.norm(directions_RM, axis=1, keepdims=True)
    along_NR = points_NM @ unit_RM.T
    distance_NR = np.sqrt(np.maximum((points_NM**2).sum(axis=1, keepdims=True) - along_NR**2, 0))
    niche_N = distance_NR.argmin(axis=1)
    return niche_N, distance_NR[np.arange(len(niche_N)), niche_N]


def fill_by_niches(
    rng: np.random.Generator, costs_NM: Floats, taken: Ints, last: Ints, want: int, directions_RM: Floats
) -> Ints:
    """Select `want` candidates of the last front, each from the least crowded niche."""
    pool = np.concatenate([taken, last])
    niche_N, distance_N = nearest_direction(normalised(costs_NM[pool]), directions_RM)
    crowd_R = np.bincount(niche_N[: len(taken)], minlength=len(directions_RM))
    # An empty niche takes its closest candidate first; the others come in random order.
    of_niche: dict[int, list[int]] = {}
    for row in (len(taken) + rng.permutation(len(last))).tolist():
        of_niche.setdefault(int(niche_N[row]), []).append(row)
    for niche, rows in of_niche.items():
        if not crowd_R[niche]:
            nearest = min(rows, key=lambda row: distance_N[row])
            rows.remove(nearest)
            rows.append(nearest)
    selected: list[int] = []
    while len(selected) < want:
        open_niches = np.array(list(of_niche))
        crowd = crowd_R[open_niches]
        niche = int(rng.choice(open_niches[crowd == crowd.min()]))
        selected.append(of_niche[niche].pop())
        crowd_R[niche] += 1
        if not of_niche[niche]:
            del of_niche[niche]
    return pool[selected]


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

    def settings(self) -> dict[str, float]:
        return {"population": self.population, "mutation": self.mutation, "crossover": self.crossover}

    def step(self, rng: np.random.Generator) -> None:
        if not self.iteration:
            children = self.first(rng, self.population)
        else:
            rank_P = front_ranks(self.costs_PM)
            distance_P = self.crowding(rank_P)
            children = self.collect(lambda n: self._children(rng, n, rank_P, distance_P), self.population)
            self.exhausted = not len(children)
        self.keep(children)
        genes_NG = np.concatenate([self.genes_PG, children.genes_NG])
        costs_NM = np.concatenate([self.costs_PM, children.costs_NM])
        survivors = self._survivors(rng, costs_NM)
        self.genes_PG, self.costs_PM = genes_NG[survivors], costs_NM[survivors]

    def crowding(self, rank_P: Ints) -> Floats:
        """The crowding distance of each candidate within its own front, the tie-breaker of the tournament."""
        distance_P = np.zeros(len(rank_P))
        for rank in np.unique(rank_P):
            of_front = rank_P == rank
            distance_P[of_front] = crowding_distance(self.costs_PM[of_front])
        return distance_P

    def fill(self, rng: np.random.Generator, costs_NM: Floats, taken: Ints, last: Ints, want: int) -> Ints:
        """Select `want` candidates of the last front, which does not fit as a whole."""
        return np.asarray(last[np.argsort(-crowding_distance(costs_NM[last]), kind="stable")[:want]])

    def _survivors(self, rng: np.random.Generator, costs_NM: Floats) -> Ints:
        rank_N = front_ranks(costs_NM)
        front_sizes = np.bincount(rank_N)
        whole_fronts = int(np.searchsorted(np.cumsum(front_sizes), self.population, side="right"))
        taken = np.flatnonzero(rank_N < whole_fronts)
        if whole_fronts == len(front_sizes) or len(taken) == self.population:
            return taken
        last = np.flatnonzero(rank_N == whole_fronts)
        return np.concatenate([taken, self.fill(rng, costs_NM, taken, last, self.population - len(taken))])

    def _children(self, rng: np.random.Generator, n: int, rank_P: Ints, distance_P: Floats) -> Genes:
        one_NG, other_NG = (self.genes_PG[self._tournament(rng, n, rank_P, distance_P)] for _ in range(2))
        crossed_NG = self.space.crossover(rng, one_NG, other_NG)
        children_NG = np.where(rng.random((n, 1)) < self.crossover, crossed_NG, one_NG)
        return self.space.repair(rng, self.space.mutate(rng, children_NG, self.mutation))

    def _tournament(self, rng: np.random.Generator, n: int, rank_P: Ints, distance_P: Floats) -> Ints:
        one_N, other_N = rng.integers(len(rank_P), size=(2, n))
        better_rank = rank_P[one_N] < rank_P[other_N]
        less_crowded = (rank_P[one_N] == rank_P[other_N]) & (distance_P[one_N] >= distance_P[other_N])
        return np.asarray(np.where(better_rank | less_crowded, one_N, other_N))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"genes": self.genes_PG, "costs": self.costs_PM}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.genes_PG, self.costs_PM = arrays["genes"], arrays["costs"]


class Nsga3(Nsga2):
    method: ClassVar[str] = "nsga3"

    def fill(self, rng: np.random.Generator, costs_NM: Floats, taken: Ints, last: Ints, want: int) -> Ints:
        return fill_by_niches(rng, costs_NM, taken, last, want, directions(costs_NM.shape[1], self.population))

    def crowding(self, rank_P: Ints) -> Floats:
        """Zero: in NSGA-III candidates of one front tie in the tournament."""
        return np.zeros(len(rank_P))
