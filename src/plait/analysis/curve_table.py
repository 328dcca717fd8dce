"""Complete learning curves of many architectures on one text, on which races are replayed.

Letters: A architectures, S seeds, B budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from plait.analysis.pareto import Floats


@dataclass(frozen=True)
class CurveTable:
    """`loss_ASB`: the validation loss at each budget, after decaying the learning rate. `cost`: per token, in any unit.
    `families`: the composition of each architecture. `provenance`: the source of the numbers."""

    text: str
    names: list[str]
    families: list[str]
    budgets: list[float]
    loss_ASB: Floats
    cost: Floats
    provenance: Mapping[str, Any]

    @cached_property
    def truth(self) -> Floats:
        """Mean loss over seeds at the last budget."""
        return np.asarray(self.loss_ASB[:, :, -1].mean(axis=1))

    @cached_property
    def noise(self) -> float:
        """Standard deviation between seeds at the last budget, pooled, in nats."""
        return float(np.sqrt(self.loss_ASB[:, :, -1].var(axis=1, ddof=1).mean()))

    def subset(self, places: Sequence[int]) -> CurveTable:
        rows = list(places)
        return replace(
            self,
            names=[self.names[i] for i in rows],
            families=[self.families[i] for i in rows],
            loss_ASB=self.loss_ASB[rows],
            cost=self.cost[rows],
        )

    def until(self, budget: float) -> CurveTable:
        """The table up to this budget."""
        kept = [i for i, b in enumerate(self.budgets) if b <= budget * (1 + 1e-9)]
        return replace(self, budgets=[self.budgets[i] for i in kept], loss_ASB=self.loss_ASB[:, :, kept])

    def observations(
        self, longest: Mapping[str, int], seeds: Sequence[int]
    ) -> dict[str, dict[int, list[tuple[float, float]]]]:
        """The losses observed if each architecture was trained to its first `longest` budgets with these seeds."""
        return {
            name: {
                seed: [(self.budgets[b], float(self.loss_ASB[self.names.index(name), seed, b])) for b in range(count)]
                for seed in seeds
            }
            for name, count in longest.items()
        }
