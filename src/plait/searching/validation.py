"""Validation of a Pareto front by measurement: some of its candidates are run, and measured values shown next to the
predictions.

A 95 % interval is wrong one time in twenty. So that limits really hold, a candidate that measures above one is replaced
by the nearest candidate on the front that should be within it, and listed separately; if there is none it stays,
flagged.

One measurement decides, and those it is lucky for are kept. So a candidate within a limit by less than measurements
repeat themselves (`CLOSE`) is marked: measured again, it may be above (`benchmarks/device_intervals.py`).

Letters: N candidates of the front, M objectives.

Early check of limits: limits that no model of the space can meet are rejected before minutes of profiling.

The model with the fewest FLOPs is measured. It need not be the fastest, so limits are rejected only if it exceeds them
by far; otherwise the profile decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.evolution import FEW, Exhaustive, LtsSearch
from plait.algorithms.front import Front, Row
from plait.algorithms.objectives import exact
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.device.measurements import Measurements, noisy, values
from plait.device.quantities import Quantity, on_device, quantity
from plait.records import Record, Store
from plait.searching.job import Request
from plait.space.constraints import Limits

Floats = NDArray[np.float64]
NEIGHBOURS = 3  # tried in place of a candidate above a limit
CLOSE = 0.05  # two measurements of a model, minutes apart on a shared machine, may differ by this much

#: Spec → its measurement, None without one. The second argument: measure again, because the first was noisy.
Measure = Callable[[str, bool], "Record | None"]


#: A row of `plait search --json`: `spec`, exact columns, an `Entry` per quantity of the device under its
#: `Quantity.column`, then `within`, `exceeded`, `close` and `measurement`.
DocumentRow = dict[str, Any]


class Entry(TypedDict, total=False):
    """One quantity of a model on the device: prediction with its 95 % interval, and measurement with its own."""

    predicted: float | None
    interval: list[float] | None
    measured: float | None
    measured_interval: list[float]
    noisy: bool


@dataclass
class Validated:
    """The validated part of a front, as rows of `plait search --json`.

    rows        the requested number of candidates, in the front's order
    over_limit  candidates that measured above a limit and were replaced by a neighbour
    measured    number of models measured, now or earlier
    seconds     time the measurements took
    """

    rows: list[DocumentRow] = field(default_factory=list)
    over_limit: list[DocumentRow] = field(default_factory=list)
    measured: int = 0
    seconds: float = 0.0


def validate(
    front: Front,
    limits: Limits,
    count: int,
    measure: Measure,
    on_progress: Callable[[int, int], object] | None = None,
    ended: Callable[[int], bool] = lambda done: False,
) -> Validated:
    """Measure `count` candidates of the front (0: all). `on_progress` gets the number done and the total. `ended`:
    whether to stop after this many."""
    scaled_NM = _scaled(front)
    chosen = spread(scaled_NM, count or len(front))
    measurements, result = _FrontMeasurements(front, limits, measure, set(chosen)), Validated()
    rows: dict[int, DocumentRow] = {}
    for done, index in enumerate(chosen):
        if ended(done):
            break
        tried = [(index, measurements.row(index))]
        while tried[-1][1]["within"] is False and len(tried) <= NEIGHBOURS:
            neighbour = measurements.neighbour(index, *tried[-1], scaled_NM)
            if neighbour is None:
                break
            tried.append((neighbour, measurements.row(neighbour)))
        # If no neighbour is within the limits either, the original candidate stays, flagged.
        kept = tried[-1] if tried[-1][1]["within"] is not False else tried[0]
        rows[kept[0]] = kept[1]
        result.over_limit += [row for at, row in tried if at != kept[0]]
        if on_progress is not None:
            on_progress(done + 1, len(chosen))
    result.rows = [rows[index] for index in sorted(rows)]
    result.measured, result.seconds = measurements.measured, measurements.seconds
    return result


def spread(scaled_NM: Floats, count: int) -> list[int]:
    """Indices spread over a front: the best of each objective, then repeatedly the farthest from those chosen."""
    chosen = list(dict.fromkeys(int(index) for index in scaled_NM.argmin(axis=0)))[:count]
    distance_N = np.full(len(scaled_NM), np.inf)
    for index in chosen:
        distance_N = np.minimum(distance_N, _distances(scaled_NM, index))
    while len(chosen) < min(count, len(scaled_NM)):
        distance_N[chosen] = -1  # below 0, the distance of candidates equal to a chosen one
        chosen.append(int(distance_N.argmax()))
        distance_N = np.minimum(distance_N, _distances(scaled_NM, chosen[-1]))
    return chosen


class _FrontMeasurements:
    """Measures candidates of a front by index, and finds replacements; `taken` are the indices in use."""

    def __init__(self, front: Front, limits: Limits, measure: Measure, taken: set[int]) -> None:
        self.front, self.limits, self.taken = front, limits, taken
        self._measure = measure
        self.measured, self.seconds = 0, 0.0

    def row(self, index: int) -> DocumentRow:
        self.taken.add(index)
        row, record = measured_row(self.front.rows[index], self.limits, self._measure)
        if record is not None:
            self.measured += 1
            self.seconds += record.provenance["seconds"]
        return row

    def neighbour(self, wanted: int, index: int, row: DocumentRow, scaled_NM: Floats) -> int | None:
        """The free candidate nearest to `wanted` that would be within the limits if its predictions were wrong by the
        same factors as those of `index`."""
        within_N = np.ones(len(self.front), dtype=np.bool_)
        within_N[list(self.taken)] = False
        for name, limit in self.limits.on_device.items():
            q = quantity(name)
            measured = row[q.column]["measured"]
            if measured is not None and measured > q.scale * limit:
                predicted_N = np.array(self.front.column(name))
                within_N &= predicted_N <= predicted_N[index] * q.scale * limit / measured
        if not within_N.any():
            return None
        return int(np.where(within_N, _distances(scaled_NM, wanted), np.inf).argmin())


def measured_row(row: Row, limits: Limits, measure: Measure) -> tuple[DocumentRow, Record | None]:
    """A row with its measurement, which is repeated if it is above a limit and noisy.

    If it cannot be measured, for example because the model is too large, it is not within; `exceeded` says why.
    """
    try:
        record = measure(row["spec"], False)
        if record is not None and noisy(record) and limits.exceeded(values(record)):
            record = measure(row["spec"], True)
    except UserError as wrong:
        return {**describe(row, limits, None), "within": False, "exceeded": [str(wrong)]}, None
    return describe(row, limits, record), record


def describe(row: Row, limits: Limits, record: Record | None) -> DocumentRow:
    """A row of a front with its measurement. `within`: whether it satisfies every limit; None if not measured. `close`:
    the limits that it satisfies by less than `CLOSE`, of quantities that vary between measurements."""
    exact = {name: value for name, value in row.items() if name.removesuffix("_high") not in on_device()}
    measured = values(record) if record is not None else {}
    exceeded = limits.exceeded({**exact, **measured})
    within = None if set(limits.on_device) - set(measured) else not exceeded
    varying = {name: value for name, value in measured.items() if record and "low" in record.result[name]}
    close = [name for name, limit in limits.values if (1 - CLOSE) * limit < varying.get(name, 0.0) <= limit]
    # Optional quantities have a column only if they were predicted, measured or limited.
    known = {**row, **measured, **limits.as_dict()}
    shown = [q for name, q in on_device().items() if not q.optional or name in known]
    both = {q.column: _entry(row, q, record) for q in shown}
    key = record.key if record else None
    return {**exact, **both, "within": within, "exceeded": exceeded, "close": close, "measurement": key}


def _entry(row: Row, q: Quantity, record: Record | None) -> Entry:
    """Prediction and measurement of one quantity, in the quantity's unit."""
    entry: Entry = {"predicted": None, "interval": None, "measured": None}
    if q.name in row:
        mean, high = q.scale * row[q.name], q.scale * row[q.upper]
        entry |= {"predicted": mean, "interval": [max(0.0, 2 * mean - high), high]}
    if record is not None and (measured := record.result.get(q.name)):
        entry["measured"] = q.scale * measured[q.value]
        if "low" in measured:
            entry["measured_interval"] = [q.scale * measured["low"], q.scale * measured["high"]]
            entry["noisy"] = measured["noisy"]
    return entry


def _scaled(front: Front) -> Floats:
    """Every objective scaled to the range from 0 (the best on the front) to 1."""
    columns = [
        (-1.0 if objective["maximise"] else 1.0) * np.array(front.column(objective["objective"]), dtype=np.float64)
        for objective in front.objectives
    ]
    costs_NM = np.stack(columns, axis=1)
    extent_M = np.ptp(costs_NM, axis=0)
    return np.asarray((costs_NM - costs_NM.min(axis=0)) / np.where(extent_M > 0, extent_M, 1.0))


def _distances(scaled_NM: Floats, index: int) -> Floats:
    return np.asarray(((scaled_NM - scaled_NM[index]) ** 2).sum(axis=1))


def document(record: Record, validated: Validated) -> dict[str, object]:
    """The document that `plait search --json` prints, from the record of a search and its validated front."""
    result = record.result
    cost = {**result["cost"], "measure_seconds": round(validated.seconds, 3)}
    return {
        "key": record.key,
        **{name: result[name] for name in ("space", "method", "limits", "setting")},
        "objectives": [
            f"{'max' if objective['maximise'] else 'min'}:{objective['objective']}"
            for objective in result["objectives"]
        ],
        "profile": result["profile"]["hash"] if result["profile"] else None,
        "front": validated.rows,
        "over_limit": validated.over_limit,
        "on_front": len(result["front"]),
        **{name: result[name] for name in ("evaluated", "proposed")},
        "measured": validated.measured,
        # Results of a supernet search, by seed.
        **{name: result[name] for name in ("choices", "seeds") if name in result},
        "cost": {**cost, "total_seconds": round(sum(cost.values()), 3)},
    }


FAR = 1.5  # times the limit
ROUNDS = 10
SMALL = "small-hybrid"  # the space to suggest


def smallest(request: Request) -> str:
    """The spec of the model with the fewest FLOPs that satisfies the exact constraints."""
    space = request.without_predictions()
    common = {"seed": request.seed, "seq": request.setting.seq}
    search: Search
    if space.count <= FEW:
        search = Exhaustive(space, exact(["min:flops"]), **common)
    else:
        search = LtsSearch(space, exact(["min:flops"]), iterations=ROUNDS, **common)
    return str(search.run().rows[0]["spec"])


def check_attainable(request: Request, store: Store, on_progress: OnProgress = ignore) -> None:
    """Raise a `UserError` if even the smallest model, measured, is far above a limit."""
    if not request.limits.on_device:
        return
    on_progress("measuring the smallest model", 0, None)
    spec = smallest(request)
    with Measurements(store, request.setting) as known:
        measured = values(known.measure(spec))
    exceeded = {name: limit for name, limit in request.limits.on_device.items() if measured.get(name, 0) > FAR * limit}
    if exceeded:
        wanted = " and ".join(f"{name} {quantity(name).text(limit)}" for name, limit in exceeded.items())
        attained = " and ".join(f"{quantity(name).shown(value)} {name}" for name, value in measured.items())
        where = f"{request.setting.seq} tokens, batch {request.setting.batch}, {request.setting.device}"
        smaller = "" if request.space.name == SMALL else f", or a smaller space (--space {SMALL})"
        raise UserError(
            f"nothing in {request.space.name} can meet {wanted} here: its model with the fewest FLOPs takes {attained} "
            f"({where}): {spec}\nGive limits above these, fewer tokens (--seq){smaller}."
        )
