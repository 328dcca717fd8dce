"""`plait list`: the tables themselves, so that nothing registered is missing."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from plait.api.listing import TABLES
from plait.mixers import table as arch
from plait.mixers.table import MIXERS
from plait.spec import Header, presets
from plait.tasks.task import TASKS
from plait.training.recipe import OPTIMIZERS


def listed(plait: Any, *arguments: str) -> list[dict[str, Any]]:
    ran = plait("list", *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    rows: list[dict[str, Any]] = json.loads(ran.stdout)
    return rows


def test_mixers(plait: Any) -> None:
    rows = listed(plait, "mixers")
    assert [row["name"] for row in rows] == list(MIXERS)
    for row in rows:
        assert row["kind"] == arch.load(row["name"]).kind
        assert row["what"].endswith(".")  # of two lines of a docstring, only the first was shown
        assert row["options"] == [option["option"] for option in arch.load(row["name"]).describe()]


def test_presets_and_header_keys(plait: Any) -> None:
    assert [row["name"] for row in listed(plait, "presets")] == list(presets.names())
    assert [row["name"] for row in listed(plait, "header")] == [f.name for f in fields(Header)]


def test_without_a_kind_it_says_what_can_be_listed(plait: Any) -> None:
    found = {row["name"]: row["entries"] for row in listed(plait)}
    assert found["mixers"] == len(MIXERS)
    assert found["presets"] == len(list(presets.names()))
    assert found["header"] == len(fields(Header))


def test_names_alone_and_counts_take_no_look_at_the_things(plait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's ceiling takes sequences to find: `plait new task` only asks whether a name is taken."""
    monkeypatch.setattr("plait.tasks.mean_ceiling", None)
    assert plait("list", "tasks", "--names").stdout.split() == list(TASKS)
    assert {row["name"]: row["entries"] for row in listed(plait)}["tasks"] == len(TASKS)
    assert plait("new", "task", "mine.py").returncode == 0


def test_one_mixers_options(plait: Any) -> None:
    rows = {row["option"]: row for row in listed(plait, "attn")}
    assert rows["heads"]["default"] == 8
    assert rows["pos"]["allowed"] == ["rope", "alibi", "none"]


def test_match_narrows(plait: Any) -> None:
    names = [row["name"] for row in listed(plait, "presets", "--match", "PRO")]
    assert names
    assert len(names) < len(list(presets.names()))
    assert all("pro" in name for name in names)
    nothing = plait("list", "presets", "--match", "no such thing")
    assert (nothing.returncode, nothing.stdout) == (0, "nothing matches\n")


@pytest.mark.parametrize("kind", ["mixers", "header", "attn"])
def test_the_table_has_a_row_for_every_entry(plait: Any, kind: str) -> None:
    ran = plait("list", kind)
    assert (ran.returncode, ran.stderr) == (0, "")
    starts = [line.split()[0] for line in ran.stdout.splitlines() if line and not line[0].isspace()]
    assert [row["name"] for row in listed(plait, kind) if row["name"] not in starts] == []


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_is_listed_as_it_stands(plait: Any, kind: str) -> None:
    rows, table = listed(plait, kind), TABLES.load(kind)
    assert [row["name"] for row in rows] == table.names()
    assert all(row["what"] for row in rows)


def test_names_alone_for_scripts(plait: Any) -> None:
    ran = plait("list", "optimizers", "--names")
    assert ran.stdout.split() == OPTIMIZERS.names()
    assert listed(plait, "mixers", "--names") == list(MIXERS)
