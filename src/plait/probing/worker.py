"""A worker process: one torch thread, trials taken by claim, checkpoints as it goes.

It is told what to do through a pipe (`Order`s) and tells what happens through the same (`Event`s). It leaves when told
to, when its parent has died, and never without having saved what it was training.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.user_files import announce_nothing
from plait.mixers.options import MixerSource
from plait.model.user_mixers import adopt
from plait.probing.trial import KIND, Trial, checkpoint_path, result
from plait.records import Record, Store, open_store, provenance_of

CLAIM_SECONDS = 8.0  # how long the trial of a dead process stays taken
HEARTBEAT_SECONDS = 2.0
SLICE_SECONDS = 0.5  # how long a fleet trains between looks at the pipe
WAIT_SECONDS = 0.2  # before looking again for trials that others may have given up
TIMED_STEPS = 4


@dataclass(frozen=True)
class Setup:
    """What a worker is born with."""

    store: str
    checkpoints: str
    mixers: tuple[MixerSource, ...]  # users' own, to be known by name
    checkpoint_seconds: float  # between two saves of what is training


@dataclass(frozen=True)
class Event:
    """What a worker tells.

    timed      a trial: seconds of a step
    progress   on a trial
    done       a trial has its record, whoever made it
    short      nothing is left to start, only to wait for; the number of the last order
    idle       everything is done; the number of the last order
    failed     and why
    """

    kind: str
    key: str = ""
    detail: Any = None


class _Leave(Exception):
    """Told to stop, or the parent has gone."""


def main(pipe: Connection, setup: Setup) -> None:
    """The life of a worker."""
    announce_nothing()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which tells us
    try:
        _Worker(pipe, setup).serve()
    except (_Leave, EOFError, BrokenPipeError):
        pass
    except UserError as wrong:
        _send(pipe, Event("failed", detail=str(wrong)))
    except Exception as wrong:
        traceback.print_exc()
        _send(pipe, Event("failed", detail=f"{type(wrong).__name__}: {wrong}"))


def _send(pipe: Connection, event: Event) -> None:
    try:
        pipe.send(event)
    except (BrokenPipeError, OSError):
        raise _Leave from None


class _Worker:
    def __init__(self, pipe: Connection, setup: Setup) -> None:
        import torch

        torch.set_num_threads(1)
        adopt(setup.mixers)
        self.pipe, self.setup = pipe, setup
        self.owner = f"{os.getpid()}-{time.time_ns()}"
        self.left: dict[str, Trial] = {}  # by key, without a record so far
        self.order = 0  # the number of the last

    def serve(self) -> None:
        with open_store(self.setup.store) as self.store:
            while True:
                order, trials, self.order = self.pipe.recv()
                if order == "stop":
                    return
                if order == "time":
                    for trial in trials:
                        self.say(Event("timed", trial.key, step_seconds(trial)))
                elif order == "run":
                    self.add(trials)
                    self.run()
                self.say(Event("idle", detail=self.order))

    def say(self, event: Event) -> None:
        _send(self.pipe, event)

    def add(self, trials: Sequence[Trial]) -> None:
        self.left |= {trial.key: trial for trial in trials}

    def run(self) -> None:
        """Go through the trials until each has a record, whoever makes it."""
        while self.left:
            for key in self.store.has(self.left):
                del self.left[key]
                self.say(Event("done", key))
            trial = next((trial for trial in self.left.values() if self.claim(trial)), None)
            if trial is not None:
                with _heartbeat(self.store, self.owner):
                    self.train(trial)
            elif self.left:
                self.say(Event("short", detail=self.order))
                time.sleep(WAIT_SECONDS)
                self.look()

    def claim(self, trial: Trial) -> bool:
        return self.store.claim(trial.key, self.owner, CLAIM_SECONDS)

    def train(self, trial: Trial) -> None:
        """Train a trial from its checkpoint on, and store the result."""
        from plait.training import checkpoint

        path = checkpoint_path(Path(self.setup.checkpoints), trial.key)
        started = time.time()
        began = saved_at = time.perf_counter()
        try:
            fleet = trial.fleet()
            saved = checkpoint.load(path)
            if saved is not None:
                fleet.restore(saved)
                began -= fleet.seconds
            width = 1
            while fleet.alive and fleet.step < fleet.plan.steps:
                before = time.perf_counter()
                fleet.run(until=fleet.step + width)
                width = _next_width(width, time.perf_counter() - before)
                self.say(Event("progress", trial.key, _progress(fleet, time.perf_counter() - began)))
                if time.perf_counter() - saved_at > self.setup.checkpoint_seconds:
                    checkpoint.save(path, fleet.state())
                    saved_at = time.perf_counter()
                self.look(lambda: checkpoint.save(path, fleet.state()))
        except (UserError, _Leave):
            self.store.release(trial.key, self.owner)
            raise
        except Exception as wrong:
            self.store.release(trial.key, self.owner)
            raise UserError(f"{trial.candidate} fails on {trial.task.name}: {type(wrong).__name__}: {wrong}") from wrong
        seconds = time.perf_counter() - began  # making data and saving included: they count in a budget, too
        self.store.put(Record.of(KIND, trial.config, result(trial, fleet.records), provenance_of(started, seconds)))
        checkpoint.remove(path)

    def look(self, save: Callable[[], None] | None = None) -> None:
        """Leave, having saved, if told to or if nobody is there to tell. More trials may come at any time."""
        parent, told = parent_process(), False
        while self.pipe.poll() and not told:
            order, trials, self.order = self.pipe.recv()
            told = order == "stop"
            self.add(trials)
        if told or (parent is not None and not parent.is_alive()):
            if save is not None:
                save()
            raise _Leave


def _next_width(steps: int, seconds: float) -> int:
    """How many steps take about a slice. (How a fleet is sliced does not change what it computes.)"""
    wanted = steps * SLICE_SECONDS / max(seconds, 1e-3)
    return max(1, min(round(wanted), 4 * steps))


def _progress(fleet: Any, seconds: float) -> dict[str, Any]:
    accuracies = [record.validation[-1][1] for record in fleet.records if record.validation]
    return {
        "step": fleet.step,
        "seconds": seconds,
        "alive": len(fleet.alive),
        "accuracy": max(accuracies, default=None),
    }


@contextmanager
def _heartbeat(store: Store, owner: str) -> Iterator[None]:
    """Keep the claims alive meanwhile. If one is lost all the same, two compute the trial, and the first one counts."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_SECONDS):
            with suppress(UserError):  # a store that cannot be written will say so when the result is
                store.heartbeat(owner, CLAIM_SECONDS)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def step_seconds(trial: Trial) -> float:
    """Seconds of one step of a trial's fleet, from a few."""
    t = trial.training
    small = replace(trial.task, train_size=min(trial.task.train_size, 4 * t.batch))
    training = replace(t, evaluation=t.batch, eval_every=t.steps)
    fleet = replace(trial, settings=tuple(small.settings().items()), training=training).fleet()
    fleet.advance(1)
    started = time.perf_counter()
    fleet.advance(TIMED_STEPS)
    if trial.device != "cpu":
        import torch

        torch.cuda.synchronize()
    return (time.perf_counter() - started) / TIMED_STEPS
