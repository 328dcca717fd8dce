"""What an objective is: a number for every candidate, and whether more or less of it is wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from plait.search.space import Genes, Space


@dataclass(frozen=True)
class Batch:
    """Candidates that have passed every rule so far, with their exact columns."""

    space: Space
    genes_NG: Genes
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.genes_NG)


class Objective(ABC):
    """Gives a column under its own name, in `unit`; others that come with it are there for rules to name."""

    name: str
    maximise: bool
    unit: ClassVar[str] = ""
    cheap: ClassVar[bool] = True  # costs microseconds a candidate

    @abstractmethod
    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """One number a candidate; not a number (NaN) is an error, infinity merely bad or good."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: all that decides the values, for the record of a search."""
        return {"objective": self.name, "maximise": self.maximise}
