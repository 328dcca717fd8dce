"""One model of a front: the best in something among those that hold limits, measured where it has to be.

Its models can also be scored by what is too dear for a search: training-free proxies and short trainings. A search
compares thousands of candidates by what is known at once, the size above all; what it found is few enough to be built
and tried. Each score is a record: asked again, nothing is computed again.
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

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.device.measurements import Measurements
    from plait.space.constraints import Limits


NOTHING = {"measured": None, "predicted": None}
MOST_MEASURED = 8  # models, before the best of them is picked

Row = dict[str, Any]


def value_of(row: Row, name: str) -> Any:
    """A column; of a quantity of the device what was measured, else what was predicted."""
    if name not in on_device():
        return row[name]
    entry = row.get(quantity(name).column, NOTHING)
    return entry["predicted"] if entry["measured"] is None else entry["measured"]


def best(rows: Sequence[Row], name: str, maximise: bool) -> Row:
    return (max if maximise else min)(rows, key=lambda row: float(value_of(row, name)))


def is_here(record: Record, known: Measurements) -> bool:
    """Whether the search was for the machine that this runs on."""
    from plait.device.profile import SAME, Profile

    here = Profile.here(known.setting).device
    there = (record.result["profile"] or {}).get("machine", here)  # records of before do not say
    return all(there.get(name) == here.get(name) for name in SAME)


def measured_until_best(
    record: Record, rows: list[Row], limits: Limits, known: Measurements, name: str, maximise: bool, told: OnProgress
) -> list[Row]:
    """The rows, the best of those that may hold the limits measured: so many that the best is one that does."""
    from plait.searching.validation import measured_row

    found = list(rows)
    for done in range(MOST_MEASURED):
        open_ = [row for row in found if holds(row) or may_hold(row, limits)]
        if not open_ or (now := best(open_, name, maximise))["measurement"] is not None:
            break
        told("measuring the pick", done, None)
        at = found.index(now)
        found[at] = measured_row(
            record.result["front"][at], limits, lambda spec, again: known.measure(spec, again=again)
        )[0]
    return found


def holds(row: Row) -> bool:
    """Measured within the limits."""
    return bool(row["within"]) and row["measurement"] is not None


def may_hold(row: Row, limits: Limits) -> bool:
    """Not measured yet, and not predicted above a limit."""
    if row["measurement"] or row["exceeded"]:
        return False
    predicted = {name: row[each.column]["predicted"] for name, each in in_rows([row]).items()}
    asked = {name: predicted[name] / quantity(name).scale for name in limits.on_device if predicted.get(name)}
    return not limits.exceeded(asked)


def direction(record: Record, by: str, row: Row) -> tuple[str, bool]:
    """What to compare, and whether more of it is better."""
    objectives = {each["objective"]: bool(each["maximise"]) for each in record.result["objectives"]}
    if not by:
        return next(iter(objectives.items()))
    numbers = [name for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    known = [*numbers, *(name for name in in_rows([row]) if value_of(row, name) is not None)]
    if by not in known:
        raise UserError(f"--by {by}: the front has no such column.{did_you_mean(by, known)} It has {', '.join(known)}.")
    return by, objectives.get(by, by.endswith("decoder_params"))


def should_hold(row: Row, limits: Limits) -> bool:
    if row["measurement"] or row["exceeded"]:
        return False
    highest = {name: row[each.column]["interval"] for name, each in in_rows([row]).items()}
    asked = {name: highest[name][1] / quantity(name).scale for name in limits.on_device if highest.get(name)}
    return len(asked) == len(limits.on_device) and not limits.exceeded(asked)


def nothing_holds(rows: list[Row], limits: Limits) -> str:
    shown = in_rows(rows)
    least = {name: min((v for row in rows if (v := value_of(row, name)) is not None), default=None) for name in shown}
    asked = ", ".join(constraint.replace("_high", "") for constraint in limits.constraints())
    there = (
        f"the least on it are {' and '.join(f'{readable(least[name])} {each.unit}' for name, each in shown.items())}"
    )
    return f"no model of this front holds {asked}; {there}. Search again under these limits."


TOKENS = 64  # of each sequence that a proxy looks at


def proxy_scores(
    specs: Sequence[str], proxy: str, corpus: Corpus, seed: int, store: Store, told: OnProgress
) -> list[float]:
    """More is better, of every proxy."""
    objective = ProxyObjective(proxy, corpus.tokens("train"), seq=TOKENS, seed=seed)
    found = []
    for done, spec in enumerate(specs):
        told(f"scoring by {proxy}", done, len(specs))
        found.append(stored_score(objective, spec, store))
    return found


def still_on_front(rows: Sequence[Row], scores: Sequence[float], objectives: Sequence[tuple[str, bool]]) -> list[bool]:
    """Whether no other has a higher score and is as good in the search's other objectives, the first left out: the
    score is there in its place. `objectives`: names, and whether more is better."""
    others = [(name, more) for name, more in objectives[1:] if all(value_of(row, name) is not None for row in rows)]
    points = [
        [score, *(float(value_of(row, name)) for name, _ in others)] for row, score in zip(rows, scores, strict=True)
    ]
    more = [0, *(at for at, (_, maximise) in enumerate(others, 1) if maximise)]
    return [bool(kept) for kept in pareto_front(points, more)]
