"""The stages before any training: profile and search."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from plait.algorithms.front import Front
from plait.core.errors import UserError
from plait.designing import finding
from plait.designing.config import Clock, DesignConfig
from plait.designing.finding import SearchFindings, _measured
from plait.device import latency, memory
from plait.device.latency import Timing
from plait.device.memory import Memory
from plait.device.quantities import Setting
from plait.model.architecture import Architecture
from plait.records import open_store
from plait.space.constraints import Limits
from plait.space.table import load_space


def test_a_front_that_mixes_no_tokens_is_refused(tmp_path: Path) -> None:
    limits = Limits.read(latency="20ms", memory="100MB")
    config = DesignConfig(load_space("small-hybrid"), Setting(seq=16), limits, "builtin:language", 20, runs=tmp_path)
    rows = [{"spec": "d=64 vocab=256 | mlp mlp", "size": 2}, {"spec": "d=64 vocab=256 | mlp", "size": 1}]
    front = Front("small-hybrid", "nsga2", [{"objective": "size", "maximise": True}], rows, 2, 2, {})
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store, pytest.raises(UserError, match="along the sequence"):
        _measured(config, front, "size", [], Clock(config, store, time.perf_counter()), lambda *_: None)


class Machine:
    """Stands for measuring: every model takes 1 ms and 1 MB, but those of a width in `too_wide` end the process."""

    def __init__(self, too_wide: set[int]) -> None:
        self.too_wide = too_wide

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        if arch.header.d in self.too_wide:
            raise UserError(f"the memory of d={arch.header.d} was not measured: ended by SIGKILL.")
        return Memory(1_000_000, 0, 0, 0)


def measured_on(machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A front of one composition, gla, in two sizes, and a Transformer."""
    monkeypatch.setattr(memory, "MemoryMeter", lambda: machine)
    timing = Timing(1e-3, 1e-3, 1e-3, 0.01, 9, 1.0, 0.0, 0.5, False)
    monkeypatch.setattr(latency, "measure_latency", lambda arch, setting: timing)
    predicted = {"latency": 1e-3, "latency_high": 1e-3, "memory": 1e6, "memory_high": 1e6}
    large, small, plain = (
        {"spec": f"d={d} vocab=256 | {mixer}[heads=2] mlp", "size": d} | predicted
        for d, mixer in ((128, "gla"), (64, "gla"), (96, "attn"))
    )
    limits = Limits.read(latency="20ms", memory="100MB")
    config = DesignConfig(load_space("small-hybrid"), Setting(seq=16), limits, "builtin:language", 20, runs=folder)
    front = Front("small-hybrid", "nsga2", [{"objective": "size", "maximise": True}], [large, small], 2, 2, {})
    with open_store(f"sqlite:///{folder}/plait.db") as store:
        return _measured(config, front, "size", [plain], Clock(config, store, time.perf_counter()), lambda *_: None)


def test_a_model_too_large_to_measure_gives_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, few, plain = measured_on(Machine({128}), tmp_path, monkeypatch)
    assert [row["size"] for row in few] == [64]
    assert plain["size"] == 96
    assert [row["within"] for row in measured.rows] == [False, True]


@pytest.mark.parametrize(
    ("too_wide", "said"),
    [
        ({128, 64}, "no model is left: of 2 that .* 2 could not be measured. The first: the memory of d=128 was not"),
        ({96}, "no plain Transformer is left: of 1 that .* 1 could not be measured. The first: .*SIGKILL. Where"),
    ],
)
def test_none_that_could_be_measured(
    too_wide: set[int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=said):
        measured_on(Machine(too_wide), tmp_path, monkeypatch)


def test_candidates_come_largest_first_and_once_per_pattern() -> None:
    rows = [
        {"spec": f"d={d} vocab=16 | {mixer}[heads=2] swiglu", "decoder_params": size}
        for mixer, d, size in (("gla", 16, 10), ("attn", 16, 30), ("fox", 16, 20), ("gla", 32, 40))
    ]
    plain = {"spec": "d=64 vocab=16 | attn[heads=2] swiglu", "decoder_params": 35}
    nothing: Any = None
    found = SearchFindings(nothing, nothing, "decoder_params", [], nothing, rows, plain).candidates()
    assert [(name, row["decoder_params"]) for name, row in found.items()] == [
        ("gla", 40), ("attn", 35), ("fox", 20),
    ]  # fmt: skip


def test_transformers_obey_the_users_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def search(name: str, request: Any, *_: Any) -> Any:
        asked.append(request)
        raise UserError("none")

    monkeypatch.setattr(finding, "_search", search)
    nothing: Any = None
    config = DesignConfig(
        load_space("small-hybrid"), Setting(seq=64), Limits(), "builtin:language", 600, constraints=("layers <= 3",)
    )
    clock = Clock(config, nothing, 0.0)
    assert finding._transformers(config, ["decoder_params", "flops"], nothing, clock) == []
    assert list(asked[0].constraints) == ["layers <= 3", "count(attn) == 1 * layers"]
