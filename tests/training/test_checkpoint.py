"""Checkpoints: whole or not there, exact, and never a program."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from plait.core.errors import UserError
from plait.training import checkpoint
from plait.training.ensemble_plan import Plan, Replica

REPLICAS = [Replica(3e-3, 0.0, 0), Replica(1e-2, 0.1, 1)]


def test_a_fleet_goes_on_from_a_file_exactly(make_fleet, tmp_path):
    plan = Plan(steps=30, batch=16, eval_every=6)
    whole, before, after = (make_fleet(REPLICAS, plan) for _ in range(3))
    whole.run()
    before.run(until=13)
    path = tmp_path / "key" / "fleet.safetensors"
    checkpoint.save_state(path, before.state())
    saved = checkpoint.load_state(path)
    assert saved is not None
    assert all(torch.equal(saved["tensors"][name], value) for name, value in before.state()["tensors"].items())
    after.restore(saved)
    after.run()
    assert whole.records == after.records


def test_numbers_that_are_not_finite_survive(tmp_path):
    path = tmp_path / "fleet.safetensors"
    checkpoint.save_state(path, {"tensors": {"a": torch.tensor([math.nan, 1.0])}, "losses": [[3, math.nan], [4, 0.1]]})
    saved = checkpoint.load_state(path)
    assert saved is not None
    assert math.isnan(saved["losses"][0][1])
    assert saved["losses"][1] == [4, 0.1]
    assert saved["tensors"]["a"].isnan().tolist() == [True, False]


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"not a checkpoint at all", b"\xff" * 4096])
def test_what_cannot_be_read_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "fleet.safetensors"
    assert checkpoint.load_state(path) is None
    path.write_bytes(content)
    assert checkpoint.load_state(path) is None


def test_a_torn_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "fleet.safetensors"
    checkpoint.save_state(path, {"tensors": {"a": torch.ones(100)}, "step": 3})
    path.write_bytes(path.read_bytes()[:-40])
    assert checkpoint.load_state(path) is None


def test_a_failed_save_keeps_the_last_one(tmp_path, monkeypatch):
    path = tmp_path / "key" / "fleet.safetensors"
    checkpoint.save_state(path, {"tensors": {"a": torch.ones(2)}, "step": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    with pytest.raises(UserError, match=r"No space left on device.*run again"):
        checkpoint.save_state(path, {"tensors": {"a": torch.ones(2)}, "step": 2})
    saved = checkpoint.load_state(path)
    assert saved is not None
    assert saved["step"] == 1
    assert [found.name for found in path.parent.iterdir()] == ["fleet.safetensors"]


def test_removing_takes_the_folder_and_leftovers_along(tmp_path):
    path = tmp_path / "key" / "fleet.safetensors"
    checkpoint.save_state(path, {"tensors": {"a": torch.ones(2)}})
    Path(path.parent / ".fleet.safetensors.left").write_text("of a killed process")
    checkpoint.remove_state(path)
    assert not path.parent.exists()
    checkpoint.remove_state(path)  # nothing there


def test_a_checkpoint_is_as_readable_as_any_other_file(tmp_path):
    checkpoint.save_state(tmp_path / "fleet.safetensors", {"tensors": {"a": torch.ones(2)}})
    (tmp_path / "other").touch()
    assert (tmp_path / "fleet.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
