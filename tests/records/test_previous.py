"""A store that an earlier plait wrote (`previous_store.sql`: a search and a training, keys and fields of that time)
is read as it is: listed, shown, chosen from."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.main import app
from plait.model.cost import model_cost
from plait.records import open_store

SEARCH, TRAINING = "a9d97f17e011b1abedd0041b2de0f191", "5623af95386638bd4e17ed3b346f00ac"


@pytest.fixture
def previous(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "previous.db") as connection:
        connection.executescript((Path(__file__).parent / "previous_store.sql").read_text(encoding="utf-8"))
    connection.close()
    return f"sqlite:///{tmp_path}/previous.db"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return done.output


def test_its_records_are_all_there(previous: str) -> None:
    with open_store(previous) as store:
        assert store.kinds() == {"search": 1, "train": 1}
        training = store.get(TRAINING)
        assert training is not None
        assert training.result["steps"] == 2
        assert training.config["recipe"]["undecayed"] == []  # as it was written then


@pytest.mark.parametrize("key", [SEARCH, TRAINING])
def test_they_are_listed_and_shown(previous: str, key: str) -> None:
    assert key[:10] in run("runs", "list", "--store", previous)
    assert key in run("runs", "show", key[:10], "--store", previous)


def test_an_architecture_is_picked_from_its_front(previous: str) -> None:
    assert "small-hybrid by random: 4 candidates compared" in run("front", "show", "--store", previous)
    picked = run("front", "pick", SEARCH[:10], "--store", previous).strip().splitlines()[-1]
    with open_store(previous) as store:
        record = store.get(SEARCH)
    assert record is not None
    stated = {row["spec"]: row["decoder_params"] for row in record.result["front"]}
    assert stated[picked] == max(stated.values()) == model_cost(picked).decoder_params
