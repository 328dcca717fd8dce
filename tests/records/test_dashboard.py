"""The dashboard's list and overview over either kind of store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.records import Record, open_store

pytest.importorskip("starlette")
from plait.serving.pages import Pages
from plait.serving.record_index import RecordIndex


def record(seed: int) -> Record:
    config: dict[str, Any] = {"protocol": 1, "seed": seed}
    about = {"started": "2026-03-04T05:06:07+00:00", "seconds": 1.0}
    return Record.of("train", config, {"spec": "d=8 | attn", "loss": 3.0 - seed}, about)


def test_what_is_listed_and_at_work(url: str, tmp_path: Path) -> None:
    with open_store(url) as store:
        for seed in range(3):
            store.put(record(seed))
        assert store.claim("0" * 32, "a:1:x", 60.0)
        index = RecordIndex(store)
        index.follow()
        found = index.find("train", sort="value", down=False, limit=2)
        assert ([line.value for line in found.lines], found.total) == ([1.0, 2.0], 3)
        page = Pages(store, tmp_path, index).overview()
        assert "1 result being computed by 1 process" in page
        store.delete([record(0).key])
        index._when = -10.0
        assert index.find().total == 2
