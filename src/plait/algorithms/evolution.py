"""Random search: draw, refuse, keep the front. The yardstick for the others, and enough for a look at a space.

LiteTransformerSearch's evolutionary loop (Javaheripi et al. 2022, arXiv:2203.02094, Sec. 3 and App. B).

100 random candidates; then, 30 times: the front over everything seen, 20 parents from it, drawn with a weight of
1 / (1 + how often a candidate has been a parent), 40 mutants of parents (each gene drawn again with probability 0.3)
and 40 crossovers of two (each gene from either). What breaks a constraint or was seen before is drawn again. 2,500 in
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Objective
from plait.algorithms.search import MOST_AT_ONCE, Search
from plait.space.space import Genes, Space

ROUNDS, SAMPLES_PER_ROUND = 25, 100  # as many as lts evaluates


class RandomSearch(Search):
    method: ClassVar[str] = "random"

    @classmethod
    def sizes(cls, iterations: int | None, population: int | None) -> dict[str, int]:
        return {"samples": (iterations or ROUNDS) * (population or SAMPLES_PER_ROUND)}

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        *,
        samples: int = 2500,
        at_once: int = MOST_AT_ONCE,
        **rest: Any,
    ) -> None:
        super().__init__(space, objectives, iterations=-(-samples // at_once), **rest)
        self.samples, self.at_once = samples, at_once

    def settings(self) -> dict[str, Any]:
        return {"samples": self.samples, "at_once": self.at_once}

    def step(self, rng: np.random.Generator) -> None:
        want = min(self.at_once, self.samples - self.evaluated)
        if not self.iteration:
            found = self.first(rng, want)
        else:
            found = self.collect(lambda n: self.space.sample(rng, n), want)
        self.exhausted = not len(found)
        self.keep(found)


SHARES = {"parents": 5, "mutants": 2.5, "crossovers": 2.5}  # of a population, one in so many: 100 → 20, 40, 40


class LtsSearch(Search):
    """Iteration 0 is the random start, so `iterations` of the published 30 are 31 steps."""

    method: ClassVar[str] = "lts"

    @classmethod
    def sizes(cls, iterations: int | None, population: int | None) -> dict[str, int]:
        numbers = super().sizes(iterations, None)
        if population is not None:
            numbers |= {"start": population, **{k: max(1, int(population / n)) for k, n in SHARES.items()}}
        return numbers

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        *,
        iterations: int = 30,
        start: int = 100,
        parents: int = 20,
        mutants: int = 40,
        crossovers: int = 40,
        mutation: float = 0.3,
        **rest: Any,
    ) -> None:
        super().__init__(space, objectives, iterations=1 + iterations, **rest)
        self.start, self.parents, self.mutants, self.crossovers = start, parents, mutants, crossovers
        self.mutation = mutation
        self.times_parent_N = np.zeros(0, dtype=np.int64)  # of the archive's candidates

    def settings(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "parents": self.parents,
            "mutants": self.mutants,
            "crossovers": self.crossovers,
            "mutation": self.mutation,
        }

    def step(self, rng: np.random.Generator) -> None:
        if not self.iteration:
            found = self.first(rng, self.start)
        else:
            parents_PG = self.archive.genes_NG[self._choose_parents(rng)]

            def some(n: int) -> Genes:
                return parents_PG[rng.integers(len(parents_PG), size=n)]

            found = self.collect(lambda n: self.space.mutate(rng, some(n), self.mutation), self.mutants)
            found = found + self.collect(lambda n: self.space.crossover(rng, some(n), some(n)), self.crossovers)
            self.exhausted = not len(found)
        stays = self.keep(found)
        self.times_parent_N = np.append(self.times_parent_N, np.zeros(len(found), dtype=np.int64))[stays]

    def _choose_parents(self, rng: np.random.Generator) -> NDArray[np.int64]:
        weights_N = 1 / (1 + self.times_parent_N)
        # A front smaller than the number of parents gives some of them twice.
        again = len(weights_N) < self.parents
        chosen = rng.choice(len(weights_N), size=self.parents, replace=again, p=weights_N / weights_N.sum())
        np.add.at(self.times_parent_N, chosen, 1)
        return np.asarray(chosen)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"times_parent": self.times_parent_N}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.times_parent_N = arrays["times_parent"]
