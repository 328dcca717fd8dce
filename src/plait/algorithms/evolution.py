"""Random search, the baseline, and the evolutionary search of LiteTransformerSearch (Javaheripi et al. 2022,
arXiv:2203.02094, Sec. 3 and App. B).

LiteTransformerSearch starts with 100 random candidates. Each of its 30 iterations samples 20 parents from the Pareto
front of everything evaluated so far, weighted by 1 / (1 + times already a parent), and evaluates 40 mutants (each gene
resampled with probability 0.3) and 40 uniform crossovers. Infeasible and repeated candidates are resampled: 2,500
evaluations in all.

Exhaustive search evaluates every candidate of a small space, so that the front is exact.

Letters: N candidates, G genes, B layers, S slots of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Objective
from plait.algorithms.search import MAX_BATCH, Search
from plait.core.errors import UserError
from plait.space.space import Genes, Space

ROUNDS, SAMPLES_PER_ROUND = 25, 100  # the number of candidates that lts evaluates


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
        at_once: int = MAX_BATCH,
        **rest: Any,
    ) -> None:
        super().__init__(space, objectives, iterations=-(-samples // at_once), **rest)
        self.samples, self.at_once = samples, at_once

    def settings(self) -> dict[str, float]:
        return {"samples": self.samples, "at_once": self.at_once}

    def step(self, rng: np.random.Generator) -> None:
        want = min(self.at_once, self.samples - self.evaluated)
        if not self.iteration:
            candidates = self.first(rng, want)
        else:
            candidates = self.collect(lambda n: self.space.sample(rng, n), want)
        self.exhausted = not len(candidates)
        self.keep(candidates)


DIVISORS = {"parents": 5, "mutants": 2.5, "crossovers": 2.5}  # of the population: 100 → 20, 40, 40


class LtsSearch(Search):
    """Iteration 0 is the random start: the published 30 iterations are 31 steps."""

    method: ClassVar[str] = "lts"

    @classmethod
    def sizes(cls, iterations: int | None, population: int | None) -> dict[str, int]:
        numbers = super().sizes(iterations, None)
        if population is not None:
            numbers |= {"start": population, **{k: max(1, int(population / n)) for k, n in DIVISORS.items()}}
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
        self.times_parent_N = np.zeros(0, dtype=np.int64)  # for each candidate of the archive

    def settings(self) -> dict[str, float]:
        return {
            "start": self.start,
            "parents": self.parents,
            "mutants": self.mutants,
            "crossovers": self.crossovers,
            "mutation": self.mutation,
        }

    def step(self, rng: np.random.Generator) -> None:
        if not self.iteration:
            children = self.first(rng, self.start)
        else:
            parents_PG = self.archive.genes_NG[self._choose_parents(rng)]

            def sample(n: int) -> Genes:
                return parents_PG[rng.integers(len(parents_PG), size=n)]

            children = self.collect(lambda n: self.space.mutate(rng, sample(n), self.mutation), self.mutants)
            children = children + self.collect(
                lambda n: self.space.crossover(rng, sample(n), sample(n)), self.crossovers
            )
            self.exhausted = not len(children)
        kept = self.keep(children)
        self.times_parent_N = np.append(self.times_parent_N, np.zeros(len(children), dtype=np.int64))[kept]

    def _choose_parents(self, rng: np.random.Generator) -> NDArray[np.int64]:
        weights_N = 1 / (1 + self.times_parent_N)
        # With replacement only if the front has too few candidates.
        replace = len(weights_N) < self.parents
        chosen = rng.choice(len(weights_N), size=self.parents, replace=replace, p=weights_N / weights_N.sum())
        np.add.at(self.times_parent_N, chosen, 1)
        return np.asarray(chosen)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"times_parent": self.times_parent_N}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.times_parent_N = arrays["times_parent"]


FEW = 1 << 14  # candidates: smaller spaces are enumerated, whatever the method
MAX_CANDIDATES = 1 << 20  # of a space that can be enumerated


def everything(space: Space) -> Genes:
    """Every distinct candidate whose layers are feasible at its width and fit the layers before them."""
    sizes = [len(values) for values in space.choices.values()]
    parts = []
    for code in np.flatnonzero(space.headers.legal):
        chosen = np.unravel_index(int(code), sizes)
        for own, stacks_NBS in enumerate(_stacks(space, int(chosen[0])), 1):
            genes_NG = np.zeros((len(stacks_NBS), space.genes), dtype=np.int16)
            first = 1 + len(sizes)
            genes_NG[:, 1:first] = chosen
            genes_NG[:, first : first + own * len(space.slots)] = stacks_NBS.reshape(len(stacks_NBS), -1)
            for at, depth in enumerate(space.depths):
                if depth == own or space.alike:
                    genes_NG[:, 0] = at
                    parts.append(space.canonical(genes_NG))
    return np.unique(np.concatenate(parts), axis=0)


def _stacks(space: Space, width: int) -> Iterator[Genes]:
    """All feasible stacks of one layer, of two layers, and so on up to the maximum depth."""
    options = [space.allowed.options(slot, width) for slot in range(len(space.slots))]
    layers_LS = np.array(list(itertools.product(*options)), dtype=np.int16).reshape(-1, len(space.slots))
    stacks_NBS = np.zeros((1, 0, len(space.slots)), dtype=np.int16)
    for _ in range(space.deepest):
        below_NBS, on_top_N1S = np.repeat(stacks_NBS, len(layers_LS), axis=0), np.tile(layers_LS, (len(stacks_NBS), 1))
        stacks_NBS = np.concatenate([below_NBS, on_top_N1S[:, None]], axis=1)
        if space.links:
            present_NB = np.ones(stacks_NBS.shape[:2], dtype=np.bool_)
            stacks_NBS = stacks_NBS[space.links.hold(np.full(len(stacks_NBS), width), stacks_NBS, present_NB)]
        yield stacks_NBS


class Exhaustive(Search):
    method: ClassVar[str] = "exhaustive"

    @classmethod
    def sizes(cls, iterations: int | None, population: int | None) -> dict[str, int]:
        if iterations or population:
            raise UserError("exhaustive compares every candidate: it has neither iterations nor a population.")
        return {}

    def __init__(self, space: Space, objectives: Sequence[Objective], **rest: Any) -> None:
        super().__init__(space, objectives, iterations=1, **rest)
        if self.space.count > MAX_CANDIDATES:
            raise UserError(
                f"{space.name} has {self.space.count:.3g} candidates; exhaustive compares at most {MAX_CANDIDATES:,}. "
                "Choose another method, or narrow the space with --fix."
            )

    def step(self, rng: np.random.Generator) -> None:
        genes_NG = everything(self.space)
        self.keep(self.first(rng, len(genes_NG), lambda n: genes_NG))
