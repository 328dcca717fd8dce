"""A PostgreSQL server that restarts is waited for; one that never answered is not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.records import Record, open_store
from plait.records.store import Store


def as_server(folder: str) -> dict[str, Any]:
    owner = os.stat(folder)
    return {} if os.geteuid() else {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}


def test_a_restart_is_waited_for(
    postgresql_url: str, postgresql_server: str, make_record: Callable[..., Record]
) -> None:
    command = (Path(postgresql_server) / "restart").read_text()
    with open_store(postgresql_url) as store:
        store.put(make_record(0))
        # Stopped at once and started a second later, while the store is asked again and again.
        stopping = command.removesuffix("restart") + "stop"
        starting = command.replace("-m fast", "").removesuffix("restart") + "start"
        script = f"{stopping} && sleep 1 && {starting}"
        with open(os.devnull, "w") as nowhere:
            restart = subprocess.Popen(
                ["sh", "-c", script],
                stdout=nowhere,
                stderr=nowhere,
                cwd=postgresql_server,
                **as_server(postgresql_server),
            )
            seed = 0
            while restart.poll() is None:
                seed += 1
                assert store.put(make_record(seed))
                assert store.get(make_record(seed).key) == make_record(seed)
                time.sleep(0.05)
            assert restart.returncode == 0
        assert store.count() == seed + 1


def test_a_server_that_never_answered_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setattr("plait.records.database.RESTART_SECONDS", 1e9)
    with (
        Store(f"postgresql://plait@/nowhere?host={tmp_path}") as store,
        pytest.raises(UserError, match="cannot be used"),
    ):
        store.find()
