"""Two Ray nodes of this machine: a node, PostgreSQL, the head and the driver are killed; the table stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_modules import load_benchmark

from plait.core.errors import UserError
from plait.records import open_store
from plait.workers import ray_cluster
from plait.workers.pool import Place, Pool, Setup


@pytest.mark.slow
def test_everything_killed_once_changes_no_number() -> None:
    pytest.importorskip("ray")
    found = load_benchmark("cluster").faults()
    assert found["same_table"]
    assert found["records"] == found["expected_records"]
    assert found["trainings"] <= found["begun"] <= found["trainings"] + found["in_flight_at_kills"]


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 20.0)
    with (
        open_store(f"sqlite:///{tmp_path}/plait.db") as store,
        pytest.raises(UserError, match=r"--cluster 127\.0\.0\.1:1: no Ray cluster with room answers"),
    ):
        Pool(Place(cluster="127.0.0.1:1"), Setup.of(store), store, local_workers=1)
