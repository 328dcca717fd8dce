"""The protocol in sittings (benchmarks/probe_sittings.py): what moves from one machine to the next goes on there."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from benchmark_modules import load_benchmark

from plait.probing.plan import with_seeds
from plait.probing.protocol import candidates, full
from plait.probing.run import Machine
from plait.probing.trial import checkpoint_path
from plait.records import Record, open_store, provenance_of
from plait.training import checkpoint
from plait.workers.pool import Place


@pytest.fixture
def sittings():
    return load_benchmark("probe_sittings")


def results(work, folder: Path) -> dict[str, object]:
    with open_store(f"sqlite:///{folder / 'plait.db'}") as store:
        found = {trial.key: store.get(trial.key) for trial in work.trials}
        return {key: record.result for key, record in found.items() if record is not None}


@pytest.mark.slow
def test_a_sitting_goes_on_where_another_machine_stopped(sittings, protocol, tmp_path: Path) -> None:
    longer = tuple(replace(s, training=replace(s.training, steps=800, eval_every=400)) for s in protocol.settings)
    protocol = replace(protocol, settings=longer)
    work = with_seeds(candidates(["attn"], protocol, baselines=False, matched=False), protocol, [1, 1], "cpu")
    machine = Machine(Place(workers=1), checkpoint_seconds=0.2)
    here, there, files, whole = (tmp_path / name for name in ("here", "there", "files", "whole"))
    for folder in (here, there, whole):
        folder.mkdir()
    seconds, begun = 2.0, []
    while not begun:  # a worker needs some seconds to start, and a busy machine more
        seconds *= 2
        assert seconds < 100
        assert not sittings.sit(work, here, machine, seconds)
        begun = [t for t in work.trials if checkpoint_path(here / "checkpoints", t.key).exists()]
    state = checkpoint.load_state(checkpoint_path(here / "checkpoints", begun[0].key))
    assert state is not None
    assert 0 < state["step"] < 800
    assert sittings.pack(here, files) == []
    assert {path.name for path in files.iterdir()} == {"sitting.tar.0"}
    sittings.unpack(files, there)
    assert sittings.in_order(work.trials, there)[0] == begun[0]
    assert sittings.sit(work, there, machine, 500)
    assert sittings.sit(work, whole, machine, 500)
    assert results(work, there) == results(work, whole)
    with open_store(f"sqlite:///{there / 'plait.db'}") as store:
        rows = sittings.rows(work, store)
    assert [(row["steps"], row["of"], row["stopped"]) for row in rows] == [(800, 800, ["done"])] * 2


def test_what_has_no_room_is_left_out_the_least_trained_first(sittings, tmp_path: Path) -> None:
    import torch

    here, files, there = tmp_path / "here", tmp_path / "files", tmp_path / "there"
    here.mkdir()
    record = Record.of("probe", {"protocol": 1}, {"accuracy": 0.5}, provenance_of(0.0, 1.0))
    with open_store(f"sqlite:///{here / 'plait.db'}") as store:
        store.put(record)
    for key, seconds in (("short", 5.0), ("long", 50.0)):
        tensors = {"params/x": torch.randn(10 * sittings.MIB // 4)}
        checkpoint.save_state(checkpoint_path(here / "checkpoints", key), {"tensors": tensors, "seconds": seconds})
    assert sittings.pack(here, files, room=16 * sittings.MIB) == ["short: 5 s"]
    with open_store(f"sqlite:///{here / 'plait.db'}"):  # a sitting that runs
        assert sittings.pack(here, files) == []
    assert sorted(path.name for path in files.iterdir()) == ["sitting.tar.0", "sitting.tar.1"]
    assert all(path.stat().st_size <= sittings.PIECE for path in files.iterdir())
    sittings.unpack(files, there)
    with open_store(f"sqlite:///{there / 'plait.db'}") as store:
        assert store.get(record.key) == record
    assert {path.parent.name for path in there.glob("checkpoints/*/fleet.safetensors")} == {"short", "long"}


def test_what_has_a_checkpoint_comes_first_then_one_shape_after_the_other(sittings, tmp_path: Path) -> None:
    protocol = full()
    trials = with_seeds(candidates(["attn"], protocol, baselines=False), protocol, [1] * 66, "cpu").trials
    begun = max(trials, key=lambda trial: trial.task.input_length)
    checkpoint.save_state(checkpoint_path(tmp_path / sittings.CHECKPOINTS, begun.key), {"tensors": {}, "seconds": 1.0})
    assert [t.task.input_length for t in sittings.in_order(trials, tmp_path, longest_first=True)][1] == 1024
    first, *others = sittings.in_order(trials, tmp_path)
    assert first is begun
    lengths = [trial.task.input_length for trial in others]
    assert len(lengths) == 65
    assert lengths == sorted(lengths)
    shapes = [(trial.task.input_length, trial.task.name, trial.task.model_vocab) for trial in others]
    assert len([a for a, b in pairwise(shapes) if a != b]) + 1 == len(set(shapes))
