"""`plait front show | pick | table | candidates`: what a search found, and the one model to go on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli import front_candidates
from plait.cli.front_display import cell, digits, print_front, shapes
from plait.cli.options import AsJson, Mixers, StoreUrl, limit_options
from plait.cli.output import console, print_json, table
from plait.cli.stored_search import LATEST, stored_search
from plait.core.errors import UserError
from plait.device.quantities import in_rows, on_device, quantity
from plait.model.user_mixers import restore
from plait.reporting.page import short

if TYPE_CHECKING:
    from plait.device.measurements import Measurements
    from plait.records import Record
    from plait.searching.validation import Validated
    from plait.space.limits import Limits

group = typer.Typer(help="Show a search's front, pick a model from it, print it as a table.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(help="Of the search, or enough of its beginning.")]
Count = Annotated[int, typer.Option("--front", min=0, help="How many models; 0: the whole front.")]
SHOWN = 16
NOTHING = {"measured": None, "predicted": None}


@group.command()
def show(
    key: Key = LATEST,
    front: Count = SHOWN,
    svg: Annotated[Path | None, typer.Option(help="Also draw it into this file.")] = None,
    cube: Annotated[
        Path | None, typer.Option("--3d", help="Draw the first three objectives in three dimensions into this file.")
    ] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the front of a search, predicted beside measured."""
    from plait.searching.validation import document

    with _opened(key, store) as (record, known):
        found = document(record, _looked_up(record, known, front))
    if svg is not None:
        from plait.reporting.front import front_picture
        from plait.reporting.svg import save

        save(front_picture(found), svg)
    if cube is not None:
        from plait.reporting.front import search_cube
        from plait.reporting.svg import save

        save(search_cube(found), cube)
    print_json(found) if as_json else print_front(found)


@group.command()
@limit_options(otherwise="the search's")
def pick(
    key: Key = LATEST,
    *,
    limits: Limits,
    by: Annotated[str, typer.Option(help="The best in what. \\[default: the search's first objective]")] = "",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the spec of one model: the best that holds the limits. Made for plait train "$(plait front pick)"."""
    from plait.searching.validation import describe
    from plait.space.limits import Limits

    with _opened(key, store) as (record, known):
        limits = Limits(**{**record.result["limits"], **limits.as_dict()})
        rows = [describe(row, limits, known.find(row["spec"])) for row in record.result["front"]]
    name, maximise = _direction(record, by, rows[0])
    # What was measured is certain; among the rest the interval's upper end must hold.
    pool = [row for row in rows if row["within"] and row["measurement"]] or [r for r in rows if _should_hold(r, limits)]
    if not pool:
        raise UserError(_nothing_holds(rows, limits))
    best = (max if maximise else min)(pool, key=lambda row: float(_value(row, name)))
    if as_json:
        print_json(best)
        return
    said = [f"{name} {_said(_value(best, name))}"]
    shown = ((each, _value(best, of)) for of, each in in_rows([best]).items())
    said += [f"{_said(value)} {each.unit}" for each, value in shown if value is not None]
    basis = "measured" if best["measurement"] else "predicted, not measured"
    words = f"{', '.join(said)} ({basis}); the best of {len(pool)} that hold the limits"
    console(stderr=True).print(words, style="dim")
    print(best["spec"])


@group.command("table")
def as_table(
    key: Key = LATEST,
    front: Count = SHOWN,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the front as the paper's tables do: widths, and heads and inner width layer by layer."""
    with _opened(key, store) as (record, known):
        found = _looked_up(record, known, front)
    rows = sorted(found.rows, key=lambda row: int(row["decoder_params"]))
    entries: list[dict[str, Any]] = []
    for number, (row, shape) in enumerate(zip(rows, shapes([row["spec"] for row in rows]), strict=True), 1):
        costs = {"decoder_params": row["decoder_params"]}
        costs |= {each.column: _value(row, of) for of, each in in_rows(rows).items()}
        entries.append({"model": f"M{number}", **shape, **costs, "measured": row["measurement"] is not None})
    if as_json:
        print_json({"key": record.key, "models": entries})
        return
    shown = [name for name in entries[0] if name != "measured"]
    right = ("n_layer", "d_model", "decoder_params", *(each.column for each in on_device().values()))
    made = table(**{name.replace("_", "-"): "right" if name in right else "left" for name in shown})
    for entry in entries:
        made.add_row(*(_cell(name, entry[name], entry["measured"]) for name in shown))
    console().print(made)


group.command()(front_candidates.candidates)


@contextmanager
def _opened(key: str, store: str | None) -> Iterator[tuple[Record, Measurements]]:
    """The record of a search, and what has been measured in its setting."""
    from plait.device.measurements import Measurements
    from plait.device.setting import Setting
    from plait.records import open_store

    with open_store(store) as opened:
        record = stored_search(opened, key)
        if "setting" not in record.result:
            raise UserError(f"{record.key[:10]} does not say the setting of its measurements; search again.")
        restore(record.result.get("mixers", []), f"the search {record.key[:10]}")
        yield record, Measurements(opened, Setting(**record.result["setting"]))


def _looked_up(record: Record, known: Measurements, count: int) -> Validated:
    """As `plait search` chose and measured, from what is stored."""
    from plait.algorithms.front import Front
    from plait.searching.validation import validate
    from plait.space.limits import Limits

    limits = Limits(**record.result["limits"])
    return validate(Front.from_dict(record.result), limits, count, lambda spec, again: known.find(spec))


def _direction(record: Record, by: str, row: dict[str, Any]) -> tuple[str, bool]:
    """What to compare, and whether more of it is better."""
    objectives = {each["objective"]: bool(each["maximise"]) for each in record.result["objectives"]}
    if not by:
        return next(iter(objectives.items()))
    numbers = [name for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    known = [*numbers, *(name for name in in_rows([row]) if _value(row, name) is not None)]
    if by not in known:
        from plait.core.errors import did_you_mean

        raise UserError(f"--by {by}: the front has no such column.{did_you_mean(by, known)} It has {', '.join(known)}.")
    return by, objectives.get(by, by.endswith("decoder_params"))


def _value(row: dict[str, Any], name: str) -> Any:
    """A column; of a quantity of the device what was measured, else what was predicted."""
    if name not in on_device():
        return row[name]
    entry = row.get(quantity(name).column, NOTHING)
    return entry["predicted"] if entry["measured"] is None else entry["measured"]


def _should_hold(row: dict[str, Any], limits: Limits) -> bool:
    if row["measurement"] or row["exceeded"]:
        return False
    highest = {name: row[each.column]["interval"] for name, each in in_rows([row]).items()}
    asked = {name: highest[name][1] / quantity(name).scale for name in limits.on_device if highest.get(name)}
    return len(asked) == len(limits.on_device) and not limits.exceeded(asked)


def _nothing_holds(rows: list[dict[str, Any]], limits: Limits) -> str:
    shown = in_rows(rows)
    least = {name: min((v for row in rows if (v := _value(row, name)) is not None), default=None) for name in shown}
    asked = ", ".join(constraint.replace("_high", "") for constraint in limits.constraints())
    there = f"the least on it are {' and '.join(f'{_said(least[name])} {each.unit}' for name, each in shown.items())}"
    return f"no model of this front holds {asked}; {there}. Search again under these limits."


def _cell(name: str, value: Any, measured: bool) -> str:
    """`~` marks what is only predicted."""
    if name == "decoder_params":
        return short(value)
    if isinstance(value, str | int | list):
        return cell(value)
    return _said(value) if measured or value is None else f"~{_said(value)}"


def _said(value: float | None) -> str:
    if value is None:
        return "?"
    return short(value) if isinstance(value, int) else digits(value)
