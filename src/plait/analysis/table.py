"""A table of results: named columns, read from a file or a store.

    results.csv       a header line, then a row per line; numbers, true, false and empty cells are recognised
    results.jsonl     a JSON object per line
    results.json      a list of objects, or an object of such lists: its keys become the column `set`
    results.parquet   needs pyarrow
    sqlite:///…       the records of a store, by its URL

Nested fields have dotted names, as in the store: `result.accuracy`.
"""

from __future__ import annotations

import csv
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plait.analysis.pareto import Floats
from plait.core.errors import UserError, did_you_mean
from plait.core.files import json_lines, read_json, read_text

SET = "set"  # column with the name of the list that a row comes from, if a file has several

#: Longer operators first: `<=` is not `<` with a value that begins with `=`.
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}


@dataclass(frozen=True)
class Table:
    """Columns of equal length; a missing value is None."""

    name: str
    columns: dict[str, list[Any]]

    @classmethod
    def of(cls, name: str, rows: Iterable[Mapping[str, Any]]) -> Table:
        """A table from an iterable of rows, which are consumed one by one. Repeated text is stored once."""
        columns: dict[str, list[Any]] = {}
        texts: dict[str, str] = {}
        number = 0
        for number, row in enumerate(rows, 1):
            for column, value in row.items():
                values = columns.get(column)
                if values is None:
                    values = columns[column] = []
                if len(values) < number - 1:
                    values.extend([None] * (number - 1 - len(values)))
                values.append(texts.setdefault(value, value) if type(value) is str else value)
        for values in columns.values():
            values.extend([None] * (number - len(values)))
        return cls(name, columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def column(self, name: str) -> list[Any]:
        if name not in self.columns:
            has = ", ".join(self.columns) or "none"
            raise UserError(f"{self.name} has no column '{name}'.{did_you_mean(name, self.columns)} It has: {has}.")
        return self.columns[name]

    def numbers(self, name: str) -> Floats:
        """A numeric column; nan for missing values."""
        values = self.column(name)
        for row, value in enumerate(values):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                shown = str(value)[:40] if isinstance(value, str) else value
                raise UserError(f"{self.name}: column '{name}' should hold numbers; row {row + 1} has {shown!r}.")
        return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)

    def rows(self, places: Iterable[int]) -> Table:
        """These rows, in this order."""
        chosen = list(places)
        return Table(self.name, {name: [values[row] for row in chosen] for name, values in self.columns.items()})

    def complete(self, names: Iterable[str]) -> tuple[Table, int]:
        """The rows with a number in each of these columns, and the number of other rows."""
        there = np.ones(len(self), dtype=np.bool_)
        for name in names:
            there &= ~np.isnan(self.numbers(name))
        missing = int((~there).sum())
        return self.rows(np.flatnonzero(there).tolist()) if missing else self, missing

    def where(self, conditions: Iterable[str]) -> Table:
        """The rows that satisfy all conditions: `column=value`, or with != < <= > >=. Text is compared as text.

        A missing value satisfies only `column!=value`; `column=` selects missing values.
        """
        chosen: list[int] = list(range(len(self)))
        for condition in conditions:
            column, compare, wanted = self._condition(condition)
            values = self.column(column)
            chosen = [row for row in chosen if _meets(values[row], compare, wanted)]
        return self.rows(chosen) if len(chosen) < len(self) else self

    def groups(self, name: str) -> dict[str, Table]:
        """The table split by the values of one column, in order of first appearance."""
        places: dict[str, list[int]] = {}
        for row, value in enumerate(self.column(name)):
            places.setdefault("" if value is None else str(value), []).append(row)
        return {value: self.rows(rows) for value, rows in places.items()}

    def _condition(self, text: str) -> tuple[str, str, Any]:
        for sign in re.finditer("|".join(COMPARISONS), text):
            column = text[: sign.start()].strip()
            if column in self.columns:  # a column's name may contain an operator
                return column, sign.group(), _value(text[sign.end() :].strip())
        named = re.match(r"\s*([^=<>!]+?)\s*(?:[<>!]=|[=<>])", text)
        if named is None:
            raise UserError(f"'{text}' is not a condition: write column=value, or use one of {' '.join(COMPARISONS)}.")
        self.column(named.group(1))
        raise AssertionError("the loop above takes every known column")


def read_table(source: str) -> Table:
    """Read a table from a file, by its extension, or the records of a store, by its URL."""
    if "://" in source:
        return _read_store(source)
    path = Path(source)
    if path.suffix not in READERS:
        known = ", ".join(READERS)
        raise UserError(f"cannot read a table from '{source}': known endings: {known}; a store is given by its URL.")
    try:
        rows = READERS[path.suffix](path)
    except OSError as wrong:
        raise UserError(f"cannot read {source}: {wrong.strerror or wrong}.") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read {source}: it is not UTF-8 text.") from None
    except csv.Error as wrong:
        raise UserError(f"cannot read {source}: {wrong}.") from None
    table = Table.of(path.name, rows)
    if not len(table):
        raise UserError(f"{source} has no rows.")
    return table


def _read_csv(path: Path) -> list[dict[str, object]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        if twice := [name for name in header if header.count(name) > 1]:
            raise UserError(f"{path} has two columns '{twice[0]}'.")
        rows = []
        for cells in lines:
            if cells and len(cells) != len(header):
                raise UserError(f"{path}, line {lines.line_num}: {len(cells)} cells for {len(header)} columns.")
            if cells:
                rows.append(dict(zip(header, map(_value, cells), strict=True)))
    return rows


def _read_jsonl(path: Path) -> list[dict[str, object]]:
    return _objects([row for _, row in json_lines(read_text(path), str(path))], path)


def _read_json(path: Path) -> list[dict[str, object]]:
    document = read_json(path)
    if isinstance(document, list):
        return _objects(document, path)
    if isinstance(document, dict) and document and all(isinstance(part, list) for part in document.values()):
        return [{SET: name, **row} for name, part in document.items() for row in _objects(part, path)]
    raise UserError(f"{path} holds no table: give a list of objects, or an object whose values are such lists.")


def _read_parquet(path: Path) -> list[dict[str, object]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ModuleNotFoundError:
        raise UserError("Parquet needs pyarrow: pip install 'plait[parquet]'. CSV and JSON need nothing.") from None
    try:
        return _objects(parquet.read_table(path).to_pylist(), path)
    except ArrowInvalid as wrong:
        raise UserError(f"cannot read {path}: {wrong}.") from None


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def _read_store(url: str) -> Table:
    from plait.records import open_store
    from plait.records.record import flat

    with open_store(url) as store:
        table = Table.of(store.name, (flat(record.document()) for record in store.each()))
        if not len(table):
            raise UserError(f"{store.name} has no records.")
    return table


def _objects(rows: list[Any], path: Path) -> list[dict[str, object]]:
    from plait.records.record import flat

    if wrong := [row for row in rows if not isinstance(row, dict)]:
        raise UserError(f"{path} should hold objects, one a row; it has {str(wrong[0])[:40]!r}.")
    return [flat(row) for row in rows]


def _value(text: str) -> Any:
    """The value of a cell or of the right side of a condition: a number, a boolean, text, or None if empty."""
    if text in ("", "true", "false"):
        return {"": None, "true": True, "false": False}[text]
    try:
        value = int(text) if re.fullmatch(r"[+-]?\d{1,300}", text) else float(text)
    except ValueError:
        return text
    # Text such as "Infinity" is a name, and so is a number too large for a float.
    return text if isinstance(value, float) and math.isinf(value) else value


def _meets(value: Any, comparison: str, wanted: Any) -> bool:
    numbers = isinstance(value, (int, float)) and isinstance(wanted, (int, float))
    if not numbers and value is not None and wanted is not None:
        value, wanted = str(value), str(wanted)  # for names that look like numbers, and for lists
    if comparison in ("=", "!="):
        return bool(COMPARISONS[comparison](value, wanted))
    return value is not None and wanted is not None and bool(COMPARISONS[comparison](value, wanted))
