"""The result of a search: the candidates that no other beats in every objective, as plain data; and a search's
checkpoint.

A checkpoint is one .npz file of plain arrays, with the settings as JSON inside; it appears whole or not at all.

The record of a search: one schema, written here alone, whether a command or a Python call searched.

space, method, objectives, front, evaluated, proposed    see `Front`
limits, setting   under which the front was asked for, and in which its models are measured
profile           what predicted, None where all was exact
mixers            files of the user's own
candidates        every one that was compared: see `plait.algorithms.candidates`
cost              seconds of searching and of profiling
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Predicted
from plait.algorithms.predicted import DevicePredictor
from plait.core.errors import UserError
from plait.core.files import atomic_write, loads
from plait.device.setting import Setting
from plait.records import Record, Store, provenance_of
from plait.space.constraints import Limits

if TYPE_CHECKING:
    from plait.algorithms.search import Search


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
        return arrays, loads(str(arrays.pop(_SETTINGS)), constants=True)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None


KIND = "search"
NO_LIMITS = Limits()


def search_record(
    search: Search,
    started: float,
    *,
    limits: Limits = NO_LIMITS,
    setting: Setting | None = None,
    predictor: DevicePredictor | None = None,
) -> Record:
    """`setting` and `predictor`: those of the search's own objectives unless told otherwise."""
    found = {**search.front().as_dict(), **search.report(), "mixers": _mixers(search)}
    found["candidates"] = search.log.as_dict()
    found |= _asked(search, limits, setting, predictor)
    return Record.of(KIND, search.config(), found, provenance_of(started, search.seconds))


def as_asked(
    stored: Record, search: Search, store: Store, limits: Limits, setting: Setting, predictor: DevicePredictor | None
) -> Record:
    """A stored record of this very search. Where other limits or another setting were written with the same front (a
    constraint may say what a limit says, and a record of an earlier layout says neither), it is written again with
    these."""
    asked = _asked(search, limits, setting, predictor)
    cost = stored.result.get("cost", {})
    asked["cost"]["search_seconds"] = cost.get("search_seconds", cost.get("seconds", 0.0))
    fields = ("limits", "setting", "profile")
    if all(name in stored.result and stored.result[name] == asked[name] for name in fields):
        return stored
    result = {**stored.result, "mixers": _mixers(search), **asked}
    record = Record(stored.key, stored.kind, stored.config, result, stored.provenance)
    store.delete([stored.key])
    store.put(record)
    return record


def _asked(
    search: Search, limits: Limits, setting: Setting | None, predictor: DevicePredictor | None
) -> dict[str, Any]:
    device = predictor or _device_of(search)
    if setting is None:
        setting = device.predictor.setting if device is not None else Setting(seq=search.evaluator.seq)
    profile = device.predictor.profile if device is not None else None
    return {
        "limits": limits.as_dict(),
        "setting": setting.as_dict(),
        "profile": profile.describe() if profile is not None else None,
        "cost": {
            "search_seconds": round(search.seconds, 3),
            "profile_seconds": round(profile.seconds, 3) if profile is not None else 0.0,
        },
    }


def _mixers(search: Search) -> list[dict[str, Any]]:
    return [source.as_dict() for source in search.space.mixer_sources.values()]


def _device_of(search: Search) -> DevicePredictor | None:
    predictors = (one.predictor for one in search.evaluator.objectives if isinstance(one, Predicted))
    return next((one for one in predictors if isinstance(one, DevicePredictor)), None)
