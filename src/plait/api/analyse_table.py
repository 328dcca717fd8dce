"""Shared by all analyses: reading the table, whether a higher or a lower value is better, the result."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.registry import names
from plait.core.result import Result, card, text_table

if TYPE_CHECKING:
    from plait.analysis.pareto import Floats
    from plait.analysis.table import Table

Row = dict[str, Any]
#: Column names: a list, or text separated by commas.
Names = str | Sequence[str]

#: Lower is better for columns with one of these words in their name, unless specified otherwise.
LOWER_WORDS = {"ppl", "perplexity", "loss", "nll", "bits", "bpb", "bpc", "error", "latency", "memory", "seconds", "ms"}
LABELS = ("name", "id", "spec", "config.spec", "key", "model")


def read(file: str, where: Sequence[str] | None, numbers: Sequence[str]) -> tuple[Table, int]:
    """The selected rows with a number in each of these columns, and how many rows lack one."""
    from plait.analysis.table import read_table

    chosen = read_table(file).where(where or [])
    if not len(chosen):
        raise UserError(f"no row of {file} meets {' and '.join(where or [])}.")
    table, missing = chosen.complete(numbers)
    if not len(table):
        raise UserError(f"no row of {file} has a number in each of: {', '.join(numbers)}.")
    return table, missing


def floats(text: str | Sequence[float], option: str) -> list[float]:
    if not isinstance(text, str):
        return [float(number) for number in text]
    try:
        return [float(number) for number in names(text)]
    except ValueError:
        raise UserError(f"{option} {text}: should be numbers separated by commas.") from None


def lower_is_better(name: str, lower: Names, higher: Names) -> bool:
    if name in names(lower) and name in names(higher):
        raise UserError(f"column '{name}' is given with both --lower and --higher.")
    guessed = bool(LOWER_WORDS & set(re.split(r"[^a-z]+", name.lower())))
    return name in names(lower) or (guessed and name not in names(higher))


def goodness(table: Table, name: str, lower: Names, higher: Names) -> Floats:
    """A column, negated if lower is better, so that more is better."""
    values = table.numbers(name)
    return -values if lower_is_better(name, lower, higher) else values


def direction(name: str, lower: Names, higher: Names) -> str:
    return f"{name}: {'lower' if lower_is_better(name, lower, higher) else 'higher'} is better"


def label_of(table: Table, label: str | None) -> list[Any]:
    """The name of each row: its `label` column, or its number from 1."""
    if label is not None:
        return table.column(label)
    named = next((name for name in LABELS if name in table.columns), None)
    return table.column(named) if named else list(range(1, len(table) + 1))


@dataclass(frozen=True)
class Analysis(Result):
    """`document` is the JSON that `--json` prints, `tables` are printed for people, `notes` are caveats."""

    document: dict[str, Any]
    tables: Mapping[str, list[Row]]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return self.document

    def rows(self) -> list[Row]:
        """The first table, or the single numbers if there is none."""
        first = next(iter(self.tables.values()), None)
        return [{k: v for k, v in self.document.items() if not isinstance(v, (dict, list))}] if first is None else first

    def __str__(self) -> str:
        """All tables, then the notes."""
        return "\n\n".join([*(text_table(rows) for rows in self.tables.values() if rows), "\n".join(self.notes)])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return "".join(card(rows) for rows in self.tables.values() if rows) + notes


def analysis(document: dict[str, Any], *tables: str, notes: Sequence[str] = ()) -> Analysis:
    """The analysis of a document; the entries with these names are lists of rows."""
    return Analysis(document, {name: document[name] for name in tables}, tuple(note for note in notes if note))


def left_out(missing: int, why: str = "without a number in some column") -> str:
    return f"left out: {missing} {'row' if missing == 1 else 'rows'} {why}" if missing else ""


def cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(cell, value)) or "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
