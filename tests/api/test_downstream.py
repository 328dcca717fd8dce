"""`plait.harness`: what the store keeps of it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

import plait
from plait.api import downstream
from plait.records import open_store


def test_a_record_says_how_long_the_harness_took(plait_json, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(name="mine", arch=plait.architecture("d=8 vocab=8 | mlp"), model=str, tokenizer=str)
    monkeypatch.setattr(downstream, "run_of", lambda given, root: run)

    def evaluate(*_: object, **__: object) -> dict[str, object]:
        time.sleep(0.2)
        return {"results": {"copa": {}}, "table": [], "shots": {"copa": 0}, "max_length": 64, "lm_eval": "0"}

    monkeypatch.setattr("plait.evals.harness.evaluate", evaluate)
    for _ in range(2):  # the second replaces the first
        plait.harness("mine", "copa.yaml")
    with open_store() as store:
        (record,) = store.find("harness")
    assert 0.2 <= record.provenance["seconds"] < 20
