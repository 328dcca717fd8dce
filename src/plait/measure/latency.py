"""How long a model takes: inference mode, warmed up, repeated; see `plait.measure.stopwatch` for the estimate."""

from __future__ import annotations

from plait.arch import Architecture
from plait.measure.allocator import keep_freed_memory
from plait.measure.setting import Setting
from plait.measure.stopwatch import Stopwatch, Timing
from plait.measure.workload import Workload, threads


def measure_latency(
    arch: Architecture, setting: Setting, *, seconds: float = 1.0, stopwatch: Stopwatch | None = None
) -> Timing:
    """Time of one prefill of `seq` tokens, or of one decoding step after `seq` of them."""
    keep_freed_memory()
    with threads(setting):
        work = Workload(arch, setting)
        return (stopwatch or Stopwatch(setting)).time(work.run, seconds=seconds)
