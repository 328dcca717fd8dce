"""Every candidate of a small space: the front is then exact, and no algorithm has to look for it.

Letters: N candidates, G genes, B layers, S slots of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from plait.algorithms.objectives import Objective
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.space.space import Genes, Space

FEW = 1 << 14  # candidates: a space of no more is enumerated, whatever the method
MOST = 1 << 20  # candidates that are enumerated where it is asked for


def everything(space: Space) -> Genes:
    """Every candidate that the widths and the constraints about layers allow, each once."""
    sizes = [len(values) for values in space.choices.values()]
    found = []
    for code in np.flatnonzero(space.headers.legal):
        chosen = np.unravel_index(int(code), sizes)
        options = [space.allowed.options(slot, int(chosen[0])) for slot in range(len(space.slots))]
        layers_LS = np.array(list(itertools.product(*options)), dtype=np.int16).reshape(-1, len(space.slots))
        for place, depth in enumerate(space.depths):
            own = 1 if space.alike else depth  # layers that have genes
            which_NB = np.indices((len(layers_LS),) * own).reshape(own, len(layers_LS) ** own).T
            genes_NG = np.zeros((len(which_NB), space.genes), dtype=np.int16)
            genes_NG[:, 0], genes_NG[:, 1 : 1 + len(sizes)] = place, chosen
            first = 1 + len(sizes)
            genes_NG[:, first : first + own * len(space.slots)] = layers_LS[which_NB].reshape(len(which_NB), -1)
            found.append(space.canonical(genes_NG))
    return np.unique(np.concatenate(found), axis=0)


class Exhaustive(Search):
    method: ClassVar[str] = "exhaustive"

    @classmethod
    def sizes(cls, iterations: int | None, population: int | None) -> dict[str, int]:
        if iterations or population:
            raise UserError("exhaustive compares every candidate: it has neither iterations nor a population.")
        return {}

    def __init__(self, space: Space, objectives: Sequence[Objective], **rest: Any) -> None:
        super().__init__(space, objectives, iterations=1, **rest)
        if self.space.count > MOST:
            raise UserError(
                f"{space.name} has {self.space.count:.3g} candidates; exhaustive compares at most {MOST:,}. Choose "
                "another method, or narrow the space with --fix."
            )

    def step(self, rng: np.random.Generator) -> None:
        genes_NG = everything(self.space)
        self.keep(self.first(rng, len(genes_NG), lambda n: genes_NG))
