"""Tables from every kind of file, and choosing rows."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from plait.analysis.table import Table, read_table
from plait.core.errors import UserError
from plait.records import Record, export, open_store

CSV = "name,params,ppl,ok\na,1,30.5,true\nb,20,,false\nc,3,29,true\n"
ROWS = [
    {"name": "a", "params": 1, "ppl": 30.5, "ok": True},
    {"name": "b", "params": 20, "ppl": None, "ok": False},
    {"name": "c", "params": 3, "ppl": 29, "ok": True},
]


def test_every_format_reads_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "t.csv").write_text("\ufeff" + CSV, encoding="utf-8")
    (tmp_path / "t.json").write_text(json.dumps(ROWS))
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    for ending in ("csv", "json", "jsonl", "parquet"):
        assert read_table(str(tmp_path / f"t.{ending}")).columns == Table.of("t", ROWS).columns, ending


def test_lists_by_name_become_sets_and_inner_fields_have_dotted_names(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"one": [{"cost": {"ms": 1}}], "two": [{"cost": {"ms": 2}}, {"x": 3}]}))
    assert read_table(str(path)).columns == {
        "set": ["one", "two", "two"],
        "cost.ms": [1, 2, None],
        "x": [None, None, 3],
    }


def test_rows_become_columns_one_after_the_other() -> None:
    class Row(dict[str, object]):
        """One that can be watched."""

    watched: set[int] = set()
    most = 0

    def rows() -> Iterator[Row]:
        nonlocal most
        for number in range(50):
            row = Row({"n": number, "name": f"model {number % 2}", **({"late": number} if number % 20 == 7 else {})})
            watched.add(id(row))
            weakref.finalize(row, watched.discard, id(row))
            most = max(most, len(watched))
            yield row

    table = Table.of("t", rows())
    assert most <= 2
    assert table.columns["n"] == list(range(50))
    assert table.columns["late"] == [n if n % 20 == 7 else None for n in range(50)]
    assert len({id(name) for name in table.columns["name"]}) == 2  # the same text is kept once


def test_a_store_is_a_table_and_so_is_its_export(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plait.db"
    with open_store(url) as store:
        for seed in range(2):
            store.put(Record.of("probe", {"protocol": 1, "seed": seed}, {"accuracy": seed / 2}, {"seconds": 1.0}))
        export(store.find(), tmp_path / "t.csv")
    for given in (url, str(tmp_path / "t.csv")):
        table = read_table(given).where(["kind=probe"])
        assert table.column("config.seed") == [1, 0]
        assert table.numbers("result.accuracy").tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (["name=b"], "b"),
        (["name!=b"], "ac"),
        (["params<=3"], "ac"),
        (["params < 3"], "a"),
        (["params>3"], "b"),
        (["params>=3", "ok=true"], "c"),
        (["ppl=29.0"], "c"),
        (["ppl="], "b"),
        (["ppl!="], "ac"),
        (["ppl<100"], "ac"),
        (["ok=false"], "b"),
        (["a<=b=1"], "c"),
        (["set=103"], "a"),
        (["heads=[2, 4]"], "b"),
        (["heads<3"], "ac"),
    ],
)
def test_conditions(conditions: list[str], names: str) -> None:
    more = [
        {"a<=b": 0, "set": "103", "heads": 2},
        {"a<=b": 0, "set": "x", "heads": [2, 4]},
        {"a<=b": 1, "set": "y", "heads": 2},
    ]
    table = Table.of("t", [row | extra for row, extra in zip(ROWS, more, strict=True)])
    assert "".join(table.where(conditions).column("name")) == names


def test_numbers_and_complete_rows() -> None:
    table = Table.of("t", ROWS)
    assert np.isnan(table.numbers("ppl")).tolist() == [False, True, False]
    complete, missing = table.complete(["params", "ppl"])
    assert (complete.column("name"), missing) == (["a", "c"], 1)
    assert {value: part.column("name") for value, part in table.groups("ok").items()} == {
        "True": ["a", "c"],
        "False": ["b"],
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda table: table.column("param"), "no column 'param'. Did you mean 'params'.* It has: name, params"),
        (lambda table: table.where(["parms=1"]), "Did you mean 'params'"),
        (lambda table: table.where(["params"]), "is not a condition"),
        (lambda table: table.numbers("name"), "row 1 has 'a'"),
        (lambda table: table.numbers("ok"), "row 1 has True"),
    ],
)
def test_mistakes(call: Callable[[Table], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(Table.of("t", ROWS))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "a,b\n1,2\n3\n", "line 3: 1 cells for 2 columns"),
        ("t.csv", "a,a\n1,2\n", "two columns 'a'"),
        ("t.csv", "a,b\n", "no rows"),
        ("t.json", '{"a": 1}', "holds no table"),
        ("t.json", "[1]", "objects"),
        ("t.json", "[", "invalid JSON in line 1"),
        ("t.jsonl", '{"a": 1}\n{', r"t\.jsonl:2: not JSON"),
        ("t.parquet", "none", "cannot read"),
        ("t.xlsx", "", "known endings"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_table(str(tmp_path / name))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"cannot read nowhere\.csv: No such file"):
        read_table("nowhere.csv")
