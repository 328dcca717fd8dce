"""Legs run side by side in processes of one thread each; every leg that ends is a record at once.

    with Workers(course, store, workers=2, mixers=…) as pool:
        pool.run(legs, on_progress)          # what is stored already is not trained

Stopped by Ctrl-C or a scheduler, the workers save where they are; killed, they have saved within the last half minute,
and so do they when the program that they work for is killed: they notice, save and end.
On a GPU, and with one worker, legs run in this process.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from plait.core.child_process import own_imports
from plait.core.errors import UserError
from plait.core.progress import stop_signals
from plait.core.user_files import announce_nothing
from plait.data import open_corpus
from plait.mixers.options import MixerSource
from plait.model.architecture import Architecture, architecture
from plait.model.user_mixers import adopt
from plait.probing.plan import makespan
from plait.racing.leg import Course, Leg, Stopped
from plait.records import Record, Store, open_store
from plait.training.track import Replica, Text, Track

DIED = (
    "a worker process has died (is there enough memory?). What is finished is stored: run again to go on, perhaps with "
    "fewer --workers."
)
TIMED = 3  # steps, after one that warms up
LOOK = 0.2  # seconds between looks at who is ready
START_SECONDS = 60.0  # that workers wait for each other
#: Training tokens taken so far by a batch of legs, of how many.
OnTokens = Callable[[float, float], object]


@dataclass
class _Here:
    """What a worker process has."""

    text: Text | None = None
    store: Store | None = None
    told: Any = None
    stop: Any = None
    ready: Any = None
    parent: int = 0
    ended: bool = False  # asked to by a scheduler
    busy: bool = False

    @property
    def unwanted(self) -> bool:
        return self.ended or os.getppid() != self.parent


_here = _Here()


def open_text(course: Course) -> Text:
    corpus = open_corpus(course.data, course.tokenizer)
    if corpus.fingerprint != course.fingerprint:
        raise UserError(f"{course.data} has changed while it was being trained on; start again.")
    return Text.of(corpus, course.recipe.seq_len, course.held_out)


def _begin(
    course: Course, store: str, mixers: Sequence[MixerSource], told: Any, stop: Any, ready: Any, parent: int
) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which tells us
    signal.signal(signal.SIGTERM, lambda number, frame: setattr(_here, "ended", True))
    _here.told, _here.stop, _here.ready, _here.parent = told, stop, ready, parent
    threading.Thread(target=_end_when_unwanted, daemon=True).start()
    told.cancel_join_thread()  # what nobody hears any more need not be said
    torch.set_num_threads(1)
    announce_nothing()
    adopt(mixers)
    _here.text, _here.store = open_text(course), open_store(store)


def _end_when_unwanted() -> None:
    """A leg under way is saved first; who waits for one would wait for ever."""
    while not _here.unwanted or _here.busy:
        time.sleep(1.0)
    os._exit(1)


def _wait_for_all() -> None:
    """Until every worker has started, as each takes one of these."""
    with suppress(threading.BrokenBarrierError):
        _here.ready.wait(START_SECONDS)


def _run(place: int, spec: str, given: tuple[Any, ...]) -> None:
    """Architectures travel as text: the classes of users' mixers are this process's own."""
    assert _here.text is not None
    assert _here.store is not None
    course, replicas, budgets, runs, log = given
    _here.busy = True
    try:
        Leg(course, architecture(spec), replicas, budgets, runs).run(
            _here.text,
            _here.store.put,
            on_step=lambda step: _here.told.put((place, step)),
            stopping=lambda: _here.stop.is_set() or _here.unwanted,
            log=log,
        )
    finally:
        _here.busy = False


def _timed(spec: str, course: Course) -> float:
    assert _here.text is not None
    return _step_seconds(architecture(spec), course, _here.text)


def _step_seconds(arch: Architecture, course: Course, text: Text) -> float:
    track = Track(arch, [Replica(course.recipe.lr, 0)], [text], course.recipe, device=course.device)
    track.advance_to(1)
    before = track.seconds
    track.advance_to(1 + TIMED)
    return (track.seconds - before) / TIMED


@dataclass
class Workers:
    course: Course
    store: Store
    workers: int = 1
    mixers: tuple[MixerSource, ...] = ()
    log: tuple[str, ...] = ()  # names of sinks
    #: Seconds per token of specs, where they are known: the legs that take longest begin first.
    speeds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = max(1, self.workers) if self.course.device == "cpu" else 1

    def __enter__(self) -> Workers:
        self._pool: ProcessPoolExecutor | None = None
        self._text: Text | None = None
        self._imports = ExitStack()
        if self.workers > 1:
            self._imports.enter_context(own_imports())  # a pool starts its processes when it is given work
            context = multiprocessing.get_context("spawn")
            self._told, self._stop, ready = context.Queue(), context.Event(), context.Barrier(self.workers)
            given = (self.course, self.store.url, self.mixers, self._told, self._stop, ready, os.getpid())
            self._pool = ProcessPoolExecutor(self.workers, context, initializer=_begin, initargs=given)
        else:
            self._text = open_text(self.course)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._stop.set()
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._imports.close()

    def step_seconds(self, archs: Sequence[Architecture]) -> list[float]:
        """Of one training step of one replica of each, with as many at once as will train at once."""
        if self._pool is None:
            assert self._text is not None
            return [_step_seconds(arch, self.course, self._text) for arch in archs]
        # When all have started, and twice over, so that all are busy whatever the number of architectures.
        waits = [self._pool.submit(_wait_for_all) for _ in range(self.workers)]
        futures = [self._pool.submit(_timed, arch.text, self.course) for arch in [*archs, *archs]]
        try:
            for each in waits:
                each.result()
            found = [future.result() for future in futures]
        except BrokenProcessPool:
            raise UserError(DIED) from None
        return [(one + other) / 2 for one, other in zip(found[: len(archs)], found[len(archs) :], strict=True)]

    def run(self, legs: Iterable[Leg], on_tokens: OnTokens = lambda done, total: None) -> list[list[list[Record]]]:
        """The records of every leg, by budget and replica. Raises `KeyboardInterrupt` when asked to stop, with
        everything saved."""
        legs = list(legs)
        left, seen = {}, set()
        for place, leg in enumerate(legs):
            missing = self._missing(leg)
            if missing is not None and missing.keys not in seen:  # two copies of an architecture are trained once
                seen.add(missing.keys)
                left[place] = missing
        if left:
            meter = _Meter(left, on_tokens)
            with stop_signals() as asked:
                self._in_pool(left, meter, asked) if self._pool else self._in_turn(left, meter, asked)
        return [[[self._found(key) for key in keys] for keys in leg.keys] for leg in legs]

    def _missing(self, leg: Leg) -> Leg | None:
        """What of a leg is not stored yet."""
        stored = self.store.has([key for keys in leg.keys for key in keys])
        budgets = [steps for steps, keys in zip(leg.budgets, leg.keys, strict=True) if not stored.issuperset(keys)]
        return replace(leg, budgets=tuple(budgets)) if budgets else None

    def _found(self, key: str) -> Record:
        record = self.store.get(key)
        assert record is not None, key
        return record

    def _in_turn(self, left: dict[int, Leg], meter: _Meter, asked: threading.Event) -> None:
        assert self._text is not None
        try:
            for place, leg in left.items():
                leg.run(self._text, self.store.put, partial(meter.at, place), asked.is_set, self.log)
        except Stopped:
            raise KeyboardInterrupt from None

    def _in_pool(self, left: dict[int, Leg], meter: _Meter, asked: threading.Event) -> None:
        assert self._pool is not None
        # The longest first: the last to end should not be the one that began last.
        waiting: set[Future[None]] = set()
        for place in sorted(left, key=lambda place: -left[place].tokens * self.speeds.get(left[place].arch.text, 1.0)):
            leg = left[place]
            given = (leg.course, leg.replicas, leg.budgets, leg.runs, self.log)
            waiting.add(self._pool.submit(_run, place, leg.arch.text, given))
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=LOOK, return_when="FIRST_COMPLETED")
                for future in done:
                    future.result()
                meter.hear(self._told)
                if asked.is_set():
                    raise KeyboardInterrupt
        except BrokenProcessPool:
            raise (KeyboardInterrupt if asked.is_set() else UserError(DIED)) from None
        except Stopped:
            raise KeyboardInterrupt from None


def seconds_of_all(legs: Iterable[float], workers: int) -> float:
    """What so long legs take together: the longest are begun first."""
    return makespan(sorted(legs, reverse=True), workers)


class _Meter:
    """Tokens of many legs, told as one number."""

    def __init__(self, legs: dict[int, Leg], on_tokens: OnTokens) -> None:
        self._legs, self._on_tokens = legs, on_tokens
        self._total = float(sum(leg.tokens for leg in legs.values()))
        self._done: dict[int, float] = {}
        self._last = -math.inf

    def at(self, place: int, step: int) -> None:
        self._done[place] = step * self._legs[place].course.tokens_per_step
        if time.perf_counter() - self._last > LOOK:
            self._last = time.perf_counter()
            self._on_tokens(sum(self._done.values()), self._total)

    def hear(self, told: Any) -> None:
        while True:
            try:
                place, step = told.get_nowait()
            except queue.Empty:
                return
            self.at(place, step)
