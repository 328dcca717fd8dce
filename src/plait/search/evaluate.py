"""Candidates to objectives, the cheap questions first: rules on exact quantities, then predictions, then their rules.

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.search.objectives.objective import Batch, Objective
from plait.search.rules import Mask, failures
from plait.search.space import COLUMNS, Columns, Genes, Space

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluated:
    """Candidates that satisfy every rule; `costs_NM` has the objectives, all to be minimised."""

    genes_NG: Genes
    columns: Columns
    costs_NM: Floats

    def __len__(self) -> int:
        return len(self.genes_NG)

    def __getitem__(self, chosen: NDArray[Any] | slice) -> Evaluated:
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Evaluated(self.genes_NG[chosen], columns, self.costs_NM[chosen])

    def __add__(self, other: Evaluated) -> Evaluated:
        columns = {name: np.concatenate([column, other.columns[name]]) for name, column in self.columns.items()}
        return Evaluated(
            np.concatenate([self.genes_NG, other.genes_NG]), columns, np.concatenate([self.costs_NM, other.costs_NM])
        )


class Evaluator:
    def __init__(
        self, space: Space, objectives: Sequence[Objective], seq: int | None = None, memory: int | None = None
    ) -> None:
        if not objectives:
            raise UserError("a search needs at least one objective.")
        names = [objective.name for objective in objectives]
        if len(set(names)) < len(names):
            raise UserError(f"an objective is given twice: {', '.join(names)}.")
        self.space, self.objectives = space, tuple(objectives)
        self.seq = space.seq if seq is None else seq
        self.memory = space.memory if memory is None else memory
        self.cheap = all(objective.cheap for objective in objectives)
        given = {*names, *(f"{name}_high" for name in names)}
        if missing := sorted(space.needs() - given):
            rules = ", ".join(f"'{rule}'" for rule in space.candidate_rules if rule.names & set(missing))
            raise UserError(
                f"{rules} needs {', '.join(missing)}, which none of the objectives ({', '.join(names)}) gives."
            )

    def exact(self, genes_NG: Genes) -> tuple[Columns, Mask]:
        """The exact columns, and which candidates satisfy the rules about those."""
        columns = self.space.columns(genes_NG, seq=self.seq, memory=self.memory)
        return columns, self.space.valid(genes_NG, columns)

    def further(self, genes_NG: Genes, columns: Columns) -> tuple[Columns, Mask]:
        """All columns, and which candidates satisfy all rules."""
        batch = Batch(self.space, genes_NG, columns)
        found = dict(columns)
        for objective in self.objectives:
            found |= objective.columns(batch)
            if np.isnan(found[objective.name]).any():
                row = int(np.isnan(found[objective.name]).argmax())
                raise UserError(f"{objective.name} is not a number for {self.space.spec(genes_NG[row])}")
        late = self.space.needs()
        return found, self.space.valid(genes_NG, found) if late else np.ones(len(genes_NG), dtype=np.bool_)

    def whole(self, genes_NG: Genes, columns: Columns) -> Evaluated:
        signs = [-1.0 if objective.maximise else 1.0 for objective in self.objectives]
        costs = [sign * columns[o.name].astype(np.float64) for sign, o in zip(signs, self.objectives, strict=True)]
        return Evaluated(genes_NG, columns, np.stack(costs, axis=1))

    def nothing(self) -> Evaluated:
        """No candidates, with every column that there would be."""
        genes_NG = np.zeros((0, self.space.genes), dtype=np.int16)
        columns, _ = self.further(genes_NG, {name: np.zeros(0, dtype=np.int64) for name in COLUMNS})
        return self.whole(genes_NG, columns)

    def explain(self, rng: np.random.Generator, samples: int = 10_000) -> str:
        """Why random candidates are refused, rule by rule."""
        genes_NG = self.space.sample(rng, samples)
        columns, fine_N = self.exact(genes_NG)
        passed = self.space.passed(genes_NG, columns)
        if self.space.needs() and (fine_N.any() or self.cheap):
            # A dear objective is asked only about what the other rules leave.
            asked_N = np.ones_like(fine_N) if self.cheap else fine_N
            chosen = {name: column[asked_N] for name, column in columns.items()}
            further, _ = self.further(genes_NG[asked_N], chosen)
            for text, mask in self.space.passed(genes_NG[asked_N], further).items():
                if text not in passed:
                    passed[text] = np.ones(samples, dtype=np.bool_)
                    passed[text][asked_N] = mask
        return failures(passed, samples)
