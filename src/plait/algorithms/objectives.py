"""What a search may optimise: a number per candidate, and whether more or less of it is wanted.

Exact ones are columns of the space and free for millions of candidates; predicted ones come from a profile of the
device. A constraint that must hold on the device speaks of the interval's upper end, `latency_high <= 40ms`.

For a zero-cost proxy every candidate is built and scored: tenths of a second each, so not for millions.
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
from plait.core.user_files import class_from_file, split_path
from plait.space.objective_table import OBJECTIVES, load
from plait.space.space import COLUMNS, Genes, Space

BEYOND = 1e300  # in place of infinity, which JSON does not have


@dataclass(frozen=True)
class Batch:
    """Candidates that have passed every constraint so far, with their exact columns."""

    space: Space
    genes_NG: Genes
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.genes_NG)


class Objective(ABC):
    """Gives a column under its own name, in `unit`; others that come with it are there for constraints to name."""

    name: str
    maximise: bool
    unit: ClassVar[str] = ""
    cheap: ClassVar[bool] = True  # costs microseconds per candidate
    source: ClassVar[str] = ""  # hash of the text of a user's file, so that an edited file is another search

    @abstractmethod
    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """One number per candidate; not a number (NaN) is an error, infinity merely bad or good."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: all that decides the values, for the record of a search."""
        named = {"objective": self.name, "maximise": self.maximise}
        return {**named, "source": self.source} if self.source else named


class Exact(Objective):
    maximise: bool = False

    def __init__(self, maximise: bool | None = None) -> None:
        if maximise is not None:
            self.maximise = maximise

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        return {self.name: batch.columns[self.name]}


Floats = NDArray[np.float64]


class Predictor(Protocol):
    """Predicts quantities of a device, in their base units: seconds, bytes."""

    def predict(self, quantity: str, batch: Batch) -> tuple[Floats, Floats]:
        """For every candidate the mean, and by how much the 95 % interval reaches to either side; maybe for none."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON that tells one predictor from another: the profile's hash, the setting."""
        ...


class Predicted(Objective):
    """A quantity of the device by name: `Predicted("latency", predictor)`."""

    maximise: bool = False

    def __init__(self, name: str, predictor: Predictor | None = None) -> None:
        self.name = name
        if predictor is None:
            raise UserError(f"{self.name} is predicted from a profile of the device, and none was given.")
        self.predictor = predictor

    def columns(self, batch: Batch) -> dict[str, Floats]:
        mean_N, reach_N = self.predictor.predict(self.name, batch)
        return {self.name: mean_N, f"{self.name}_high": mean_N + reach_N}

    def as_dict(self) -> dict[str, Any]:
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


def register_file(given: str) -> str:
    """`my_objective.py`, or `my_objective.py:Class`: run the file and add its objective to the table; returns the
    objective's name. Any other text is returned as it is."""
    direction = given[:4] if given.startswith(("min:", "max:")) else ""
    file = split_path(given.removeprefix(direction))
    if file is None:
        return given
    path, attribute = file
    mine = class_from_file(path, Objective, attribute)  # type: ignore[type-abstract]
    for wanted, kind in (("name", str), ("maximise", bool)):
        if not isinstance(getattr(mine, wanted, None), kind):
            raise UserError(f"{path}: {mine.__name__} has no `{wanted}`; add it as a class attribute.")
    if mine.name in COLUMNS and mine.name not in OBJECTIVES:  # of the others the table says that it has them
        raise UserError(f"{path}: '{mine.name}' is a column that every candidate has; choose another name.")
    try:
        mine()
    except Exception as wrong:
        raise UserError(f"{path}: a search cannot make the objective {mine.__name__}(): {wrong}.") from wrong
    # A file may hold several objectives of one name.
    mine.source = hashlib.sha256(f"{mine.__qualname__}\n".encode() + path.read_bytes()).hexdigest()[:16]
    OBJECTIVES.register(mine.name, mine)
    return f"{direction}{mine.name}"


def exact(wanted: Sequence[str]) -> list[Objective]:
    """Objectives that need nothing but the candidate: `decoder_params`, `min:decoder_params`, …"""
    found: list[Objective] = []
    for text in wanted:
        direction, _, name = text.rpartition(":")
        if direction not in ("", "min", "max"):
            raise UserError(f"'{text}' given; write an objective's name, or min:NAME or max:NAME.")
        kind: type[Objective] = load(name)
        if not issubclass(kind, Exact):
            raise UserError(
                f"{name} is not known from the architecture alone; make a {kind.__name__} and hand it over."
            )
        found.append(kind(maximise=kind.maximise if not direction else direction == "max"))
    return found


class ProxyObjective(Objective):
    """`tokens` are a stretch of text as ids below the space's vocabulary; all candidates see the same windows of it."""

    maximise: bool = True
    cheap: ClassVar[bool] = False

    def __init__(self, proxy: str, tokens: NDArray[Any], *, batch: int = 8, seq: int = 64, seed: int = 0) -> None:
        from plait.algorithms.proxies import Windows, load_proxy

        self.proxy = load_proxy(proxy)
        self.name, self.seed = proxy, seed
        self.data = Windows(tokens, batch=batch, seq=seq, seed=seed)
        self.largest = int(tokens.max())
        #: Set while workers compute the scores of many specs at once; None: here, one after the other.
        self.score_many: Callable[[ProxyObjective, Sequence[str]], list[float]] | None = None

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        specs = [batch.space.spec(row_G) for row_G in batch.genes_NG]
        scores = self.score_many(self, specs) if self.score_many else [self.score(spec) for spec in specs]
        return {self.name: np.array(scores, dtype=np.float64)}

    def as_dict(self) -> dict[str, Any]:
        data = self.data
        made = {
            **super().as_dict(),
            "tokens": self.fingerprint,
            "batch": data.batch,
            "seq": data.seq,
            "seed": self.seed,
        }
        return made if self.proxy.protocol == 1 else {**made, "proxy_protocol": self.proxy.protocol}

    @cached_property
    def fingerprint(self) -> str:
        """Of the text."""
        return hashlib.sha256(np.ascontiguousarray(self.data.tokens).tobytes()).hexdigest()[:16]

    def score(self, spec: str) -> float:
        """JSON has no infinities: such a score is beyond any other. What is not a number stays an error."""
        from plait.model.architecture import architecture
        from plait.model.language_model import build

        arch = architecture(spec)
        if self.largest >= arch.header.vocab:
            raise UserError(f"token {self.largest} given, but the space has vocab={arch.header.vocab}.")
        return float(np.clip(self.proxy.score(build(arch, seed=self.seed), self.data), -BEYOND, BEYOND))
