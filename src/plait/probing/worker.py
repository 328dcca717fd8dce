"""What a worker process does with a trial: claim it, train it with checkpoints, and put the result into the store."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from plait.core.errors import UserError
from plait.core.progress import Stopped
from plait.probing.trial import KIND, FleetProgress, Trial, checkpoint_path, result
from plait.records import Record, provenance_of
from plait.records.store import held
from plait.workers.worker import Worker

if TYPE_CHECKING:
    from plait.training.ensemble import Fleet, FleetState

CLAIM_SECONDS = 20.0  # after which the claim of a machine that no longer answers expires
SLICE_SECONDS = 0.5  # how long a fleet trains before the worker checks whether it should stop
TIMED_STEPS = 4


def train_trial(worker: Worker, trial: Trial, checkpoints: str, checkpoint_seconds: float) -> None:
    """Train a trial from its checkpoint on, and store the result."""
    if worker.store.has([trial.key]):
        return
    with held(worker.store, trial.key, f"{trial.candidate} on {trial.task.name}", CLAIM_SECONDS):
        try:
            _train(worker, trial, checkpoint_path(Path(checkpoints), trial.key), checkpoint_seconds)
        except (UserError, Stopped):
            raise
        except Exception as wrong:
            raise UserError(f"{trial.candidate} fails on {trial.task.name}: {type(wrong).__name__}: {wrong}") from wrong
        finally:
            if trial.device != "cpu":
                _release_memory()


def _train(worker: Worker, trial: Trial, path: Path, checkpoint_seconds: float) -> None:
    from plait.training import checkpoint

    started = time.time()
    began = saved_at = time.perf_counter()
    fleet = trial.fleet()
    saved = checkpoint.load_state(path)
    if saved is not None:
        fleet.restore(cast("FleetState", saved))
        began -= fleet.seconds
    width = 1
    while fleet.alive and fleet.step < fleet.plan.steps:
        before = time.perf_counter()
        fleet.run(until=fleet.step + width)
        width = _next_width(width, time.perf_counter() - before)
        worker.tell(_progress(fleet, time.perf_counter() - began))
        stop = worker.stopping()
        if stop or time.perf_counter() - saved_at > checkpoint_seconds:
            checkpoint.save_state(path, fleet.state())
            saved_at = time.perf_counter()
        if stop:
            raise Stopped
    seconds = time.perf_counter() - began  # includes making data and saving, which also count towards the budget
    worker.store.put(Record.of(KIND, trial.config, result(trial, fleet.records), provenance_of(started, seconds)))
    checkpoint.remove_state(path)


def _release_memory() -> None:
    """Free GPU memory for other processes: a fleet and its captured graph refer to each other, so their memory is not
    freed until the garbage collector finds the cycle."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def time_trial(worker: Worker, trial: Trial, most: float) -> float:
    return step_seconds(trial, most)


def _next_width(steps: int, seconds: float) -> int:
    """How many steps take about `SLICE_SECONDS`. (This does not affect results.)"""
    wanted = steps * SLICE_SECONDS / max(seconds, 1e-3)
    return max(1, min(round(wanted), 4 * steps))


def _progress(fleet: Fleet, seconds: float) -> FleetProgress:
    accuracies = [record.validation[-1][1] for record in fleet.records if record.validation]
    return {
        "step": fleet.step,
        "seconds": seconds,
        "alive": len(fleet.alive),
        "accuracy": max(accuracies, default=None),
    }


def step_seconds(trial: Trial, most: float = math.inf) -> float:
    """Seconds per step of a trial's fleet, measured on a few steps after one warm-up step: on a CPU on as many as fit
    into `most` seconds, at least one."""
    t = trial.training
    small = replace(trial.task, train_size=min(trial.task.train_size, 4 * t.batch))
    training = replace(t, evaluation=t.batch, eval_every=t.steps)
    fleet = replace(trial, settings=tuple(small.settings().items()), training=training).fleet()
    began = time.perf_counter()
    fleet.advance(1)
    started = time.perf_counter()
    if trial.device != "cpu":
        import torch

        fleet.advance(TIMED_STEPS)
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / TIMED_STEPS
    steps, now = 0, started
    while steps == 0 or (steps < TIMED_STEPS and now - began < most):
        fleet.advance(1)
        steps, now = steps + 1, time.perf_counter()
    return (now - started) / steps
