"""Exhaustive search: evaluate every candidate of a small space, so that the front is exact.

Letters: N candidates, G genes, B layers, S slots of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from plait.algorithms.objectives import Objective
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.space.space import Genes, Space

FEW = 1 << 14  # candidates: smaller spaces are enumerated, whatever the method
MAX_CANDIDATES = 1 << 20  # of a space that can be enumerated


def everything(space: Space) -> Genes:
    """Every distinct candidate whose layers are feasible at its width and fit the layers before them."""
    sizes = [len(values) for values in space.choices.values()]
    found = []
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
                    found.append(space.canonical(genes_NG))
    return np.unique(np.concatenate(found), axis=0)


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
