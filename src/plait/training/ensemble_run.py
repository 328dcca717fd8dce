"""Trains a stacked ensemble to its end, saving its state on disk, so that the same call resumes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from plait.core.progress import Stopped
from plait.records import Store
from plait.training.checkpoint import load_state, save_state
from plait.training.ensemble import Fleet, FleetState

SLICE_SECONDS = 0.5  # how long a fleet trains before it is checked whether it should stop


def states_of(store: Store) -> Path:
    """The folder of a store's unfinished fleets: next to its file, or in `runs` if it is on a server."""
    folder = Path("runs") if store.file is None else store.file.parent
    return folder.resolve() / "checkpoints"


def resume(fleet: Fleet, path: Path) -> None:
    """Restore the state at `path`, if there is one."""
    saved = load_state(path)
    if saved is not None:
        fleet.restore(cast("FleetState", saved))


def run_saved(
    fleet: Fleet,
    path: Path,
    report: Callable[[Fleet], object],
    stopping: Callable[[], bool],
    every: float = 10.0,
) -> None:
    """Train to the end. Its state is saved every so many seconds, and before `Stopped` is raised because `stopping`
    returned true; the caller removes it once the result is stored."""
    width, saved_at = 1, time.perf_counter()
    while fleet.alive and fleet.step < fleet.plan.steps:
        before = time.perf_counter()
        fleet.run(until=fleet.step + width)
        width = _next_width(width, time.perf_counter() - before)
        report(fleet)
        stop = stopping()
        if stop or time.perf_counter() - saved_at > every:
            save_state(path, fleet.state())
            saved_at = time.perf_counter()
        if stop:
            raise Stopped


def _next_width(steps: int, seconds: float) -> int:
    """How many steps take about `SLICE_SECONDS`. (This does not affect results.)"""
    wanted = steps * SLICE_SECONDS / max(seconds, 1e-3)
    return max(1, min(round(wanted), 4 * steps))
