"""Complete learning curves of many architectures on one text, on which races are replayed.

A table is read from a file of complete trainings (`read_tables`, one table per text).

Letters: A architectures, S seeds, B budgets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from plait.analysis.pareto import Floats
from plait.core.errors import UserError
from plait.core.files import loads


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


def read_tables(path: Path) -> list[CurveTable]:
    """One table per text. Architectures that lack a budget, or have one seed if others have several, are left out and
    listed in `provenance`. If one has fewer seeds than most, its seeds are repeated, which keeps its mean."""
    try:
        document = loads(path.read_text(encoding="utf-8"), constants=True)
        runs, rows = document["runs"], {row["name"]: row for row in document["architectures"]}
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise UserError(f"{path} is not a truth table: {wrong}.") from None
    tables = []
    for text in document["texts"]:
        curves: dict[str, dict[int, dict[float, float]]] = {}
        for run in runs:
            if run["text"] == text:
                curves.setdefault(run["architecture"], {})[run["seed"]] = {
                    float(t): loss for t, loss in run["annealed"]
                }
        if not curves:
            continue
        budgets = sorted({t for by_seed in curves.values() for curve in by_seed.values() for t in curve})
        seeds = {
            name: [seed for seed, curve in sorted(by_seed.items()) if all(_finite(curve.get(t)) for t in budgets)]
            for name, by_seed in curves.items()
        }
        counts = sorted(len(complete) for complete in seeds.values() if complete)
        if not counts:
            raise UserError(f"{path}: no architecture has a finite loss at every budget on the text {text}.")
        most = counts[len(counts) // 2]
        whole = [name for name, complete in seeds.items() if len(complete) >= min(2, most)]
        loss_ASB = np.array(
            [[[curves[n][s][t] for t in budgets] for s in (seeds[n] * most)[:most]] for n in whole], np.float64
        )
        provenance = {**document.get("provenance", {}), "left_out": sorted(set(curves) - set(whole))}
        families = [str(rows[name].get("family", name)) for name in whole]
        costs = np.array([float(rows[name].get("flops_per_token") or 1.0) for name in whole])
        tables.append(CurveTable(text, whole, families, budgets, loss_ASB, costs, provenance))
    return tables


def _finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)
