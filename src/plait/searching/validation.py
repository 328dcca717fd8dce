"""The front, measured: a few candidates from all over it run for real, beside what was predicted.

A prediction's interval is right nineteen times in twenty. So that a limit is a promise, a candidate that measures above
it gives its place to the nearest one on the front that should hold it after all, and is listed apart; where no such
neighbour is left it stays, flagged.

Letters: N candidates of the front, M objectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.front import Front, Row
from plait.core.errors import UserError
from plait.device.measurements import noisy, values
from plait.device.quantities import Quantity, on_device, quantity
from plait.records import Record
from plait.space.constraints import Limits

Floats = NDArray[np.float64]
NEIGHBOURS = 3  # tried in place of one that is above a limit

#: A record of a spec; None where there is none. The second argument: to be measured again, for it was noisy.
Measure = Callable[[str, bool], "Record | None"]


@dataclass
class Validated:
    """Rows as `plait search --json` has them.

    rows        as many as were asked for, in the front's order
    over_limit  those that were measured above a limit and gave their place to a neighbour
    measured    how many models were measured, now or before, and
    seconds     how long that took
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    over_limit: list[dict[str, Any]] = field(default_factory=list)
    measured: int = 0
    seconds: float = 0.0


def validate(
    front: Front,
    limits: Limits,
    count: int,
    measure: Measure,
    on_progress: Callable[[int, int], object] | None = None,
) -> Validated:
    """Measure `count` candidates of the front (0: all). `on_progress` hears how many of how many are done."""
    scaled_NM = _scaled(front)
    wanted = spread(scaled_NM, count or len(front))
    places, found = _Places(front, limits, measure, set(wanted)), Validated()
    rows: dict[int, dict[str, Any]] = {}
    for done, place in enumerate(wanted):
        tried = [(place, places.row(place))]
        while tried[-1][1]["within"] is False and len(tried) <= NEIGHBOURS:
            neighbour = places.neighbour(place, *tried[-1], scaled_NM)
            if neighbour is None:
                break
            tried.append((neighbour, places.row(neighbour)))
        # Where no neighbour holds the limits either, the one that was wanted stays, and says so.
        kept = tried[-1] if tried[-1][1]["within"] is not False else tried[0]
        rows[kept[0]] = kept[1]
        found.over_limit += [row for at, row in tried if at != kept[0]]
        if on_progress is not None:
            on_progress(done + 1, len(wanted))
    found.rows = [rows[place] for place in sorted(rows)]
    found.measured, found.seconds = places.measured, places.seconds
    return found


def spread(scaled_NM: Floats, count: int) -> list[int]:
    """Places all over a front: the best in every objective first, then always the one farthest from those taken."""
    chosen = list(dict.fromkeys(int(place) for place in scaled_NM.argmin(axis=0)))[:count]
    apart_N = np.full(len(scaled_NM), np.inf)
    for place in chosen:
        apart_N = np.minimum(apart_N, _distances(scaled_NM, place))
    while len(chosen) < min(count, len(scaled_NM)):
        apart_N[chosen] = -1  # equal candidates are no farther than those taken, and still are others
        chosen.append(int(apart_N.argmax()))
        apart_N = np.minimum(apart_N, _distances(scaled_NM, chosen[-1]))
    return chosen


class _Places:
    """The front's places, which of them are taken, and what was measured there."""

    def __init__(self, front: Front, limits: Limits, measure: Measure, taken: set[int]) -> None:
        self.front, self.limits, self.taken = front, limits, taken
        self._measure = measure
        self.measured, self.seconds = 0, 0.0

    def row(self, place: int) -> dict[str, Any]:
        self.taken.add(place)
        row, record = measured_row(self.front.rows[place], self.limits, self._measure)
        if record is not None:
            self.measured += 1
            self.seconds += record.provenance["seconds"]
        return row

    def neighbour(self, wanted: int, place: int, row: dict[str, Any], scaled_NM: Floats) -> int | None:
        """The nearest that is not taken and, were its prediction wrong by as much, would hold the limits."""
        below_N = np.ones(len(self.front), dtype=np.bool_)
        below_N[list(self.taken)] = False
        for name, limit in self.limits.on_device.items():
            each = quantity(name)
            found = row[each.column]["measured"]
            if found is not None and found > each.scale * limit:
                predicted_N = np.array(self.front.column(name))
                below_N &= predicted_N <= predicted_N[place] * each.scale * limit / found
        if not below_N.any():
            return None
        return int(np.where(below_N, _distances(scaled_NM, wanted), np.inf).argmin())


def measured_row(row: Row, limits: Limits, measure: Measure) -> tuple[dict[str, Any], Record | None]:
    """A row beside its measurement, which is taken again where noise may be what put it above a limit.

    One that cannot be measured, as it is too large for this machine, is not within; `exceeded` says why.
    """
    try:
        record = measure(row["spec"], False)
        if noisy(record) and limits.exceeded(values(record)):
            record = measure(row["spec"], True)
    except UserError as wrong:
        return {**describe(row, limits, None), "within": False, "exceeded": [str(wrong)]}, None
    return describe(row, limits, record), record


def describe(row: Row, limits: Limits, record: Record | None) -> dict[str, Any]:
    """A row of a front beside its measurement. `within`: whether every limit holds; None before it is measured."""
    exact = {name: value for name, value in row.items() if name.removesuffix("_high") not in on_device()}
    measured = values(record)
    exceeded = limits.exceeded({**exact, **measured})
    within = None if set(limits.on_device) - set(measured) else not exceeded
    # What only some machines can tell has a column where it was predicted or measured, or is limited.
    asked = {**row, **measured, **limits.as_dict()}
    shown = [each for name, each in on_device().items() if not each.optional or name in asked]
    both = {each.column: _entry(row, each, record) for each in shown}
    return {**exact, **both, "within": within, "exceeded": exceeded, "measurement": record.key if record else None}


def _entry(row: Row, each: Quantity, record: Record | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"predicted": None, "interval": None, "measured": None}
    if each.name in row:
        mean, high = each.scale * row[each.name], each.scale * row[each.upper]
        entry |= {"predicted": mean, "interval": [max(0.0, 2 * mean - high), high]}
    if record is not None and (found := record.result.get(each.name)):
        entry["measured"] = each.scale * found[each.value]
        if "low" in found:
            entry["measured_interval"] = [each.scale * found["low"], each.scale * found["high"]]
            entry["noisy"] = found["noisy"]
    return entry


def _scaled(front: Front) -> Floats:
    """Every objective from 0, the best on the front, to 1."""
    columns = [
        (-1.0 if objective["maximise"] else 1.0) * np.array(front.column(objective["objective"]), dtype=np.float64)
        for objective in front.objectives
    ]
    costs_NM = np.stack(columns, axis=1)
    extent_M = np.ptp(costs_NM, axis=0)
    return np.asarray((costs_NM - costs_NM.min(axis=0)) / np.where(extent_M > 0, extent_M, 1.0))


def _distances(scaled_NM: Floats, place: int) -> Floats:
    return np.asarray(((scaled_NM - scaled_NM[place]) ** 2).sum(axis=1))


def document(record: Record, validated: Validated) -> dict[str, Any]:
    """What `plait search --json` prints, from the record of a front and what was measured of it."""
    result = record.result
    cost = {**result["cost"], "measure_seconds": round(validated.seconds, 3)}
    return {
        "key": record.key,
        **{name: result[name] for name in ("space", "method", "limits", "setting")},
        "objectives": [f"{'max' if each['maximise'] else 'min'}:{each['objective']}" for each in result["objectives"]],
        "profile": result["profile"]["hash"] if result["profile"] else None,
        "front": validated.rows,
        "over_limit": validated.over_limit,
        "on_front": len(result["front"]),
        **{name: result[name] for name in ("evaluated", "proposed")},
        "measured": validated.measured,
        # What gumbel's supernets came to, seed by seed.
        **{name: result[name] for name in ("choices", "seeds") if name in result},
        "cost": {**cost, "total_seconds": round(sum(cost.values()), 3)},
    }
