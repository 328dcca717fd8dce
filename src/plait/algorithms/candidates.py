"""Evaluating the candidates of a search, each one once.

`Evaluator` turns genes into objectives, cheapest first: constraints on exact quantities, then predictions, then
constraints on those.

`Seen` is the set of candidates evaluated so far, as 64-bit hashes of their genes: ten million fit in memory. (If two
candidates collide, with a probability of about 2^-64, the search misses one of them.)

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import BEYOND, Batch, Objective
from plait.core.errors import UserError
from plait.space.constraints import Mask, failures
from plait.space.space import COLUMNS, Columns, Genes, Space

Keys = NDArray[np.uint64]
NEAREST, NEAREST_ROUNDS = 2000, 12  # candidates per round and rounds of the search for near misses

_FACTORS = np.random.default_rng(0x706C616974).integers(2**63, size=4096, dtype=np.uint64) * 2 + 1


def keys_of(genes_NG: Genes) -> Keys:
    """A hash per row: the sum of its genes times a random odd factor per position, modulo 2^64."""
    factors_G = np.resize(_FACTORS, genes_NG.shape[1])
    total_N = np.zeros(len(genes_NG), dtype=np.uint64)
    for g, factor in enumerate(factors_G):
        total_N += (genes_NG[:, g].astype(np.uint64) + 1) * factor
    return total_N


class Seen:
    def __init__(self, keys: Keys | None = None) -> None:
        self.keys = np.zeros(0, dtype=np.uint64) if keys is None else keys  # sorted

    def __len__(self) -> int:
        return len(self.keys)

    def new(self, genes_NG: Genes) -> NDArray[np.int64]:
        """Indices of the rows that are not in the set, without duplicates, in order."""
        keys_N = keys_of(genes_NG)
        _, first = np.unique(keys_N, return_index=True)
        first.sort()
        keys = keys_N[first]
        if not len(self.keys):
            return first
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.asarray(first[self.keys[at] != keys])

    def add(self, new_NG: Genes) -> None:
        """Add rows that `new` returned."""
        both = np.concatenate([self.keys, np.sort(keys_of(new_NG))])
        self.keys = np.sort(both, kind="stable")  # a merge in one pass: both parts are sorted


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluated:
    """Feasible candidates with their columns; `costs_NM` has the objectives, all to be minimised."""

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


def _columns(objective: Objective, batch: Batch) -> Columns:
    """The columns of an objective for a batch. Those of a user's own objective are checked: it may return anything."""
    if type(objective).__module__.startswith("plait."):
        return objective.columns(batch)
    try:
        columns = {name: np.asarray(column) for name, column in objective.columns(batch).items()}
    except UserError:
        raise
    except Exception as wrong:
        if not len(batch):  # a search asks for its columns before it has candidates
            return {objective.name: np.zeros(0)}
        raise UserError(f"the objective {objective.name} fails: {type(wrong).__name__}: {wrong}.") from wrong
    shapes = {name: column.shape for name, column in columns.items()}
    if objective.name not in columns or any(shape != (len(batch),) for shape in shapes.values()):
        raise UserError(
            f"the objective {objective.name} should return a column '{objective.name}' with one number per candidate "
            f"({len(batch)}); it returned {shapes}."
        )
    if columns[objective.name].dtype.kind not in "biuf":
        raise UserError(f"the objective {objective.name} returned {columns[objective.name].dtype}, not numbers.")
    # JSON has no infinity, so it is clipped; in float64, because a narrower type cannot hold the bound.
    return {
        name: np.clip(column.astype(np.float64), -BEYOND, BEYOND) if column.dtype.kind == "f" else column
        for name, column in columns.items()
    }


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
            constraints = ", ".join(
                f"'{constraint}'" for constraint in space.candidate_constraints if constraint.names & set(missing)
            )
            raise UserError(
                f"{constraints} needs {', '.join(missing)}, which none of the objectives ({', '.join(names)}) computes."
            )

    def exact(self, genes_NG: Genes) -> tuple[Columns, Mask]:
        """The exact columns, and which candidates satisfy the constraints on them."""
        columns = self.space.columns(genes_NG, seq=self.seq, memory=self.memory)
        return columns, self.space.valid(genes_NG, columns)

    def further(self, genes_NG: Genes, columns: Columns) -> tuple[Columns, Mask]:
        """The exact columns and those of the objectives, and which candidates satisfy all constraints."""
        batch = Batch(self.space, genes_NG, columns)
        columns = dict(columns)
        for objective in self.objectives:
            columns |= _columns(objective, batch)
            if np.isnan(columns[objective.name]).any():
                row = int(np.isnan(columns[objective.name]).argmax())
                raise UserError(f"{objective.name} is not a number for {self.space.spec(genes_NG[row])}")
        if not self.space.needs():
            return columns, np.ones(len(genes_NG), dtype=np.bool_)
        return columns, self.space.valid(genes_NG, columns)

    def evaluated(self, genes_NG: Genes, columns: Columns) -> Evaluated:
        """The candidates with their objectives as costs to minimise."""
        signs = [-1.0 if objective.maximise else 1.0 for objective in self.objectives]
        costs = [sign * columns[o.name].astype(np.float64) for sign, o in zip(signs, self.objectives, strict=True)]
        return Evaluated(genes_NG, columns, np.stack(costs, axis=1))

    def nothing(self) -> Evaluated:
        """Zero candidates with all columns, the initial archive."""
        genes_NG = np.zeros((0, self.space.genes), dtype=np.int16)
        columns, _ = self.further(genes_NG, {name: np.zeros(0, dtype=np.int64) for name in COLUMNS})
        return self.evaluated(genes_NG, columns)

    def nearest(self, rng: np.random.Generator, count: int = 3) -> list[tuple[str, dict[str, float]]]:
        """The candidates closest to being feasible, and their values of the constrained quantities: random candidates,
        improved by a few rounds of mutation."""
        names = {name for constraint in self.space.candidate_constraints for name in constraint.names}
        genes_NG = self.space.sample(rng, NEAREST)
        for _ in range(NEAREST_ROUNDS):
            columns, _ = self.further(genes_NG, self.exact(genes_NG)[0])
            excess_N = self.space.excess(genes_NG, columns)
            _, first = np.unique(keys_of(genes_NG), return_index=True)
            best = first[np.argsort(excess_N[first], kind="stable")][: NEAREST // 10]
            kept_NG = genes_NG[best]
            genes_NG = np.concatenate([kept_NG, *(self.space.mutate(rng, kept_NG, 0.3) for _ in range(9))])
        shown = [row for row in best[:count] if np.isfinite(excess_N[row])]
        return [
            (
                self.space.spec(kept_NG[at]),
                {name: float(columns[name][row]) for name in sorted(names) if name in columns},
            )
            for at, row in enumerate(shown)
        ]

    def explain(self, rng: np.random.Generator, samples: int = 10_000) -> str:
        """Why random candidates are infeasible, constraint by constraint."""
        genes_NG = self.space.sample(rng, samples)
        columns, feasible_N = self.exact(genes_NG)
        passed = self.space.passed(genes_NG, columns)
        if self.space.needs() and (feasible_N.any() or self.cheap):
            # An expensive objective is computed only for candidates that satisfy the other constraints.
            asked_N = np.ones_like(feasible_N) if self.cheap else feasible_N
            chosen = {name: column[asked_N] for name, column in columns.items()}
            further, _ = self.further(genes_NG[asked_N], chosen)
            for text, mask in self.space.passed(genes_NG[asked_N], further).items():
                if text not in passed:
                    passed[text] = np.ones(samples, dtype=np.bool_)
                    passed[text][asked_N] = mask
        return failures(passed, samples)
