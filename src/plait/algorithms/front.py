"""The result of a search: the candidates that no other beats in every objective, as plain data; and a search's
checkpoint.

A checkpoint is one .npz file of plain arrays, with the settings as JSON inside; it appears whole or not at all.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Front:
    """Plain data; `as_dict` is JSON.

    objectives   {"objective": name, "maximise": …} in order
    rows         {"spec": text, then every column by name}, the best in the first objective first
    evaluated    candidates that satisfied every constraint and were compared
    proposed     candidates that were drawn at all
    cost         {"seconds": …}
    """

    space: str
    method: str
    objectives: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    evaluated: int
    proposed: int
    cost: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def specs(self) -> list[str]:
        return [row["spec"] for row in self.rows]

    def column(self, name: str) -> list[float]:
        if self.rows and name not in self.rows[0]:
            raise UserError(f"the front has no column '{name}'; it has {', '.join(self.rows[0])}.")
        return [row[name] for row in self.rows]

    def as_dict(self) -> dict[str, Any]:
        return {
            "space": self.space,
            "method": self.method,
            "objectives": [dict(objective) for objective in self.objectives],
            "front": [dict(row) for row in self.rows],
            "evaluated": self.evaluated,
            "proposed": self.proposed,
            "cost": dict(self.cost),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Front:
        try:
            return cls(
                space=given["space"],
                method=given["method"],
                objectives=given["objectives"],
                rows=given["front"],
                evaluated=given["evaluated"],
                proposed=given["proposed"],
                cost=given["cost"],
            )
        except KeyError as missing:
            raise UserError(f"this is not a front: it has no field {missing}.") from None


_SETTINGS = "settings"


def save(path: Path, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> None:
    everything: dict[str, Any] = {_SETTINGS: np.array(json.dumps(settings, sort_keys=True)), **arrays}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, draft.open("wb") as file:  # given a name, NumPy would add .npz to it
            np.savez(file, **everything)
    except OSError as wrong:
        raise UserError(f"cannot save the search to {path}: {wrong.strerror}.") from wrong


def load(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Arrays and settings; None where there is no such file, or none that `save` wrote."""
    try:
        with np.load(path, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
        return arrays, json.loads(str(arrays.pop(_SETTINGS)))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
