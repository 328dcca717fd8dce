"""What is found before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.design.brief import Brief
from plait.design.finding import _measured
from plait.errors import UserError
from plait.measure.setting import Setting
from plait.records import open_store
from plait.search.front import Front
from plait.search.limits import Limits
from plait.search.spaces.table import load_space


def test_a_front_that_mixes_no_tokens_is_refused(tmp_path: Path) -> None:
    limits = Limits.read("20ms", "100MB")
    brief = Brief(load_space("small-hybrid"), Setting(seq=16), limits, "builtin:language", 20, runs=tmp_path)
    rows = [{"spec": "d=64 vocab=256 | mlp mlp", "size": 2}, {"spec": "d=64 vocab=256 | mlp", "size": 1}]
    front = Front("small-hybrid", "nsga2", [{"objective": "size", "maximise": True}], rows, 2, 2, {})
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store, pytest.raises(UserError, match="along the sequence"):
        _measured(brief, front, "size", [], store, lambda *_: None)
