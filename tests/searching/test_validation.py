"""Returned models hold the limits when measured, or say that they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plait.algorithms.front import Front
from plait.core.errors import UserError
from plait.device import latency, memory
from plait.device.latency import Timing
from plait.device.measurements import Measurements
from plait.device.memory import Memory
from plait.device.quantities import Setting
from plait.records import Record, open_store
from plait.searching.validation import Validated, measured_row, spread, validate
from plait.space.constraints import Limits

LIMITS = Limits(latency=0.040, memory=300e6)
SPEC = "d=32 vocab=64 | mlp"


def front_of(milliseconds: list[float]) -> Front:
    """The slower the larger, and predicted to within a tenth."""
    rows = [
        {"spec": f"d=32 vocab={64 + at} | mlp", "decoder_params": int(1e6 * ms), "state": 8, "latency": 1e-3 * ms}
        | {"latency_high": 1.1e-3 * ms, "memory": 1e6 * ms, "memory_high": 1.05e6 * ms}
        for at, ms in enumerate(milliseconds)
    ]
    names = {"decoder_params": True, "latency": False, "memory": False}
    objectives = [{"objective": name, "maximise": maximise} for name, maximise in names.items()]
    return Front("small", "lts", objectives, rows, 100, 200, {"seconds": 1.0})


class Bench:
    """Measures `slower` times what was predicted, and remembers what it was asked."""

    def __init__(self, front: Front, slower: Callable[[int], float] = lambda at: 1.0) -> None:
        self.predicted = {row["spec"]: row for row in front.rows}
        self.slower, self.noisy = slower, False
        self.asked: list[tuple[int, bool]] = []

    def __call__(self, spec: str, again: bool) -> Record:
        at = list(self.predicted).index(spec)
        self.asked.append((at, again))
        seconds = self.slower(at) * self.predicted[spec]["latency"]
        timing = {"seconds": seconds, "low": 0.9 * seconds, "high": 1.2 * seconds, "noisy": self.noisy}
        result = {"latency": timing, "memory": {"peak": int(self.predicted[spec]["memory"])}}
        return Record.of("measure", {"protocol": 1, "spec": spec}, result, {"seconds": 2.0})


def specs_of(found: Validated) -> list[int]:
    return [int(row["spec"].split("vocab=")[1].split()[0]) - 64 for row in found.rows]


def test_what_was_predicted_stands_beside_what_was_measured() -> None:
    front = front_of([38, 20, 10])
    found = validate(front, LIMITS, 0, Bench(front, lambda at: 1.02))
    row = found.rows[0]
    assert row["spec"] == front.specs[0]
    assert row["decoder_params"] == 38_000_000
    assert row["latency_ms"] == {
        "predicted": pytest.approx(38),
        "interval": pytest.approx([34.2, 41.8]),
        "measured": pytest.approx(1.02 * 38),
        "measured_interval": pytest.approx([0.9 * 1.02 * 38, 1.2 * 1.02 * 38]),
        "noisy": False,
    }
    assert row["memory_mb"]["measured"] == pytest.approx(38)
    assert row["within"] is True
    assert (found.measured, found.seconds, found.over_limit) == (3, 6.0, [])
    assert not {"latency", "latency_high", "memory", "memory_high"} & row.keys()


def test_a_neighbour_takes_the_place_of_one_above_the_limit() -> None:
    front = front_of([39, 38, 37, 30, 20, 10])
    # All take a tenth more than predicted, so 37 and above break the promise.
    bench = Bench(front, lambda at: 1.1)
    found = validate(front, LIMITS, 2, bench)
    assert [at for at, _ in bench.asked] == [0, 3, 5]  # 38 and 37, wrong by as much, would be too slow as well
    assert specs_of(found) == [3, 5]
    assert all(row["within"] for row in found.rows)
    (out,) = found.over_limit
    assert out["spec"] == front.specs[0]
    assert out["exceeded"] == ["latency 42.9ms, not 40ms"]
    assert found.measured == 3


def test_one_above_the_limit_without_neighbours_is_flagged() -> None:
    front = front_of([39, 38, 37])
    found = validate(front, LIMITS, 1, Bench(front, lambda at: 1.2))
    (row,) = found.rows
    assert row["spec"] == front.specs[0]
    assert row["within"] is False
    assert row["exceeded"] == ["latency 46.8ms, not 40ms"]


def test_neighbours_that_fail_too_are_told() -> None:
    front = front_of([39, 30, 20, 10])
    found = validate(front, LIMITS, 1, Bench(front, lambda at: 1.1 if at == 0 else 5.0))
    assert specs_of(found) == [0]
    assert found.rows[0]["within"] is False
    assert all(row["exceeded"] for row in found.over_limit)
    assert len(found.over_limit) == 1  # 10 ms, wrong by five, is not sure enough to be worth a try


def test_a_noisy_measurement_counts_only_where_it_decides_nothing() -> None:
    front = front_of([39, 10])
    bench = Bench(front, lambda at: 1.1)
    bench.noisy = True
    validate(front, LIMITS, 1, bench)
    assert bench.asked == [(0, False), (0, True), (1, False)]


def test_a_model_that_cannot_be_measured_is_flagged_not_fatal() -> None:
    front = front_of([39, 10])
    bench = Bench(front)

    def failing(spec: str, again: bool) -> Record:
        if spec == front.specs[0]:
            raise UserError("the process that ran it was ended by SIGKILL")
        return bench(spec, again)

    found = validate(front, LIMITS, 0, failing)
    assert [row["within"] for row in found.rows] == [False, True]
    assert "SIGKILL" in found.rows[0]["exceeded"][0]
    assert found.measured == 1


def test_a_row_is_measured_again_only_where_noise_decides() -> None:
    front = front_of([39])
    bench = Bench(front, lambda at: 1.1)
    row, record = measured_row(front.rows[0], LIMITS, bench)
    assert (row["within"], bench.asked) == (False, [(0, False)])
    assert record is not None
    assert row["measurement"] == record.key
    bench.noisy = True

    def fails_again(spec: str, again: bool) -> Record:
        if again:
            raise UserError("no memory left")
        return bench(spec, again)

    row, record = measured_row(front.rows[0], LIMITS, fails_again)
    assert (row["within"], row["exceeded"], row["measurement"], record) == (False, ["no memory left"], None, None)


def test_a_model_just_within_a_limit_is_marked_as_close() -> None:
    front = front_of([39.5, 30])
    rows = validate(front, LIMITS, 0, Bench(front)).rows
    assert [(row["within"], row["close"]) for row in rows] == [(True, ["latency"]), (True, [])]
    near = front_of([38.5, 37.5])
    assert [row["close"] for row in validate(near, LIMITS, 0, Bench(near)).rows] == [["latency"], []]
    rows = validate(front, Limits(latency=0.1, memory=39.6e6), 0, Bench(front)).rows
    assert [row["close"] for row in rows] == [[], []]  # memory is the same in every measurement
    rows = validate(front, LIMITS, 1, Bench(front, lambda at: 1.4)).rows
    assert (rows[0]["within"], rows[0]["close"]) == (False, [])


def test_unmeasured_rows_promise_nothing() -> None:
    front = front_of([39, 20, 10])
    found = validate(front, LIMITS, 2, lambda spec, again: None)
    assert [row["within"] for row in found.rows] == [None, None]
    assert found.rows[0]["latency_ms"]["measured"] is None
    assert found.measured == 0
    assert [row["within"] for row in validate(front, Limits(state=7.0), 1, lambda *_: None).rows] == [False]


def test_representatives_lie_all_over_the_front() -> None:
    steps = np.concatenate([np.linspace(0, 0.2, 50), np.linspace(0.2, 1, 10)])
    scaled = np.stack([steps, 1 - steps], axis=1)
    chosen = spread(scaled, 6)
    assert chosen[:2] == [0, 59]
    gaps = np.diff(np.sort(steps[chosen]))
    assert gaps.max() < 0.3  # though most candidates crowd at one end
    assert len(set(spread(scaled, 60))) == 60
    assert sorted(spread(np.zeros((4, 3)), 9)) == [0, 1, 2, 3]


class FakeMeter:
    def __init__(self) -> None:
        self.used = 0

    def __enter__(self) -> FakeMeter:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def measure(self, arch: object, setting: Setting) -> Memory:
        self.used += 1
        return Memory(peak=10, weights=5, state=2, activations=3)


def test_nothing_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = FakeMeter()
    timing = Timing(0.01, 0.009, 0.011, 0.01, 9, 1.0, 0.0, 0.5, False)
    monkeypatch.setattr(memory, "MemoryMeter", lambda: meter)
    monkeypatch.setattr(latency, "measure_latency", lambda arch, setting: timing)
    setting = Setting(seq=16)
    with open_store(f"sqlite:///{tmp_path}/runs.db") as store, Measurements(store, setting) as known:
        assert known.find(SPEC) is None
        record = known.measure(SPEC)
        assert record.result == {"latency": timing.as_dict(), "memory": meter.measure(None, setting).as_dict()}
        assert known.measure(SPEC) == known.find(SPEC) == record
        assert meter.used == 2
        slower = replace(timing, seconds=0.02)
        monkeypatch.setattr(latency, "measure_latency", lambda arch, setting: slower)
        again = known.measure(SPEC, again=True)
        assert (again.key, meter.used) == (record.key, 3)
        assert known.find(SPEC).result["latency"]["seconds"] == 0.02, "the newer measurement is the one that is kept"
