"""The estimate of a time, on a machine whose clocks and neighbours are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from plait.device import latency as stopwatch
from plait.device.latency import Stopwatch
from plait.device.quantities import Setting

TRUE = 0.010


class Machine:
    """Two clocks that stand still unless something runs."""

    def __init__(self) -> None:
        self.wall = self.own = 0.0

    def work(self, seconds: float, stolen: float = 0.0) -> None:
        self.own += seconds
        self.wall += seconds + stolen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: made.wall)
    monkeypatch.setattr(stopwatch.time, "thread_time", lambda: made.own)
    return made


def watch(machine: Machine, kernel: Iterator[float] | None = None, threads: int = 1) -> Stopwatch:
    """A stopwatch whose kernel takes what it is told, 1 ms unless told otherwise."""

    class Told(Stopwatch):
        def kernel_seconds(self) -> float:
            took = next(kernel, 0.001) if kernel else 0.001
            self._best = min(self._best, took)
            return took

    return Told(Setting(threads=threads))


def repeats(*stolen: float) -> Iterator[float]:
    while True:
        yield from stolen


def call(machine: Machine, stolen: Iterator[float]) -> Callable[[], None]:
    return lambda: machine.work(TRUE, next(stolen))


def test_a_quiet_machine(machine: Machine) -> None:
    timing = watch(machine).time(call(machine, repeats(0.0)))
    assert timing.seconds == pytest.approx(TRUE)
    assert (timing.low, timing.high) == pytest.approx((TRUE, TRUE))
    assert (timing.calm, timing.noisy) == (1.0, False)
    assert timing.repeats >= 5


def test_interrupted_repeats_do_not_count(machine: Machine) -> None:
    timing = watch(machine).time(call(machine, repeats(0.0, 0.02, 0.0, 0.05)))
    assert timing.seconds == pytest.approx(TRUE)
    assert timing.calm == pytest.approx(0.5, abs=0.1)
    assert not timing.noisy


def test_where_every_repeat_is_interrupted_the_thread_knows_its_own_time(machine: Machine) -> None:
    timing = watch(machine).time(call(machine, repeats(0.02, 0.01)))
    assert timing.seconds == pytest.approx(TRUE)
    assert timing.calm == 0
    assert timing.noisy


def test_without_a_clock_of_its_own_the_quietest_round_counts(machine: Machine) -> None:
    slow_first = iter([0.02] * 9 + [0.0] * 1000)
    timing = watch(machine, threads=2).time(call(machine, slow_first))
    assert timing.seconds == pytest.approx(TRUE)


def test_a_round_at_a_lower_frequency_is_measured_again(machine: Machine) -> None:
    kernel = iter([0.001] * 5 + [0.0015] * 4)  # five at the start, then two disturbed rounds
    asked = []
    timing = watch(machine, kernel).time(lambda: (asked.append(0), machine.work(TRUE)), seconds=0.1)
    assert timing.drift == pytest.approx(0)
    assert not timing.noisy
    assert len(asked) > 2 + 2 * 5  # warm-up and two rounds would not have been enough


def test_a_machine_that_never_settles_is_called_noisy(machine: Machine) -> None:
    kernel = iter([0.001] * 5 + [0.0015] * 100)
    timing = watch(machine, kernel).time(call(machine, repeats(0.0)))
    assert timing.noisy
    assert timing.drift == pytest.approx(0.5)


def test_what_runs_before_is_not_timed(machine: Machine) -> None:
    timing = watch(machine).time(call(machine, repeats(0.0)), before=lambda: machine.work(0.5))
    assert timing.seconds == pytest.approx(TRUE)


def test_a_clock_too_coarse_to_see_a_call_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch.time, "thread_time", lambda: 0.0)  # moves every 10 ms at best
    timing = Stopwatch(Setting()).time(lambda: sum(range(2000)), seconds=0.02)
    assert timing.seconds > 0
    assert 0 <= timing.drift < float("inf")
