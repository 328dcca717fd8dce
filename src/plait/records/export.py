"""Records, and rows of any result, as one file for other programs: CSV and Parquet with a column per field, or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError, did_you_mean
from plait.records.record import Record, flat


def export(records: Iterable[Record], path: Path, overwrite: bool = False) -> int:
    """Write the records; how many there were. The file appears when it is complete, or not at all."""
    require_format(path)
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already; overwrite it with --force, or choose another name.")
    documents = [record.document() for record in records]
    write_rows(documents, path)
    return len(documents)


def require_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise UserError(f"cannot export to '{path.name}'.{did_you_mean(path.suffix, FORMATS)} Known endings: {known}.")


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """By the file's ending; over what was there."""
    require_format(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            FORMATS[path.suffix](rows, draft)
    except OSError as wrong:
        raise UserError(f"cannot write {path}: {wrong.strerror or wrong}.") from None


def _write_json(documents: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps(documents, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_csv(documents: list[dict[str, Any]], path: Path) -> None:
    rows = [flat(document) for document in documents]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _columns(rows), restval="")
        writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)


def _write_parquet(documents: list[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError("Parquet needs pyarrow: pip install 'plait[parquet]'. CSV and JSON need nothing.") from None
    rows = [flat(document) for document in documents]
    columns = {}
    for name in _columns(rows):
        values = [_list_or_plain(row.get(name)) for row in rows]
        try:
            columns[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError):  # values of several types: a column has one
            columns[name] = pyarrow.array([None if value is None else json.dumps(value) for value in values])
    parquet.write_table(pyarrow.table(columns), path)


FORMATS: dict[str, Callable[[list[dict[str, Any]], Path], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
}


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every name that occurs: of a record in the order config, result, about, and then of first sight."""
    seen = dict.fromkeys(name for row in rows for name in row)
    parts = {part: place for place, part in enumerate(("key", "kind", "config", "result", "about"))}
    return sorted(seen, key=lambda name: parts.get(name.partition(".")[0], len(parts)))


def _plain(value: Any) -> Any:
    """A cell: true, false and lists as JSON writes them."""
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else value


def _list_or_plain(value: Any) -> Any:
    """Parquet has lists of its own, but nothing for an empty dict."""
    if isinstance(value, list) and not any(isinstance(inner, (list, dict)) for inner in value):
        return value
    return json.dumps(value) if isinstance(value, (list, dict)) else value
