"""What a search may optimise: a number per candidate, and whether more or less of it is wanted.

Exact ones are columns of the space and free for millions of candidates; predicted ones come from a profile of the
device. A constraint that must hold on the device speaks of the interval's upper end, `latency_high <= 40ms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.space.objective_table import load
from plait.space.space import Genes, Space


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

    @abstractmethod
    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """One number a candidate; not a number (NaN) is an error, infinity merely bad or good."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: all that decides the values, for the record of a search."""
        return {"objective": self.name, "maximise": self.maximise}


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
