"""The record of a search: one schema, written here alone, whether a command or a Python call searched.

space, method, objectives, front, evaluated, proposed    see `Front`
limits, setting   under which the front was asked for, and in which its models are measured
profile           what predicted, None where all was exact
mixers            files of the user's own
candidates        every one that was compared: see `plait.algorithms.candidates`
cost              seconds of searching and of profiling
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait.algorithms.objectives import Predicted
from plait.algorithms.predicted import DevicePredictor
from plait.device.setting import Setting
from plait.records import Record, Store, provenance_of
from plait.space.limits import Limits

if TYPE_CHECKING:
    from plait.algorithms.search import Search

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
