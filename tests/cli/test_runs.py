"""`plait runs`: the store from the command line."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plait.api.runs import each as each_record
from plait.cli.main import app
from plait.designing.config import KIND as DESIGN_CLOCK
from plait.records import Record, Store, database, open_store
from plait.records import record as checks
from plait.records import record as record_module
from plait.records import store as store_module
from plait.records.record import INTERNAL


def record(seed: int, kind: str = "probe", **result: Any) -> Record:
    config = {"protocol": 1, "spec": "d=64 | attn[heads=2]", "seed": seed, "task": {"name": "copy"}}
    about = {"started": "2026-01-02T03:04:05+00:00", "seconds": 1.5}
    return Record.of(kind, config, result or {"accuracy": 0.25, "curve": [seed / 7] * 50}, about)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Four records where `plait` looks by default; the last one is the newest."""
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    records = [*(record(seed) for seed in range(3)), record(0, "train", loss=3.5)]
    with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
        for each in records:
            store.put(each)
    return records


def seeds(text: str) -> list[int]:
    return [document["config"]["seed"] for document in json.loads(text)]


def test_list(plait: Any, filled: list[Record]) -> None:
    lines = plait("runs", "list").stdout.splitlines()
    assert lines[0].split() == ["key", "kind", "started", "seconds", "config", "result"]
    assert [line.split()[0] for line in lines[1:]] == [each.key[:10] for each in reversed(filled)]
    assert lines[1].split()[1:] == ["train", "2026-01-02", "03:04", "1.5", "seed=0", "loss=3.5"]
    assert lines[2].split()[1:] == ["probe", "2026-01-02", "03:04", "1.5", "seed=2", "accuracy=0.25"]


def test_a_listed_record_is_a_row_of_its_most_telling_fields(plait: Any, tmp_path: Path) -> None:
    """A training's config has dozens of fields: four are shown, the telling ones first, and `…` for the others."""
    recipe = {f"key{n}": n for n in range(20)}
    config = {"protocol": 1, "recipe": recipe, "seed": 3, "data": "mine.txt", "spec": "d=64 | gla"}
    result = {"folder": "runs/x", "steps": 5, "tokens": 9, "seconds": 1.0, "flops": 1e9, "loss": 2.5}
    with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
        store.put(record(0))
        store.put(Record.of("train", config, result, {"started": "2026-01-02T03:04:05+00:00", "seconds": 1.5}))
    first = plait("runs", "list").stdout.splitlines()[1]
    assert "  spec=d=64 | gla data=mine.txt seed=3 recipe.key0=0 …" in first
    assert first.split("  ")[-1].strip() == "loss=2.5 folder=runs/x steps=5 tokens=9 …"


def test_a_list_tells_trainings_apart(plait: Any, tmp_path: Path) -> None:
    """By optimizer, rate and text: hashes of the data and its tokenizer differ too, but no reader knows them."""
    with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
        for number, optimizer in enumerate(("adamw", "muon")):
            data = {"fingerprint": f"{number}" * 32, "tokenizer": {"sha256": f"{number}" * 64, "vocab": 256 + number}}
            length, recipe = {"steps": 9 + number}, {"optimizer": optimizer, "beta1": number}
            config = {"protocol": 1, "data": data, "recipe": recipe, "length": length}
            store.put(Record.of("train", config, {"run": "x", "folder": "y", "loss": 2.5, "data": "mine.txt"}, {}))
    lines = plait("runs", "list").stdout.splitlines()[1:]
    assert [[word for word in line.split() if "=" in word][:3] for line in lines] == [
        ["recipe.optimizer=muon", "length.steps=10", "data.tokenizer.vocab=257"],
        ["recipe.optimizer=adamw", "length.steps=9", "data.tokenizer.vocab=256"],
    ]
    assert all("loss=2.5 data=mine.txt" in line for line in lines)


def test_list_chooses(plait: Any, filled: list[Record]) -> None:
    assert json.loads(plait("runs", "list", "--json").stdout) == [each.document() for each in reversed(filled)]
    assert seeds(plait("runs", "list", "--json", "--kind", "probe").stdout) == [2, 1, 0]
    assert seeds(plait("runs", "list", "--json", "--limit", "2").stdout) == [0, 2]
    assert seeds(plait("runs", "list", "--json", "--where", "seed=0", "--where", "task.name=copy").stdout) == [0, 0]
    assert seeds(plait("runs", "list", "--json", "--where", "spec=d=64 | attn[heads=2]", "--limit", "1").stdout) == [0]
    assert "the newest 2; more with --limit" in plait("runs", "list", "--limit", "2").stdout
    for limit in ("50", "1001"):  # a table, and line by line
        none = plait("runs", "list", "--where", "seed=77", "--limit", limit)
        assert none.stdout == "no records in runs/plait.db\n"


def test_what_tells_users_nothing_is_listed_if_asked_for(plait: Any, filled: list[Record], tmp_path: Path) -> None:
    """How a design has spent its time, one record per stage, hid the results."""
    assert INTERNAL == (DESIGN_CLOCK,)
    clock = record(0, DESIGN_CLOCK, seconds=1.0)
    with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
        store.put(clock)
    for options in ([], ["--where", "seed=0"]):
        assert DESIGN_CLOCK not in plait("runs", "list", *options).stdout
        listed = json.loads(plait("runs", "list", "--json", "--limit", "1", *options).stdout)
        assert listed == [filled[-1].document()]
        named = plait("runs", "list", "--json", "--kind", DESIGN_CLOCK, *options).stdout
        assert json.loads(named) == [clock.document()]
    assert json.loads(plait("runs", "show", "latest", "--json").stdout) == filled[-1].document()
    assert json.loads(plait("runs", "show", clock.key, "--json").stdout) == clock.document()
    plait("runs", "export", "all.json")
    assert len(json.loads((tmp_path / "all.json").read_text())) == 5
    reported = plait("report", "--json")
    assert json.loads(reported.stdout)["kinds"] == {"train": 1, "probe": 3}


def test_an_empty_folder_stays_empty(plait: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    ran = plait("runs", "list")
    assert (ran.returncode, ran.stdout) == (0, "no records in runs/plait.db\n")
    assert json.loads(plait("runs", "list", "--json").stdout) == []
    assert os.listdir(tmp_path) == []


def test_another_store(plait: Any, filled: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(plait("runs", "list", "--json", "--store", "sqlite:///other.db").stdout) == []
    monkeypatch.setenv("PLAIT_STORE", "sqlite:///other.db")
    assert json.loads(plait("runs", "list", "--json").stdout) == []
    assert len(json.loads(plait("runs", "list", "--json", "--store", "sqlite:///runs/plait.db").stdout)) == 4


def test_show(plait: Any, filled: list[Record]) -> None:
    key = filled[1].key
    for name in (key[:8], f"train-{key[:10]}"):  # as other commands call a run
        assert json.loads(plait("runs", "show", name, "--json").stdout) == filled[1].document()
    assert json.loads(plait("runs", "show", "latest", "--json").stdout) == filled[-1].document()
    shown = dict(line.split(maxsplit=1) for line in plait("runs", "show", key[:8]).stdout.splitlines())
    assert shown["key"].strip() == key
    assert shown["config.spec"].strip() == "d=64 | attn[heads=2]"  # brackets are text, not markup
    assert shown["config.task.name"].strip() == "copy"
    assert shown["result.curve"].strip().endswith("(50 values)")
    parts = list(dict.fromkeys(name.partition(".")[0] for name in shown))
    assert parts.index("result") < parts.index("config")


def test_a_field_without_a_value_is_a_dash(plait: Any, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
        store.put(Record.of("probe", {"protocol": 1}, {"accuracy": 0.5}, {"gpu": None, "seconds": 1.5}))
    shown = dict(line.split(maxsplit=1) for line in plait("runs", "show", "latest").stdout.splitlines())
    assert shown["about.gpu"].strip() == "–"


def test_rm_asks_first(plait: Any, filled: list[Record], tmp_path: Path) -> None:
    def rm(answer: str, *arguments: str) -> Any:
        return plait("runs", "rm", *arguments, typed=answer)

    def left() -> list[Record]:
        with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
            return store.find()

    first, second, *rest = (each.key for each in filled)
    for answer, code in (("n\n", 0), ("", 1)):
        asked = rm(answer, first[:8])
        assert asked.returncode == code
        assert first[:10] in asked.stdout
        assert "Remove 1 record from runs/plait.db?" in asked.stdout
        assert "removed" not in asked.stdout
        assert len(left()) == 4
    assert "1 record removed" in rm("y\n", first[:8]).stdout
    assert rm("", "--yes", second[:8], "feed").returncode == 2  # one of the keys is wrong: none is removed
    assert len(left()) == 3
    assert "1 record removed" in rm("", "--yes", second[:8], second).stdout  # the same one, named twice
    assert {each.key for each in left()} == set(rest)


def test_export(plait: Any, filled: list[Record], tmp_path: Path) -> None:
    ran = plait("runs", "export", "out.csv", "--kind", "probe")
    assert (ran.returncode, ran.stdout) == (0, "3 records\nwrote out.csv\n")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["config.seed"] for row in rows] == ["2", "1", "0"]
    assert plait("runs", "export", "out.csv").returncode == 2
    assert plait("runs", "export", "out.csv", "--force", "--where", "seed=0").stdout == "2 records\nwrote out.csv\n"


MISTAKES = {
    "no such key": (("show", "feed"), "no record in runs/plait.db has a key that begins with 'feed'"),
    "no such kind": (("list", "--kind", "prob"), "no records of kind 'prob' in runs/plait.db. Did you mean 'probe'?"),
    "not a condition": (("list", "--where", "seed"), "--where seed: should be field=value"),
    "no URL": (("list", "--store", "x.db"), "Did you mean sqlite:///x.db?"),
    "no format": (("export", "out.xlsx"), "Known endings: .csv, .parquet, .json"),
    "no records": (("export", "out.csv", "--where", "seed=9"), "no records to export in runs/plait.db"),
    "no store": (("list", "--store", "sqlite:///damaged.db"), "file is not a database"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message(plait: Any, filled: list[Record], tmp_path: Path, name: str) -> None:
    (tmp_path / "damaged.db").write_text("no database" * 100)
    arguments, message = MISTAKES[name]
    ran = plait("runs", *arguments)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.startswith("plait: ")
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "options", [["list", "--limit", "5000"], ["list", "--limit", "5000", "--json"], ["export", "x.csv"]]
)
def test_every_record_is_read_once_and_the_stores_name_is_not_made_for_each(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/plait.db"
    records = [record(seed) for seed in range(40)]
    with open_store(url) as store:
        for each in records:
            store.put(each)
    parsed: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    named: list[object] = []
    name_of, whole, loads = database.display_name, checks.damage, json.loads
    monkeypatch.setattr(database, "display_name", lambda url: named.append(url) or name_of(url))
    monkeypatch.setattr(checks, "damage", lambda row: checked.update([row.key]) or whole(row))
    monkeypatch.setattr(json, "loads", lambda text, **more: parsed.update([text]) or loads(text, **more))
    ran = CliRunner().invoke(app, ["runs", *options, "--store", url])
    assert ran.exit_code == 0, ran.output
    assert checked == Counter(each.key for each in records)  # verified, each once
    assert [parsed[record_module.json_text(each.config, "config", canonical=True)] for each in records] == [1] * 40
    assert len(named) <= 2


def test_a_list_is_written_while_the_store_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/plait.db"
    with open_store(url) as store:
        for seed in range(12):
            store.put(record(seed))
    monkeypatch.setattr(store_module, "AT_ONCE", 4)
    asked: list[int] = []
    rows_of = Store._rows
    monkeypatch.setattr(Store, "_rows", lambda self, query: asked.append(1) or rows_of(self, query))
    found = each_record(store=url)
    assert not asked
    assert [next(found).config["seed"] for _ in range(4)] == [11, 10, 9, 8]
    assert len(asked) == 1  # the other eight are still in the store
    assert len(list(found)) == 8
