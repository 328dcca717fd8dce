"""A pool of workers that run legs in parallel, on this machine or a cluster; every leg is one task.

    with Workers(course, store, Place(workers=2), mixers=…) as pool:
        pool.run(legs, on_progress)          # trains only what the store does not hold

Losses are stored as soon as they are known. On Ctrl-C, on a scheduler's signal, or when their parent process dies, the
workers save their trainings and stop. A worker that is killed loses at most half a minute of training. On a GPU of this
machine, and with a single worker, legs run in this process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plait.core.progress import stop_signals
from plait.core.user_files import MixerSource
from plait.data.corpora import reopen_corpus
from plait.model.architecture import Architecture, architecture
from plait.probing.plan import makespan
from plait.racing.leg import Course, Leg
from plait.racing.screening import screening_text
from plait.records import Record, Store
from plait.records.store import held
from plait.training.track import Replica, Text, Track
from plait.workers.pool import Place, Pool, Setup, Task
from plait.workers.worker import Worker

TIMED = 3  # steps that are timed, after one warm-up step
LOOK = 0.2  # seconds between progress reports
CLAIM_SECONDS = 20.0  # after which another machine may take over the leg of one that died
#: Called with the training tokens done so far and those of all legs.
OnTokens = Callable[[float, float], object]


def open_text(course: Course) -> Text:
    corpus = reopen_corpus(course.data, course.tokenizer, course.fingerprint)
    text = Text.of(corpus, course.recipe.seq_len, course.held_out)
    return screening_text(text, course.screening) if course.screening else text


# ---- what runs in a worker


def run_leg(
    worker: Worker, spec: str, course: Course, replicas: tuple[Replica, ...], budgets: tuple[int, ...], runs: Path,
    log: tuple[str, ...],
) -> None:  # fmt: skip
    """Train one leg in a worker. Architectures are sent as text, because every process loads users' mixers itself."""
    leg = Leg(course, architecture(spec), replicas, budgets, runs)
    keys = [key for keys in leg.keys for key in keys]
    stored = worker.store.has(keys)
    missing = [key for key in keys if key not in stored]
    if not missing:
        return
    with held(worker.store, missing[-1], f"{spec} to {budgets[-1]} steps", CLAIM_SECONDS):
        leg.run(_text(worker, course), worker.store.put, worker.tell, worker.stopping, log)


def time_step(worker: Worker, spec: str, course: Course, most: float) -> float:
    """Seconds per training step of one replica, after one warm-up step: the mean of several steps, or of as many as fit
    into `most` seconds, at least one."""
    track = Track(
        architecture(spec), [Replica(course.recipe.lr, 0)], [_text(worker, course)], course.recipe, device=course.device
    )
    track.advance_to(1)
    first = track.seconds
    track.advance_to(1 + TIMED, most - first)  # one step if no time is left
    return (track.seconds - first) / (track.step - 1)


def _text(worker: Worker, course: Course) -> Text:
    """The text of the course, opened once per process."""
    kept = worker.kept.get("text")
    if kept is None or kept[0] != course:
        kept = worker.kept["text"] = (course, open_text(course))
    text: Text = kept[1]
    return text


# ---- in the parent process


@dataclass
class Workers:
    course: Course
    store: Store
    place: Place = field(default_factory=Place)
    mixers: tuple[MixerSource, ...] = ()
    log: tuple[str, ...] = ()  # names of sinks
    #: Seconds per token by spec, where known, for starting the longest legs first.
    speeds: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Workers:
        setup = Setup.of(self.store, self.mixers)
        self._pool = Pool(self.place, setup, self.store, local_workers=self.place.local_workers())
        self.workers = self._pool.workers
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()

    @property
    def where(self) -> str:
        """Where the workers are, for progress lines; empty on this machine."""
        return self._pool.where

    def step_seconds(
        self, archs: Sequence[Architecture], course: Course | None = None, most: float | None = None
    ) -> list[float]:
        """Seconds per training step of each architecture on this course (default: the pool's), timed with all workers
        busy as in training, for about `most` seconds in total."""
        limit = math.inf if most is None else most * self.workers / self._pool.times(len(archs)) / len(archs)
        tasks = [
            Task(f"time {place}", f"{__name__}:time_step", (arch.text, course or self.course, limit), what=arch.text)
            for place, arch in enumerate(archs)
        ]
        return self._pool.timed(tasks, most=math.inf if most is None else most)

    def run(self, legs: Iterable[Leg], on_tokens: OnTokens = lambda done, total: None) -> list[list[list[Record]]]:
        """Train what is not in the store; returns the records of every leg, by budget and replica. When asked to stop,
        saves everything and raises `Stopped`."""
        legs = list(legs)
        left: dict[str, Leg] = {}
        for leg in legs:
            missing = self._missing(leg)
            if missing is not None:  # two copies of an architecture are trained once
                left[missing.keys[-1][-1]] = missing
        if left:
            meter = _Meter(left, on_tokens)
            # Start the longest legs first, so that no worker is left with a long one at the end.
            order = sorted(left, key=lambda key: -left[key].tokens * self.speeds.get(left[key].arch.text, 1.0))
            with stop_signals() as asked:
                self._pool.run([self._task(left[key]) for key in order], meter.at, asked=asked)
        return [[[self._found(key) for key in keys] for keys in leg.keys] for leg in legs]

    def _task(self, leg: Leg) -> Task:
        args = (leg.arch.text, leg.course, leg.replicas, leg.budgets, leg.runs.resolve(), self.log)
        keys = tuple(key for keys in leg.keys for key in keys)
        return Task(keys[-1], f"{__name__}:run_leg", args, keys, leg.arch.text)

    def _missing(self, leg: Leg) -> Leg | None:
        """The leg with only the budgets that are not stored yet; None if all are."""
        stored = self.store.has([key for keys in leg.keys for key in keys])
        budgets = [steps for steps, keys in zip(leg.budgets, leg.keys, strict=True) if not stored.issuperset(keys)]
        return replace(leg, budgets=tuple(budgets)) if budgets else None

    def _found(self, key: str) -> Record:
        record = self.store.get(key)
        assert record is not None, key
        return record


def seconds_of_all(legs: Iterable[float], workers: int) -> float:
    """Seconds until all legs of these durations are done, if the longest start first."""
    return makespan(sorted(legs, reverse=True), workers)


class _Meter:
    """Adds up the progress of many legs and reports it as one number of tokens."""

    def __init__(self, legs: dict[str, Leg], on_tokens: OnTokens) -> None:
        self._legs, self._on_tokens = legs, on_tokens
        self._total = float(sum(leg.tokens for leg in legs.values()))
        self._done: dict[str, float] = {}
        self._last = -math.inf

    def at(self, key: str, step: Any) -> None:
        # After a branch has decayed, the trunk resumes from the step before the decay.
        self._done[key] = max(self._done.get(key, 0.0), self._legs[key].tokens_at(step))
        if time.perf_counter() - self._last > LOOK:
            self._last = time.perf_counter()
            self._on_tokens(sum(self._done.values()), self._total)
