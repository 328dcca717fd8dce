"""Other programs read what is exported; a file is complete or not there."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.records import Record, export
from plait.records.export import write_rows

Make = Callable[..., Record]


@pytest.fixture
def records(make_record: Make) -> list[Record]:
    return [
        make_record(0, accuracy=0.1, curve=[1.0, 0.5], mixed=1, deep=[[1], {}], none={}, text='a,"b"\né'),
        make_record(1, accuracy=1, curve=[], mixed="two", extra={"steps": 2**70}),
    ]


def test_csv(records: list[Record]) -> None:
    assert export(records, Path("out.csv")) == 2
    with open("out.csv", newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert list(first)[:4] == ["key", "kind", "config.protocol", "config.seed"]
    assert list(first)[-1] == "about.started"  # result.extra.steps is new in the second record, yet stands before it
    assert first["config.task.name"] == "compression"
    assert first["config.big"] == "false"
    assert float(first["result.accuracy"]) == 0.1
    assert json.loads(first["result.curve"]) == [1.0, 0.5]
    assert first["result.text"] == 'a,"b"\né'
    assert first["result.extra.steps"] == ""
    assert int(second["result.extra.steps"]) == 2**70


def test_parquet(records: list[Record]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(records, Path("out.parquet")) == 2
    columns = parquet.read_table("out.parquet").to_pydict()
    assert columns["key"] == [record.key for record in records]
    assert columns["config.seed"] == [0, 1]
    assert columns["config.big"] == [False, False]
    assert columns["result.accuracy"] == [0.1, 1.0]
    assert columns["result.curve"] == [[1.0, 0.5], []]
    assert columns["result.mixed"] == ["1", '"two"']  # a column has one type: these are JSON
    assert columns["result.deep"] == ["[[1], {}]", None]
    assert columns["result.none"] == ["{}", None]
    assert columns["result.extra.steps"] == [None, str(2**70)]


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_a_files_name_that_is_no_utf8_is_exported_too(make_record: Make, ending: str) -> None:
    """Training on such a file stores its name with surrogates, which no encoding has."""
    if ending == "parquet":
        pytest.importorskip("pyarrow.parquet")
    path = Path(f"out.{ending}")
    assert export([make_record(0, data="\udcff.txt", texts=["\udcff"], face="\U0001f600")], path) == 1
    if ending == "csv":
        assert "?.txt" in path.read_text(encoding="utf-8")
        assert "\U0001f600" in path.read_text(encoding="utf-8")
    if ending == "json":
        assert json.loads(path.read_text(encoding="utf-8"))[0]["result"]["data"] == "\udcff.txt"


def test_json(records: list[Record]) -> None:
    assert export(records, Path("out.json")) == 2
    assert json.loads(Path("out.json").read_text(encoding="utf-8")) == [record.document() for record in records]


def test_nothing_is_overwritten_unless_asked(records: list[Record]) -> None:
    path = Path("out.json")
    path.write_text("precious")
    with pytest.raises(UserError, match=r"out\.json exists already; overwrite it with --force"):
        export(records, path)
    assert path.read_text() == "precious"
    export(records, path, overwrite=True)
    assert len(json.loads(path.read_text())) == 2


def test_a_failure_leaves_the_old_file_and_no_rubbish(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("out.json")
    path.write_text("precious")

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", fails)
    with pytest.raises(UserError, match=r"cannot write out\.json: No space left on device"):
        export(records, path, overwrite=True)
    assert os.listdir() == ["out.json"]
    assert path.read_text() == "precious"


def test_files_are_as_readable_as_any_other(records: list[Record]) -> None:
    Path("other").touch()
    export(records, Path("out.csv"))
    assert Path("out.csv").stat().st_mode == Path("other").stat().st_mode


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.cvs", r"cannot export to 'out\.cvs'\. Did you mean '\.csv'\?"),
        ("out", "Known endings: .csv, .parquet, .json"),
    ],
)
def test_bad_names(records: list[Record], name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        export(records, Path(name))


def test_parquet_says_what_it_needs(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"plait\[parquet\]"):
        export(records, Path("out.parquet"))
    assert os.listdir() == []


def test_large_whole_numbers_stay_whole_beside_small_ones(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_rows([{"seed": 1, "mean": 1}, {"seed": 2**60 + 1, "mean": 0.5}], tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.to_pydict() == {"seed": [1, 2**60 + 1], "mean": [1.0, 0.5]}
    assert [str(kind) for kind in table.schema.types] == ["int64", "double"]
