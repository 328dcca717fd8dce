"""What every `plait analyse …` shares: reading the table, which way a column is better, printing rows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.output import console, plain, print_json
from plait.core.errors import UserError

if TYPE_CHECKING:
    from plait.analysis.pareto import Floats
    from plait.analysis.table import Table

File = Annotated[str, typer.Argument(metavar="FILE", help="A .csv, .json, .jsonl or .parquet file, or a store's URL.")]
Where = Annotated[list[str] | None, typer.Option(help="Only these rows: column=value, or with != < <= > >=.")]
Label = Annotated[str | None, typer.Option(help="The column that names a row; else the first that is there.")]
Lower = Annotated[str, typer.Option(help="Columns in which lower is better, against what their names say.")]
Higher = Annotated[str, typer.Option(help="Columns in which higher is better, against what their names say.")]

#: A column with one of these words in its name is better when it is lower, unless the user says otherwise.
LOWER_WORDS = {"ppl", "perplexity", "loss", "nll", "bits", "bpb", "bpc", "error", "latency", "memory", "seconds", "ms"}
LABELS = ("name", "id", "spec", "config.spec", "key", "model")


def read(file: str, where: Sequence[str] | None, numbers: Sequence[str]) -> tuple[Table, int]:
    """The rows asked for that have all these numbers, and how many lack some."""
    from plait.analysis.table import read_table

    chosen = read_table(file).where(where or [])
    if not len(chosen):
        raise UserError(f"no row of {file} meets {' and '.join(where or [])}.")
    table, missing = chosen.complete(numbers)
    if not len(table):
        raise UserError(f"no row of {file} has a number in each of: {', '.join(numbers)}.")
    return table, missing


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def floats(text: str, option: str) -> list[float]:
    try:
        return [float(number) for number in names(text)]
    except ValueError:
        raise UserError(f"{option} {text}: should be numbers with commas between them.") from None


def lower_is_better(name: str, lower: str, higher: str) -> bool:
    if name in names(lower) and name in names(higher):
        raise UserError(f"column '{name}' is given with both --lower and --higher.")
    guessed = bool(LOWER_WORDS & set(re.split(r"[^a-z]+", name.lower())))
    return name in names(lower) or (guessed and name not in names(higher))


def goodness(table: Table, name: str, lower: str, higher: str) -> Floats:
    """A column turned so that more is better."""
    values = table.numbers(name)
    return -values if lower_is_better(name, lower, higher) else values


def direction(name: str, lower: str, higher: str) -> str:
    return f"{name}: {'lower' if lower_is_better(name, lower, higher) else 'higher'} is better"


def label_of(table: Table, label: str | None) -> list[Any]:
    """What each row is called; its number, counted from 1, where nothing names it."""
    if label is not None:
        return table.column(label)
    named = next((name for name in LABELS if name in table.columns), None)
    return table.column(named) if named else list(range(1, len(table) + 1))


def show(document: dict[str, Any], as_json: bool, *tables: str, notes: Sequence[str] = ()) -> None:
    """The document as JSON, or those of its entries that are lists of rows as tables, and then the notes."""
    if as_json:
        print_json(document)
        return
    out = console()
    for name in tables:
        if document[name]:
            out.print(_table(document[name]))
            out.print()
    for note in notes:
        if note:
            out.print(note, markup=False, soft_wrap=True)


def left_out(missing: int, why: str = "without a number in some column") -> str:
    return f"left out: {missing} {'row' if missing == 1 else 'rows'} {why}" if missing else ""


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table as Drawn

    drawn = Drawn(header_style="bold", pad_edge=False, box=None)
    for name in rows[0]:
        number = all(isinstance(row[name], (int, float, type(None))) for row in rows)
        drawn.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(plain(cell(value)) for value in row.values()))
    return drawn


def cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
