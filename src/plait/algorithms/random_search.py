"""Random search: draw, refuse, keep the front. The yardstick for the others, and enough for a look at a space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from plait.algorithms.objectives import Objective
from plait.algorithms.search import MOST_AT_ONCE, Search
from plait.space.space import Space

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
