"""The workers together: started, told what to do, replaced when they die, stopped without loss.

Processes are spawned, one torch thread each, each with a pipe of its own: a worker killed at any moment can neither
hold a lock that others need nor spoil their messages.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from plait.core.child_process import own_imports
from plait.core.errors import UserError
from plait.probing.trial import Trial
from plait.probing.worker import Event, Setup, main

MOST_DEATHS = 3  # of workers in a row without a trial finished between them
STOP_SECONDS = 20.0
TIMED_BY_ALL = 24  # trials that every worker times, for a mean; more than that are shared out

Listener = Callable[[Event], None]
More = Callable[[], Sequence[Trial]]


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection


class WorkerPool:
    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup = setup
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._start() for _ in range(workers)]

    def time(self, trials: Sequence[Trial], listen: Listener) -> dict[str, float]:
        """Seconds of each trial, measured by all workers at once, since they will also train at once."""
        found: dict[str, list[float]] = {}

        def note(event: Event) -> None:
            found.setdefault(event.key, []).append(event.detail)
            listen(event)

        workers = len(self._workers)
        shared = len(trials) > TIMED_BY_ALL and len(trials) >= workers
        self._order("time", [trials[i::workers] if shared else trials for i in range(workers)], note)
        return {key: sum(seconds) / len(seconds) for key, seconds in found.items()}

    def run(self, trials: Sequence[Trial], listen: Listener, more: More = lambda: ()) -> None:
        """Every trial is recorded when this returns. A worker that finds none to start is asked for `more`."""
        self._order("run", [trials] * len(self._workers), listen, more)

    def _order(self, order: str, shares: Sequence[Sequence[Trial]], listen: Listener, more: More = lambda: ()) -> None:
        """Tell every worker what to do with its share of the trials, and listen until all have done it."""
        number = 1  # of orders so far; a worker says which was its last, lest it is asked for more that is on its way
        for worker, share in zip(self._workers, shares, strict=True):
            worker.pipe.send((order, list(share), number))
        busy, deaths = set(range(len(self._workers))), 0
        while busy:
            waiting = {self._workers[i].pipe: i for i in busy} | {self._workers[i].process.sentinel: i for i in busy}
            for ready in wait(list(waiting), timeout=0.25):
                i = waiting[ready]  # type: ignore[index]
                event = self._hear(i) if ready is self._workers[i].pipe else self._last_words(i)
                if event is None:  # it died
                    deaths += 1
                    if deaths > MOST_DEATHS:
                        raise UserError(
                            f"workers keep dying ({deaths} in a row; is there enough memory?). "
                            "What is finished is stored: run again to go on, perhaps with fewer --workers."
                        )
                    self._workers[i] = self._start()
                    self._workers[i].pipe.send((order, list(shares[i]), number))
                    break  # what `waiting` holds is out of date
                if event.kind == "failed":
                    raise UserError(event.detail)
                if event.kind in ("short", "idle"):
                    if event.detail < number:
                        continue
                    if added := more():
                        number += 1
                        shares = [[*share, *added] for share in shares]
                        busy = set(range(len(self._workers)))
                        for worker in self._workers:
                            with suppress(OSError):  # its successor is told everything
                                worker.pipe.send((order, list(added), number))
                    elif event.kind == "idle":
                        busy.discard(i)
                else:
                    deaths = 0 if event.kind == "done" else deaths
                    listen(event)

    def _hear(self, i: int) -> Event | None:
        try:
            event: Event = self._workers[i].pipe.recv()
        except (EOFError, OSError):
            self._workers[i].process.join(STOP_SECONDS)
            return None
        return event

    def _last_words(self, i: int) -> Event | None:
        """What a worker that has ended said before."""
        return self._hear(i) if self._workers[i].pipe.poll() else None

    def stop(self) -> None:
        """Ask every worker to save and leave; end those that do not."""
        for worker in self._workers:
            with suppress(OSError):  # it may have left already
                worker.pipe.send(("stop", [], 0))
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers:
            while worker.process.is_alive() and time.monotonic() < deadline:
                worker.process.join(0.05)
                with suppress(EOFError, OSError):
                    while worker.pipe.poll():  # a full pipe would keep it from leaving
                        worker.pipe.recv()
            if worker.process.is_alive():
                worker.process.terminate()
            worker.pipe.close()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=main, args=(theirs, self._setup), daemon=True)
        with own_imports():
            process.start()
        theirs.close()  # so that its death is the end of the pipe
        return _Worker(process, ours)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
