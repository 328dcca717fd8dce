"""What a worker makes of a task that ends in an exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.core.user_files import MODULE
from plait.records import open_store
from plait.workers import worker
from plait.workers.pool import Event, Task
from plait.workers.worker import WorkerHome

RAISES = "def forward(*given):\n    raise ValueError('no such head')\n"


def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> Event:
    """How a task ends whose function is this file's, in a module of this name."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile(RAISES, str(tmp_path / "mine.py"), "exec"), names)
    monkeypatch.setattr(worker, "load_attribute", lambda function: names["forward"])
    with open_store(f"sqlite:///{tmp_path / 'plait.db'}") as store:
        task = Task(name="t", function="mine:forward", args=())
        return WorkerHome(store).run(task, lambda said: None, lambda: False)


def test_a_users_mixer_that_raises_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = ended(tmp_path, monkeypatch, f"{MODULE}mine")
    assert found.kind == "failed"
    assert str(found.detail).endswith("mine.py, line 2, in forward: ValueError: no such head")
    assert "Traceback" not in capfd.readouterr().err


def test_a_fault_of_our_own_leaves_its_stack_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = ended(tmp_path, monkeypatch, "plait.mine")
    assert found.detail == "ValueError: no such head"
    assert "Traceback" in capfd.readouterr().err
