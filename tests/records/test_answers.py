"""Answers made of many records: found again under what decides them."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.records import Store, open_store
from plait.records.jobs import keep_answer


def test_an_answer_is_kept_once(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        first = keep_answer(store, "compare", {"trainings": ["a"]}, {"verdict": "x", "took": 9.0}, 0.0, 9.0)
        again = keep_answer(store, "compare", {"trainings": ["a"]}, {"verdict": "x", "took": 0.1}, 50.0, 0.1)
        other = keep_answer(store, "compare", {"trainings": ["b"]}, {"verdict": "y"}, 0.0, 1.0)
        assert first == again != other
        kept = store.get(first)
        assert kept is not None
        assert (kept.result["took"], kept.provenance["seconds"], store.count()) == (9.0, 9.0, 2)


def test_other_code_answers_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        keep_answer(store, "compare", {}, {"verdict": "x"}, 0.0, 1.0)
        monkeypatch.setattr("plait.records.record.code_hash", lambda: "another")
        key = keep_answer(store, "compare", {}, {"verdict": "y"}, 0.0, 1.0)
        found = store.get(key)
        assert found is not None
        assert (found.result["verdict"], store.count()) == ("y", 1)


def test_what_json_cannot_hold_becomes_null(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        key = keep_answer(store, "design", {}, {"loss": float("nan"), "ends": (1.0, float("inf"))}, 0.0, 1.0)
        found = store.get(key)
        assert found is not None
        assert found.result == {"loss": None, "ends": [1.0, None]}


def test_a_store_that_takes_nothing_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, record: object) -> bool:
        raise UserError("the disk is full.")

    monkeypatch.setattr(Store, "put", full)
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        assert keep_answer(store, "compare", {}, {}, 0.0, 1.0) == ""
