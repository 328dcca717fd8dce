"""Records, and rows of any result, as one file for other programs: CSV and Parquet with a column per field, or JSON.

At most a few hundred are in memory at a time: they are first written to a temporary file, while the columns are
determined, and from there to the output file.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, TextIO

from plait.core.errors import UserError, did_you_mean
from plait.core.files import atomic_write, writing
from plait.records.record import Record, flat

AT_ONCE = 500
EXACT = 2**53  # integers up to this are exact as floats


def export(records: Iterable[Record], path: Path, overwrite: bool = False) -> int:
    """Write the records and return how many there were. The file is written atomically."""
    require_format(path)
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already; overwrite it with --force, or choose another name.")
    return write_rows((record.document() for record in records), path)


def require_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise UserError(f"cannot export to '{path.name}'.{did_you_mean(path.suffix, FORMATS)} Known endings: {known}.")


def write_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write rows in the format of the file's ending, overwriting the file, and return how many there were."""
    require_format(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            return FORMATS[path.suffix](rows, draft)


def write_json_list(documents: Iterable[Any], file: TextIO) -> int:
    """Write one JSON list, item by item."""
    number = 0
    for number, document in enumerate(documents, 1):
        text = json.dumps(document, indent=2, ensure_ascii=False).replace("\n", "\n  ")
        file.write(f"{'[' if number == 1 else ','}\n  {text}")
    file.write("\n]\n" if number else "[]\n")
    return number


def _write_json(documents: Iterable[Mapping[str, Any]], path: Path) -> int:
    # File names that are not UTF-8 contain surrogates, which JSON can only represent escaped.
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        return write_json_list(documents, file)


def _write_csv(documents: Iterable[Mapping[str, Any]], path: Path) -> int:
    with _Rows(documents, path.parent) as rows, path.open("w", newline="", encoding="utf-8") as file:
        names = _ordered(rows.kinds)
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_plain(row.get(name, "")) for name in names] for row in rows)
        return rows.number


def _write_parquet(documents: Iterable[Mapping[str, Any]], path: Path) -> int:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError("Parquet needs pyarrow: pip install 'plait[parquet]'. CSV and JSON need nothing.") from None
    plain = {
        "bool": pyarrow.bool_(), "int": pyarrow.int64(), "large": pyarrow.int64(), "float": pyarrow.float64(),
        "text": pyarrow.string(), "json": pyarrow.string(), "": pyarrow.null(),
    }  # fmt: skip
    with _Rows(documents, path.parent) as rows:
        names = _ordered(rows.kinds)
        types = [
            pyarrow.list_(plain[kind[5:]]) if kind.startswith("list ") else plain[kind]
            for kind in (rows.kinds[name] for name in names)
        ]
        schema = pyarrow.schema(list(zip(names, types, strict=True)))
        with parquet.ParquetWriter(path, schema) as writer:
            rest = iter(rows)
            while some := list(islice(rest, AT_ONCE)):
                columns = [
                    pyarrow.array([_cell(row.get(name), rows.kinds[name]) for row in some], kind)
                    for name, kind in zip(names, types, strict=True)
                ]
                writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
        return rows.number


FORMATS: dict[str, Callable[[Iterable[Mapping[str, Any]], Path], int]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
}


class _Rows:
    """Flat rows in a temporary file, and the type of the values of each column."""

    def __init__(self, documents: Iterable[Mapping[str, Any]], folder: Path) -> None:
        self.kinds: dict[str, str] = {}
        self.number = 0
        self._file: IO[str] = tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8")  # noqa: SIM115
        for document in documents:
            row = flat(document)
            text = json.dumps(row)
            if "\\ud" in text:  # surrogates, which a cell cannot hold
                text = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace").decode()
                row = json.loads(text)
            for name, value in row.items():
                known, kind = self.kinds.get(name), _kind(value)
                if kind != known:
                    self.kinds[name] = _merged(known or "", kind)
            self._file.write(text + "\n")
            self.number += 1

    def __iter__(self) -> Iterator[dict[str, object]]:
        self._file.seek(0)
        return map(json.loads, self._file)

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _kind(value: Any) -> str:
    """The type of a column with such values; "" if any type will do."""
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, int):
        return "int" if abs(value) <= EXACT else "large" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, dict) or any(isinstance(inner, (list, dict)) for inner in value):
        return "json"  # Parquet supports lists, but not empty dicts
    inner = ""
    for element in value:
        inner = _merged(inner, _kind(element))
    return "json" if inner == "json" else f"list {inner}"


_KINDS = {type(None): "", bool: "bool", float: "float", str: "text"}


def _merged(left: str, right: str) -> str:
    if left == right or not right:
        return left
    if not left:
        return right
    if left.startswith("list ") and right.startswith("list "):
        inner = _merged(left[5:], right[5:])
        return "json" if inner == "json" else f"list {inner}"
    pair = {left, right}
    if pair == {"int", "float"}:
        return "float"
    return "large" if pair == {"int", "large"} else "json"  # a column has one type


def _ordered(names: Iterable[str]) -> list[str]:
    """Columns in the order config, result, about, and then of first appearance."""
    parts = {part: place for place, part in enumerate(("key", "kind", "config", "result", "about"))}
    return sorted(names, key=lambda name: parts.get(name.partition(".")[0], len(parts)))


def _plain(value: Any) -> Any:
    """The text of a cell: booleans and lists as in JSON."""
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else value


def _cell(value: Any, kind: str) -> Any:
    return value if value is None or kind != "json" else json.dumps(value)
