"""Candidates of a search: evaluated, remembered, and kept in its record.

`Evaluator` turns genes into objectives, the cheap questions first: constraints on exact quantities, then predictions,
then constraints on those.

`Seen` remembers which candidates have been evaluated, by 64-bit keys of their genes, so that ten million fit in memory.
(Two candidates share a key with a probability of about 2^-64; the search would then lose one of them.)

`CandidateLog` keeps every evaluated candidate, for a later ground truth: LiteTransformerSearch (Javaheripi et al. 2022,
arXiv:2203.02094) trains the 1,200 architectures it sampled afterwards. 2,500 candidates of `lts-gpt2` take about 80 kB
of a record: columns of small integers, and of floats whose bytes are grouped by significance, compressed, as text. A
record holds the first `MOST` candidates and says of how many.

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import BEYOND, Batch, Objective
from plait.core.errors import UserError
from plait.space.constraints import Mask, failures
from plait.space.declaration import Declaration
from plait.space.space import COLUMNS, Columns, Genes, Space

Keys = NDArray[np.uint64]
NEAREST, NEAREST_ROUNDS = 2000, 12  # candidates of a round

_FACTORS = np.random.default_rng(0x706C616974).integers(2**63, size=4096, dtype=np.uint64) * 2 + 1


def keys_of(genes_NG: Genes) -> Keys:
    """One key a row: a sum of the genes, each times an odd random number of its place, modulo 2^64."""
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
        """The places of rows never met before, each row once, in order."""
        keys_N = keys_of(genes_NG)
        _, first = np.unique(keys_N, return_index=True)
        first.sort()
        wanted = keys_N[first]
        if not len(self.keys):
            return first
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.asarray(first[self.keys[at] != wanted])

    def add(self, new_NG: Genes) -> None:
        """Rows that `new` gave."""
        both = np.concatenate([self.keys, np.sort(keys_of(new_NG))])
        self.keys = np.sort(both, kind="stable")  # merges the two in one pass


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluated:
    """Candidates that satisfy every constraint; `costs_NM` has the objectives, all to be minimised."""

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
    """What an objective gives for a batch. An objective of a user's own may do anything; what it does wrong is told."""
    if type(objective).__module__.startswith("plait."):
        return objective.columns(batch)
    try:
        found = {name: np.asarray(column) for name, column in objective.columns(batch).items()}
    except UserError:
        raise
    except Exception as wrong:
        if not len(batch):  # a search asks for its columns before it has candidates
            return {objective.name: np.zeros(0)}
        raise UserError(f"the objective {objective.name} fails: {type(wrong).__name__}: {wrong}.") from wrong
    shapes = {name: column.shape for name, column in found.items()}
    if objective.name not in found or any(shape != (len(batch),) for shape in shapes.values()):
        raise UserError(
            f"the objective {objective.name} should give a column '{objective.name}' with one number per candidate "
            f"({len(batch)}); it gives {shapes}."
        )
    if found[objective.name].dtype.kind not in "biuf":
        raise UserError(f"the objective {objective.name} gives {found[objective.name].dtype}, not numbers.")
    # JSON has no infinities. In float64: a narrower type cannot hold the bounds.
    return {
        name: np.clip(each.astype(np.float64), -BEYOND, BEYOND) if each.dtype.kind == "f" else each
        for name, each in found.items()
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
                f"{constraints} needs {', '.join(missing)}, which none of the objectives ({', '.join(names)}) gives."
            )

    def exact(self, genes_NG: Genes) -> tuple[Columns, Mask]:
        """The exact columns, and which candidates satisfy the constraints about those."""
        columns = self.space.columns(genes_NG, seq=self.seq, memory=self.memory)
        return columns, self.space.valid(genes_NG, columns)

    def further(self, genes_NG: Genes, columns: Columns) -> tuple[Columns, Mask]:
        """All columns, and which candidates satisfy all constraints."""
        batch = Batch(self.space, genes_NG, columns)
        found = dict(columns)
        for objective in self.objectives:
            found |= _columns(objective, batch)
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

    def nearest(self, rng: np.random.Generator, count: int = 3) -> list[tuple[str, dict[str, float]]]:
        """The candidates that miss the constraints by the least, and what they have of what is constrained. Drawn, then
        bettered by a few rounds of mutation."""
        names = {name for constraint in self.space.candidate_constraints for name in constraint.names}
        genes_NG = self.space.sample(rng, NEAREST)
        for _ in range(NEAREST_ROUNDS):
            columns, _ = self.further(genes_NG, self.exact(genes_NG)[0])
            missed_N = self.space.excess(genes_NG, columns)
            _, first = np.unique(keys_of(genes_NG), return_index=True)
            best = first[np.argsort(missed_N[first], kind="stable")][: NEAREST // 10]
            kept_NG = genes_NG[best]
            genes_NG = np.concatenate([kept_NG, *(self.space.mutate(rng, kept_NG, 0.3) for _ in range(9))])
        shown = [place for place in best[:count] if np.isfinite(missed_N[place])]
        return [
            (
                self.space.spec(kept_NG[at]),
                {name: float(columns[name][place]) for name in sorted(names) if name in columns},
            )
            for at, place in enumerate(shown)
        ]

    def explain(self, rng: np.random.Generator, samples: int = 10_000) -> str:
        """Why random candidates are refused, constraint by constraint."""
        genes_NG = self.space.sample(rng, samples)
        columns, fine_N = self.exact(genes_NG)
        passed = self.space.passed(genes_NG, columns)
        if self.space.needs() and (fine_N.any() or self.cheap):
            # A dear objective is asked only about what the other constraints leave.
            asked_N = np.ones_like(fine_N) if self.cheap else fine_N
            chosen = {name: column[asked_N] for name, column in columns.items()}
            further, _ = self.further(genes_NG[asked_N], chosen)
            for text, mask in self.space.passed(genes_NG[asked_N], further).items():
                if text not in passed:
                    passed[text] = np.ones(samples, dtype=np.bool_)
                    passed[text][asked_N] = mask
        return failures(passed, samples)


MOST = 1 << 16  # candidates of one record: some 2 MB
_WIDTHS = ("int8", "int16")  # of a gene


@dataclass
class CandidateLog:
    """Grows while a search runs; in the order in which candidates were compared."""

    objectives: Sequence[str]
    _genes: list[Genes] = field(default_factory=list)
    _values: list[Floats] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self._genes))

    def add(self, found: Evaluated) -> None:
        kept = found[: MOST - len(self)]
        if len(kept):
            self._genes.append(kept.genes_NG)
            self._values.append(np.stack([kept.columns[name].astype(np.float64) for name in self.objectives], axis=1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint; empty before anything was compared."""
        if not self._genes:
            return {}
        self._genes, self._values = [np.concatenate(self._genes)], [np.concatenate(self._values)]
        return {"genes": self._genes[0], "values": self._values[0]}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._genes, self._values = ([arrays["genes"]], [arrays["values"]]) if arrays else ([], [])

    def as_dict(self) -> dict[str, Any]:
        arrays = self.arrays() or {"genes": np.zeros((0, 0), np.int16), "values": np.zeros((0, len(self.objectives)))}
        genes_NG, values_NM = arrays["genes"], arrays["values"]
        width = next(name for name in _WIDTHS if not genes_NG.size or genes_NG.max() <= np.iinfo(name).max)
        return {
            "stored": len(self),
            "objectives": list(self.objectives),
            "gene_type": width,
            "genes": _packed(genes_NG.astype(width)),
            "values": _packed(values_NM),
        }


@dataclass(frozen=True)
class Candidates:
    """What a record of a search has stored of them."""

    space: Space
    objectives: tuple[str, ...]
    genes_NG: Genes
    values_NM: Floats
    evaluated: int

    @classmethod
    def of(cls, config: Mapping[str, Any], result: Mapping[str, Any]) -> Candidates:
        """From a record's two halves. Mixers of the user's own must be known already."""
        stored = result.get("candidates")
        if stored is None:
            raise UserError(
                "this search was stored without its candidates; remove it with `plait runs rm`, then search again."
            )
        # Constraints decide which candidates there are, not what their genes mean; those of a Python file are no text.
        space = Space(Declaration.from_dict({**config["space"], "rules": ()}))
        shape = (stored["stored"], space.genes)
        try:
            genes_NG = _unpacked(stored["genes"], stored["gene_type"], shape).astype(np.int16)
            values_NM = _unpacked(stored["values"], "float64", (shape[0], len(stored["objectives"])))
        except (ValueError, zlib.error, binascii.Error):
            raise UserError("the candidates of this search cannot be read: the record is damaged.") from None
        return cls(space, tuple(stored["objectives"]), genes_NG, values_NM, int(result["evaluated"]))

    def __len__(self) -> int:
        return len(self.genes_NG)

    def rows(self, on_front: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """One for every candidate: its number in the search, its objectives, whether it is on the front, its spec."""
        best = set(on_front)
        for number, (row_G, values_M) in enumerate(zip(self.genes_NG, self.values_NM, strict=True), start=1):
            spec = self.space.spec(row_G)
            values = (int(value) if float(value).is_integer() else float(value) for value in values_M)
            named = dict(zip(self.objectives, values, strict=True))
            yield {"candidate": number, **named, "on_front": spec in best, "spec": spec}


def _packed(array: NDArray[Any]) -> str:
    """Column by column, and of a column first all lowest bytes: neighbours are alike, so they compress."""
    columns = np.ascontiguousarray(array.T)
    size = columns.dtype.itemsize
    plain = columns.astype(columns.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, size)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(plain.T).tobytes(), 9)).decode("ascii")


def _unpacked(text: str, kind: str, shape: tuple[int, int]) -> NDArray[Any]:
    size = np.dtype(kind).itemsize
    plain = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(size, -1)
    values = np.ascontiguousarray(plain.T).reshape(-1).view(np.dtype(kind).newbyteorder("<"))
    return np.ascontiguousarray(values.astype(kind).reshape(shape[1], shape[0]).T)
