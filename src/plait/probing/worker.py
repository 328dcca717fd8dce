"""What a worker process does with a trial: claim it, train it with checkpoints, and put the result into the store."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plait.core.errors import UserError
from plait.core.progress import Stopped
from plait.probing.trial import KIND, FleetProgress, Trial, checkpoint_path, result
from plait.records import Record, provenance_of
from plait.records.store import held
from plait.workers.worker import Worker

if TYPE_CHECKING:
    from plait.training.ensemble import Fleet

CLAIM_SECONDS = 20.0  # after which the claim of a machine that no longer answers expires
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
    from plait.training.checkpoint import remove_state
    from plait.training.ensemble_run import resume, run_saved

    started, began = time.time(), time.perf_counter()
    fleet = trial.fleet()
    resume(fleet, path)
    began -= fleet.seconds

    def report(now: Fleet) -> None:
        worker.tell(_progress(now, time.perf_counter() - began))

    run_saved(fleet, path, report, worker.stopping, checkpoint_seconds)
    seconds = time.perf_counter() - began  # includes making data and saving, which also count towards the budget
    worker.store.put(Record.of(KIND, trial.config, result(trial, fleet.records), provenance_of(started, seconds)))
    remove_state(path)


def _release_memory() -> None:
    """Free GPU memory for other processes: a fleet and its captured graph refer to each other, so their memory is not
    freed until the garbage collector finds the cycle."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def time_trial(worker: Worker, trial: Trial, most: float) -> float:
    return step_seconds(trial, most)


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
