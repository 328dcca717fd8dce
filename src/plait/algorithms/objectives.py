"""Objectives of a search: a number per candidate, to be maximised or minimised.

Exact objectives are columns of the space and cost nothing for millions of candidates. Predicted objectives come from a
profile of the device; a constraint on one uses the upper end of its interval, `latency_high <= 40ms`. Zero-cost proxies
build and score every candidate: tenths of a second each, too slow for millions.

`Evaluator` turns genes into objectives, cheapest first: constraints on exact quantities, then predictions, then
constraints on those.

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.core.registry import split_path
from plait.core.user_files import class_from_file
from plait.space.constraints import Mask
from plait.space.objective_table import OBJECTIVES, load
from plait.space.space import COLUMNS, Columns, Genes, Space

BEYOND = 1e300  # replaces infinity, which JSON cannot represent


@dataclass(frozen=True)
class Batch:
    """Candidates that satisfy the constraints on exact quantities, with their exact columns."""

    space: Space
    genes_NG: Genes
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.genes_NG)


class Objective(ABC):
    """Computes a column of its own name, in `unit`. Further columns may be used in constraints."""

    name: str
    maximise: bool
    unit: ClassVar[str] = ""
    cheap: ClassVar[bool] = True  # takes microseconds per candidate
    source: ClassVar[str] = ""  # hash of a user's file, so that an edited file is a different search

    @abstractmethod
    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """One number per candidate. NaN is an error; infinity is allowed."""

    def as_dict(self) -> dict[str, object]:
        """Everything that determines the values, as JSON, for the record of a search."""
        config = {"objective": self.name, "maximise": self.maximise}
        return {**config, "source": self.source} if self.source else config


class Exact(Objective):
    maximise: bool = False

    def __init__(self, maximise: bool | None = None) -> None:
        if maximise is not None:
            self.maximise = maximise

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        return {self.name: batch.columns[self.name]}


Floats = NDArray[np.float64]


class Predictor(Protocol):
    """Predicts quantities of a device in base units: seconds, bytes."""

    def predict(self, quantity: str, batch: Batch) -> tuple[Floats, Floats]:
        """The mean and the half-width of the 95 % interval for every candidate; the batch may be empty."""
        ...

    def as_dict(self) -> dict[str, object]:
        """What identifies the predictor, as JSON: the profile's hash, the setting."""
        ...


class Predicted(Objective):
    """A predicted quantity of the device: `Predicted("latency", predictor)`."""

    maximise: bool = False

    def __init__(self, name: str, predictor: Predictor | None = None) -> None:
        self.name = name
        if predictor is None:
            raise UserError(f"{self.name} is predicted from a profile of the device: give one with --profile.")
        self.predictor = predictor

    def columns(self, batch: Batch) -> dict[str, Floats]:
        mean_N, half_width_N = self.predictor.predict(self.name, batch)
        return {self.name: mean_N, f"{self.name}_high": mean_N + half_width_N}

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "predictor": self.predictor.as_dict()}


class DecoderParams(Exact):
    name: str = "decoder_params"
    unit: ClassVar[str] = "parameters"
    maximise: bool = True


class ActiveDecoderParams(Exact):
    name: str = "active_decoder_params"
    unit: ClassVar[str] = "parameters"
    maximise: bool = True

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        embeddings_N = batch.columns["total_params"] - batch.columns["decoder_params"]
        return {self.name: batch.columns["active_params"] - embeddings_N}


class TotalParams(Exact):
    name: str = "total_params"
    unit: ClassVar[str] = "parameters"


class ActiveParams(Exact):
    name: str = "active_params"
    unit: ClassVar[str] = "parameters"


class Flops(Exact):
    name: str = "flops"
    unit: ClassVar[str] = "FLOPs"


class FixedState(Exact):
    name: str = "fixed_state"
    unit: ClassVar[str] = "bytes"


class KvCache(Exact):
    name: str = "kv_cache"
    unit: ClassVar[str] = "bytes"


def register_file(source: str) -> str:
    """Load an objective from `my_objective.py` or `my_objective.py:Class`, add it to the table, and return its name.
    The name of an objective is returned unchanged."""
    direction = source[:4] if source.startswith(("min:", "max:")) else ""
    if source.removeprefix(direction) in OBJECTIVES or (file := split_path(source.removeprefix(direction))) is None:
        return source
    path, attribute = file
    mine = class_from_file(path, Objective, attribute)  # type: ignore[type-abstract]
    for wanted, kind in (("name", str), ("maximise", bool)):
        if not isinstance(getattr(mine, wanted, None), kind):
            raise UserError(f"{path}: {mine.__name__} has no `{wanted}`; add it as a class attribute.")
    if mine.name in COLUMNS and mine.name not in OBJECTIVES:  # `register` rejects names that are in the table
        raise UserError(f"{path}: '{mine.name}' is a column that every candidate has; choose another name.")
    try:
        mine()
    except Exception as wrong:
        raise UserError(f"{path}: a search cannot make the objective {mine.__name__}(): {wrong}.") from wrong
    # With the class name: a file may define several objectives of the same name.
    mine.source = hashlib.sha256(f"{mine.__qualname__}\n".encode() + path.read_bytes()).hexdigest()[:16]
    OBJECTIVES.register(mine.name, mine)
    return f"{direction}{mine.name}"


def exact(wanted: Sequence[str]) -> list[Objective]:
    """Exact objectives by name: `decoder_params`, `min:decoder_params`, …"""
    objectives: list[Objective] = []
    for text in wanted:
        direction, _, name = text.rpartition(":")
        if direction not in ("", "min", "max"):
            raise UserError(f"'{text}' given; write an objective's name, or min:NAME or max:NAME.")
        kind: type[Objective] = load(name)
        if not issubclass(kind, Exact):
            raise UserError(
                f"{name} is not known from the architecture alone; make a {kind.__name__} and hand it over."
            )
        objectives.append(kind(maximise=kind.maximise if not direction else direction == "max"))
    return objectives


class ProxyObjective(Objective):
    """A zero-cost proxy, computed on the same windows of `tokens` for every candidate."""

    maximise: bool = True
    cheap: ClassVar[bool] = False

    def __init__(self, proxy: str, tokens: NDArray[Any], *, batch: int = 8, seq: int = 64, seed: int = 0) -> None:
        from plait.algorithms.proxies import Windows, load_proxy

        self.proxy = load_proxy(proxy)
        self.name, self.seed = proxy, seed
        self.data = Windows(tokens, batch=batch, seq=seq, seed=seed)
        self.largest = int(tokens.max())
        #: Set while workers compute scores in parallel; None: computed here, one by one.
        self.score_many: Callable[[ProxyObjective, Sequence[str]], list[float]] | None = None

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        specs = [batch.space.spec(row_G) for row_G in batch.genes_NG]
        scores = self.score_many(self, specs) if self.score_many else [self.score(spec) for spec in specs]
        return {self.name: np.array(scores, dtype=np.float64)}

    def as_dict(self) -> dict[str, object]:
        data = {"tokens": self.fingerprint, "batch": self.data.batch, "seq": self.data.seq, "seed": self.seed}
        config = {**super().as_dict(), **data}
        return config if self.proxy.protocol == 1 else {**config, "proxy_protocol": self.proxy.protocol}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the text."""
        return hashlib.sha256(np.ascontiguousarray(self.data.tokens).tobytes()).hexdigest()[:16]

    def score(self, spec: str) -> float:
        """The score of one model; infinity is clipped, because JSON cannot represent it."""
        from plait.model.architecture import architecture
        from plait.model.language_model import build

        arch = architecture(spec)
        if self.largest >= arch.header.vocab:
            raise UserError(f"token {self.largest} given, but the space has vocab={arch.header.vocab}.")
        return float(np.clip(self.proxy.score(build(arch, seed=self.seed), self.data), -BEYOND, BEYOND))


# ---- evaluating candidates


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
        computed = {*names, *(f"{name}_high" for name in names)}
        if missing := sorted(space.needs() - computed):
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
