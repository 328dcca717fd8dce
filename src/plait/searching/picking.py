"""Picking one model of a front: the best by some column among those within the limits, measuring as needed.

The models of a front can also be scored by proxies and short trainings, which are too expensive for the thousands of
candidates of a search. Each score is stored as a record and never computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plait.algorithms.objectives import ProxyObjective
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError, did_you_mean
from plait.core.progress import OnProgress
from plait.core.units import readable
from plait.device.quantities import in_rows, on_device, quantity
from plait.records import Record, Store
from plait.searching.scoring import stored_score
from plait.searching.validation import DocumentRow

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.device.measurements import Measurements
    from plait.space.constraints import Limits


Row = DocumentRow
UNKNOWN = {"measured": None, "predicted": None}
MAX_MEASURED = 8  # models measured to find the best one within the limits


def value_of(row: Row, name: str) -> Any:
    """The value of a column; for a quantity of the device, the measured value if there is one, otherwise the
    predicted."""
    if name not in on_device():
        return row[name]
    entry = row.get(quantity(name).column, UNKNOWN)
    return entry["predicted"] if entry["measured"] is None else entry["measured"]


def best(rows: Sequence[Row], name: str, maximise: bool) -> Row:
    return (max if maximise else min)(rows, key=lambda row: float(value_of(row, name)))


def is_here(record: Record, known: Measurements) -> bool:
    """Whether the search was for this machine."""
    from plait.device.profile import SAME, Profile

    here = Profile.here(known.setting).device
    theirs = (record.result["profile"] or {}).get("machine", here)  # absent from older records
    return all(theirs.get(name) == here.get(name) for name in SAME)


def measured_until_best(
    record: Record, rows: list[Row], limits: Limits, known: Measurements, name: str, maximise: bool,
    on_progress: OnProgress,
) -> list[Row]:  # fmt: skip
    """The rows, with the best candidates measured until the best one within the limits is a measured one."""
    from plait.searching.validation import measured_row

    rows = list(rows)
    for done in range(MAX_MEASURED):
        possible = [row for row in rows if holds(row) or may_hold(row, limits)]
        if not possible or (candidate := best(possible, name, maximise))["measurement"] is not None:
            break
        on_progress("measuring the pick", done, None)
        at = rows.index(candidate)
        rows[at], _ = measured_row(record.result["front"][at], limits, known.measure)
    return rows


def holds(row: Row) -> bool:
    """Whether it was measured within the limits."""
    return bool(row["within"]) and row["measurement"] is not None


def may_hold(row: Row, limits: Limits) -> bool:
    """Whether it is not measured yet and not predicted above a limit."""
    if row["measurement"] or row["exceeded"]:
        return False
    predicted = {name: row[q.column]["predicted"] for name, q in in_rows([row]).items()}
    limited = {name: predicted[name] / quantity(name).scale for name in limits.on_device if predicted.get(name)}
    return not limits.exceeded(limited)


def direction(record: Record, by: str, row: Row) -> tuple[str, bool]:
    """The column to compare by, and whether more is better."""
    objectives = {objective["objective"]: bool(objective["maximise"]) for objective in record.result["objectives"]}
    if not by:
        return next(iter(objectives.items()))
    numbers = [name for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    known = [*numbers, *(name for name in in_rows([row]) if value_of(row, name) is not None)]
    if by not in known:
        raise UserError(f"--by {by}: the front has no such column.{did_you_mean(by, known)} It has {', '.join(known)}.")
    return by, objectives.get(by, by.endswith("decoder_params"))


def should_hold(row: Row, limits: Limits) -> bool:
    """Whether it is not measured yet and its prediction intervals are within every limit."""
    if row["measurement"] or row["exceeded"]:
        return False
    interval = {name: row[q.column]["interval"] for name, q in in_rows([row]).items()}
    highest = {name: interval[name][1] / quantity(name).scale for name in limits.on_device if interval.get(name)}
    return len(highest) == len(limits.on_device) and not limits.exceeded(highest)


def nothing_holds(rows: list[Row], limits: Limits) -> str:
    """The error message if no model of a front is within the limits."""
    shown = in_rows(rows)
    least = {name: min((v for row in rows if (v := value_of(row, name)) is not None), default=None) for name in shown}
    wanted = ", ".join(constraint.replace("_high", "") for constraint in limits.constraints())
    attained = " and ".join(f"{readable(least[name])} {q.unit}" for name, q in shown.items())
    return f"no model of this front is within {wanted}; its lowest are {attained}. Search again with these limits."


TOKENS = 64  # sequence length for proxies


def proxy_scores(
    specs: Sequence[str], proxy: str, corpus: Corpus, seed: int, store: Store, on_progress: OnProgress
) -> list[float]:
    """The scores of models by a proxy; more is better."""
    objective = ProxyObjective(proxy, corpus.tokens("train"), seq=TOKENS, seed=seed)
    scores = []
    for done, spec in enumerate(specs):
        on_progress(f"scoring by {proxy}", done, len(specs))
        scores.append(stored_score(objective, spec, store))
    return scores


def still_on_front(rows: Sequence[Row], scores: Sequence[float], objectives: Sequence[tuple[str, bool]]) -> list[bool]:
    """Which models stay non-dominated if the score replaces the search's first objective. `objectives`: names, and
    whether more is better."""
    others = [(name, more) for name, more in objectives[1:] if all(value_of(row, name) is not None for row in rows)]
    points = [
        [score, *(float(value_of(row, name)) for name, _ in others)] for row, score in zip(rows, scores, strict=True)
    ]
    more = [0, *(at for at, (_, maximise) in enumerate(others, 1) if maximise)]
    return [bool(kept) for kept in pareto_front(points, more)]
