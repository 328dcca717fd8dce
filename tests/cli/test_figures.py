"""Every figure from its command: a file with what was asked for, from a table or from stored records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from plait.analysis.accuracy import SHORT_CONTEXT
from plait.cli import runs
from plait.cli.analyse import group
from plait.core.errors import UserError
from plait.records import Record, open_store

TABLE = """set,name,params,size,ppl,bleu,latency_ms,memory_mb,d_model,n_layer
found,a,1000,1000,60,20,10,100,64,4
found,b,2000,2000,50,25,20,150,128,4
found,c,2000,3000,40,30,30,140,256,2
scaled,d,1000,1000,70,19,12,110,64,4
scaled,e,2000,2000,55,24,26,190,128,4
"""
STARTED = {"started": "2026-01-02T03:04:05+00:00", "seconds": 1.0}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    Path("t.csv").write_text(TABLE)
    return tmp_path


def run(app: Any, *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.stdout


def words(path: str | Path) -> set[str]:
    root = ElementTree.fromstring(Path(path).read_text(encoding="utf-8"))
    return {text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")}


def test_fronts_against_a_baseline(here: Path) -> None:
    asked = ("--where", "set=found", "--baseline", "t.csv", "--baseline-where", "set=scaled", "--quality", "ppl")
    run(group, "savings", "t.csv", *asked, "--cost", "latency_ms,memory_mb", "--svg", "fig8.svg")
    assert {"found", "baseline", "latency_ms", "memory_mb", "ppl"} <= words("fig8.svg")


def test_shapes_and_rank_correlations(here: Path) -> None:
    run(group, "aspect", "t.csv", "--metrics", "ppl,latency_ms", "--size", "params", "--svg", "fig13.svg")
    assert {"aspect ratio, d_model / n_layer", "latency_ms"} <= words("fig13.svg")
    asked = ("--proxies", "params,size", "--truths", "ppl,bleu", "--subsets", "set")
    run(group, "heatmap", "t.csv", *asked, "--svg", "fig19.svg")
    assert {"params, ppl", "size, bleu", "found", "scaled"} <= words("fig19.svg")


def put(*records: Record) -> None:
    with open_store() as store:
        for record in records:
            store.put(record)


def probe(length: int, accuracy: float) -> Record:
    task = {"task": "selective-copying", "vocab": 16, "length": length, "variant": "seed"}
    training = {"batch": 128, "grid": [[1e-3, 0.0]]}
    config = {"protocol": 1, "spec": "d=128 vocab=16 | attn[heads=8] mlp", "task": task, "training": training}
    return Record.of("probe", config, {"accuracy": accuracy, "seeds": [{"seed": 0, "accuracy": accuracy}]}, STARTED)


def test_accuracy_by_difficulty(here: Path) -> None:
    with pytest.raises(UserError, match="no records of kind 'probe'"):
        run(group, "difficulty")
    put(probe(256, 0.9))
    with pytest.raises(UserError, match="more than one setting"):
        run(group, "difficulty")
    put(probe(512, 0.5))
    found = json.loads(run(group, "difficulty", "--svg", "figures", "--json"))
    assert [(row["variable"], row["value"], row["accuracy"]) for row in found["curves"]] == [
        ("length", 256, 0.9),
        ("length", 512, 0.5),
    ]
    assert {"length", "test accuracy (↑ better)"} <= words("figures/selective-copying.svg")


def test_accuracy_against_latency(here: Path) -> None:
    for name, seconds, accuracy in (("train-1", 0.01, 0.5), ("train-2", 0.03, 0.6)):
        spec = f"d=64 | {name}"
        rows = [{"task": t, "metric": metric, "value": accuracy} for t, metric in SHORT_CONTEXT.items()]
        measured = {"latency": {"seconds": seconds}}
        put(
            Record.of("harness", {"protocol": 1, "spec": spec}, {"run": name, "table": rows}, STARTED),
            Record.of("measure", {"protocol": 1, "spec": spec, "seq": 2048}, measured, STARTED),
            Record.of("measure", {"protocol": 1, "spec": spec, "seq": 64}, measured, STARTED),
        )
    with pytest.raises(UserError, match="2 settings"):
        run(group, "accuracy")
    found = json.loads(run(group, "accuracy", "--where", "seq=2048", "--svg", "l32.svg", "--json"))["models"]
    assert [(row["model"], row["latency_ms"], round(row["average"], 6)) for row in found] == [
        ("train-1", 10.0, 50.0),
        ("train-2", 30.0, 60.0),
    ]
    assert {"piqa", "boolq", "average", "train-1", "latency, ms (↓ better)"} <= words("l32.svg")


def test_losses_of_two_runs(here: Path) -> None:
    for name in ("bert", "par"):
        Path(name).mkdir()
        Path(name, "run.json").write_text(
            json.dumps({"key": name, "config": {"spec": "d=64 vocab=256 | attn[heads=2]"}})
        )
        rows = [{"step": step, "loss": 9.0 / step} for step in (1, 2, 3)]
        logged = [*rows, {"step": 3, "validation": 4.0}]
        Path(name, "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in logged))
    assert "3.0000" in run(runs.group, "curves", "bert", "par", "--svg", "fig6.svg")
    assert {"optimizer step", "loss, nats per token (↓ better)"} <= words("fig6.svg")
    with pytest.raises(UserError, match="bert is given twice"):
        run(runs.group, "curves", "bert", "bert")
    Path("par", "log.jsonl").write_text("")
    with pytest.raises(UserError, match="par has logged no loss yet"):
        run(runs.group, "curves", "bert", "par")


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (("show", "attn", "--svg", "f.svg"), "f.svg"),
        (("scale", "pitfall", "--svg", "f.svg"), "f.svg"),
        (("analyse", "aspect", "t.csv", "--metrics", "ppl", "--size", "params", "--svg", "f.svg"), "f.svg"),
        (("new", "mixer", "mine.py"), "mine.py"),
        (("report", "-o", "page.html"), "page.html"),
        (("runs", "export", "out.csv"), "out.csv"),
    ],
)
def test_every_command_says_where_it_wrote(
    arguments: tuple[str, ...], file: str, plait: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plait compare --out` did not, others each in their own words; with --json not on standard output."""
    (tmp_path / "t.csv").write_text(TABLE)
    with open_store(f"sqlite:///{tmp_path}/runs/plait.db") as store:
        store.put(Record.of("train", {"protocol": 1, "spec": "attn"}, {"loss": 3.0}, STARTED))
    ran = plait(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert f"wrote {file}\n" in ran.stdout
    (tmp_path / file).unlink()
    ran = plait(*arguments, "--json")
    json.loads(ran.stdout)
    assert ran.stderr == f"wrote {file}\n"
