"""`plait task show`: sequences with what is scored in them, as text and as one JSON document."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from plait import tasks
from plait.tasks import IGNORE, baseline, make_data, names


def test_json_holds_the_data(plait: Any) -> None:
    ran = plait("task", "show", "selective-copying", "--set", "length=64", "--set", "vocab=8", "--seed", "3", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    shown = json.loads(ran.stdout)
    data = make_data(baseline("selective-copying").with_settings({"length": "64", "vocab": "8"}), 3)
    assert (shown["task"], shown["key"], shown["label"]) == (data.task.name, data.task.key(), "vocab=8 length=64")
    assert shown["tokens"] == {"token": [0, 7], "blank": [8, 8], "insert": [9, 9]}
    assert (shown["model_vocab"], shown["input_length"], shown["ceiling"]) == (10, 64, 1.0)
    assert [example["targets"] for example in shown["examples"]] == data.test.targets_NT[:3].tolist()


# MAD's own six come first: its code knows no others.
@pytest.mark.parametrize(
    ("variant", "name"), [*(("paper", name) for name in names()), *(("mad-lab", name) for name in names()[:6])]
)
def test_text_shows_inputs_above_targets(plait: Any, monkeypatch: pytest.MonkeyPatch, variant: str, name: str) -> None:
    make_data = cache(tasks.make_data)
    monkeypatch.setattr(tasks, "make_data", make_data)  # drawn once, for the command and for this test
    ran = plait("task", "show", name, "--variant", variant, "--count", "1", "--set", "train_size=300")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    read = [line[7:] for line in lines if line.startswith("input  ")]
    asked = [line[7:] for line in lines if line.startswith("target ")]
    task = baseline(name).with_settings({"variant": variant, "train_size": "300"})
    targets = make_data(task, 0).test.targets_NT[0]
    assert sum(len(line.split()) for line in read) == task.input_length
    assert sum(len(line.split()) for line in asked) == (targets != IGNORE).sum()
    for kind in task.layout:
        assert f" {kind}, id" in lines[-1]


def test_a_long_sequence_is_cut_short(plait: Any) -> None:
    ran = plait("task", "show", "in-context-recall", "--tokens", "20", "--count", "1", "--split", "train")
    assert "… 108 more tokens" in ran.stdout
    assert sum(len(line.split()) - 1 for line in ran.stdout.splitlines() if line.startswith("input")) == 20


def test_listed(plait: Any) -> None:
    rows = json.loads(plait("list", "tasks", "--json").stdout)
    assert [row["name"] for row in rows] == names()
    assert [row["settings"] for row in rows][:6] == [11, 11, 14, 13, 11, 6]
    assert 0.90 < rows[5]["ceiling"] < 0.93


MISMATCHED = """
from dataclasses import dataclass
from plait.tasks.compression import Compression

@dataclass(frozen=True)
class Mine(Compression):
    name = "mine"

    def answers(self, inputs):
        return list(inputs)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in-context-recal",), "unknown task 'in-context-recal'. Did you mean 'in-context-recall'?"),
        (("nowhere.py",), "there is no file nowhere.py"),
        (("compression", "--set", "length"), "--set length: write key=value"),
        (("compression", "--set", "length="), "--set length=: write key=value"),
        (("compression", "--set", "=64"), "--set =64: write key=value"),
        (("compression", "--set", "lenght=3"), "has no variable 'lenght'. Did you mean 'length'?"),
        (("compression", "--set", "length=x"), "length=x given, but it is a whole number"),
        (("compression", "--variant", "madlab"), "unknown variant 'madlab'. Did you mean 'mad-lab'?"),
        (("compression", "--split", "tst"), "unknown split 'tst'. Did you mean 'test'?"),
        (("mine.py",), "`generate` and `answers` disagree"),
    ],
)
def test_a_mistake_is_one_message(plait: Any, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "mine.py").write_text(MISMATCHED)
    ran = plait("task", "show", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
