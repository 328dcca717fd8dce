"""The latency of a model: inference mode, warmed up, repeated, on a machine that may be shared with other work.

A single-threaded call has two clocks: wall time, and CPU time, which stops while another process has the core. A repeat
in which the two agree is calm, and the latency is the median wall time of the calm repeats. If hardly any repeat is
calm, CPU time is the better estimate of the latency on an idle machine: on two cores under a load of 4.5, 22 medians of
12 repeats of one model spread by 17 % in wall time (their level doubled; quartiles and minima did no better) and by 3 %
in CPU time.

Effects that neither clock sees (a lower frequency, a full cache or memory bus) are detected by a fixed kernel that is
timed before and after every round: a round in which it was slow is repeated, up to a limit. With several threads or on
a GPU the kernel is the only indicator, and the estimate is the lowest of the rounds' medians.

Freed memory is kept for the next call. By default glibc decides this by earlier frees, so that the same model takes 83
or 138 ms in two processes, because the system clears thousands of pages again in every call. Measurements need one
fixed rule.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from plait.analysis.intervals import median_interval
from plait.core.result import Result
from plait.device.quantities import Setting
from plait.device.workload import Workload, threads
from plait.model.architecture import Architecture

Floats = NDArray[np.float64]
Call = Callable[[], object]

CALM = 1.03  # largest ratio of wall time to CPU time in a repeat that was not interrupted
CLOCK_SECONDS = 3e-5  # allowance for reading the clocks and start-up
KERNEL_RUNS = 6  # the first ones run with a cold cache
DRIFT = 1.10  # largest ratio of the kernel's time to its best in a valid round
SPREAD = 0.10  # interquartile range over median, beyond which a result is called noisy
ROUNDS = 2
LIMIT = 6  # most rounds, including disturbed ones
ENOUGH = 0.3  # fraction of repeats that must be calm


@dataclass(frozen=True)
class Timing(Result):
    """The result of one measurement, and how reliable it is.

    low, high   95 % interval of the estimate, from order statistics: of these repeats. The machine's speed may have
                changed by the next measurement, which no repeat of this one shows
    spread      interquartile range of the repeats used, over their median
    calm        share of the repeats that no other process interrupted (of all, where only the wall's clock is there)
    drift       how much slower than its best the calibration kernel was at worst, in the rounds used
    load        the machine's load average afterwards
    noisy       too disturbed to be taken at face value
    """

    seconds: float
    low: float
    high: float
    spread: float
    repeats: int
    calm: float
    drift: float
    load: float
    noisy: bool


@dataclass(frozen=True)
class Round:
    wall: Floats
    own: Floats  # CPU time of the thread; wall time if there is no such clock
    kernel: float  # the slower of the kernel's times before and after


class Stopwatch:
    """Times calls under one setting's device and threads; reuse one for many calls, since it remembers the kernel's
    best time."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._device = torch.device(setting.device)
        self._has_own_clock = setting.on_cpu and setting.threads == 1
        self._left, self._right = (torch.randn(rows, 768, device=self._device) for rows in (128, 768))
        self._best = float("inf")
        self._warm_up()
        if not self._best:  # the thread's clock is coarser than a run, 10 ms on some systems, and useless
            self._has_own_clock, self._best = False, float("inf")
            self._warm_up()

    def time(
        self, call: Call, *, before: Call | None = None, seconds: float = 0.3, least: int = 5, limit: int = LIMIT
    ) -> Timing:
        """Measure for `seconds` and at least `least` repeats; `before` runs untimed before every repeat."""
        with torch.inference_mode():
            for _ in range(2):
                self._once(call, before)
            rounds: list[Round] = []
            while len(rounds) < limit and sum(self._steady(timed) for timed in rounds) < ROUNDS:
                rounds.append(self._round(call, before, seconds / ROUNDS, -(-least // ROUNDS)))
        return self._result(rounds)

    def kernel_seconds(self) -> float:
        """The shortest of a few runs of a fixed matrix product."""
        took = min(self._once(lambda: self._left @ self._right.mT, None)[1] for _ in range(KERNEL_RUNS))
        self._best = min(self._best, took)
        return took

    def _warm_up(self) -> None:
        with torch.inference_mode():
            for _ in range(5):
                self.kernel_seconds()

    def _round(self, call: Call, before: Call | None, seconds: float, least: int) -> Round:
        kernel = self.kernel_seconds()
        taken: list[tuple[float, float]] = []
        end = time.perf_counter() + seconds
        while len(taken) < least or time.perf_counter() < end:
            taken.append(self._once(call, before))
        wall, own = np.array(taken).T
        return Round(wall, own, max(kernel, self.kernel_seconds()))

    def _once(self, call: Call, before: Call | None) -> tuple[float, float]:
        if before is not None:
            before()
        self._wait()
        own, wall = time.thread_time(), time.perf_counter()
        result = call()
        self._wait()
        wall, own = time.perf_counter() - wall, time.thread_time() - own
        del result  # freeing the result is not part of the call
        return wall, own if self._has_own_clock else wall

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def _steady(self, timed: Round) -> bool:
        return timed.kernel <= DRIFT * self._best and _calm(timed).mean() >= ENOUGH

    def _result(self, rounds: list[Round]) -> Timing:
        steady = [timed for timed in rounds if self._steady(timed)]
        used = steady or rounds
        calm = np.concatenate([_calm(timed) for timed in used])
        if not self._has_own_clock:
            used = [min(used, key=lambda timed: float(np.median(timed.wall)))]
        wall, own = (np.concatenate([getattr(timed, name) for timed in used]) for name in ("wall", "own"))
        values = wall[calm] if self._has_own_clock and calm.mean() >= ENOUGH else np.minimum(wall, own)
        middle = float(np.median(values))
        interval = median_interval(values)
        low, high = interval or (middle, middle)
        spread = float(np.subtract(*np.quantile(values, (0.75, 0.25))) / middle)
        return Timing(
            seconds=middle,
            low=low,
            high=high,
            spread=spread,
            repeats=len(values),
            calm=float(calm.mean()),
            drift=max(timed.kernel for timed in used) / self._best - 1,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
            noisy=not steady or spread > SPREAD or interval is None,
        )


def _calm(timed: Round) -> NDArray[np.bool_]:
    return np.asarray(timed.wall <= CALM * timed.own + CLOCK_SECONDS)


#: Parameters of glibc's `mallopt`.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MOST = 1 << 30  # bytes: larger blocks are still returned to the system


def keep_freed_memory() -> None:
    """From now on keep freed memory in the process for the next call, as a long-running server does."""
    with suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_THRESHOLD, MOST)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * MOST - 1)


def give_back() -> None:
    """Return all freed memory to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class LatencyMeter:
    """`measure_latency` as a `plait.device.quantities.Meter`."""

    def __enter__(self) -> LatencyMeter:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def measure(self, arch: Architecture, setting: Setting) -> Timing:
        return measure_latency(arch, setting)


def measure_latency(arch: Architecture, setting: Setting, *, seconds: float = 1.0, least: int = 5) -> Timing:
    """Time of one prefill of `seq` tokens, or of one decoding step after `seq` of them; `least` repeats of it."""
    keep_freed_memory()
    with threads(setting):
        work = Workload(arch, setting)
        return Stopwatch(setting).time(work.run, seconds=seconds, least=least)
