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

from plait.core.errors import UserError
from plait.probing import worker
from plait.probing.trial import Cell
from plait.probing.worker import Event, Setup

MOST_DEATHS = 3  # of workers in a row without a cell finished between them
STOP_SECONDS = 20.0
TIMED_BY_ALL = 24  # cells that every worker times, for a mean; more than that are shared out

Listener = Callable[[Event], None]
More = Callable[[], Sequence[Cell]]


@dataclass
class _Hand:
    process: BaseProcess
    pipe: Connection


class Crew:
    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup = setup
        self._context = multiprocessing.get_context("spawn")
        self._hands = [self._hire() for _ in range(workers)]

    def time(self, cells: Sequence[Cell], listen: Listener) -> dict[str, float]:
        """Seconds of each cell, measured by all workers at once, since they will also train at once."""
        found: dict[str, list[float]] = {}

        def note(event: Event) -> None:
            found.setdefault(event.key, []).append(event.detail)
            listen(event)

        workers = len(self._hands)
        shared = len(cells) > TIMED_BY_ALL and len(cells) >= workers
        self._order("time", [cells[i::workers] if shared else cells for i in range(workers)], note)
        return {key: sum(seconds) / len(seconds) for key, seconds in found.items()}

    def run(self, cells: Sequence[Cell], listen: Listener, more: More = lambda: ()) -> None:
        """Every cell is recorded when this returns. As soon as a worker finds none to start, it is asked for `more`."""
        self._order("run", [cells] * len(self._hands), listen, more)

    def _order(self, order: str, shares: Sequence[Sequence[Cell]], listen: Listener, more: More = lambda: ()) -> None:
        """Tell every worker what to do with its share of the cells, and listen until all have done it."""
        number = 1  # of orders so far; a worker says which was its last, lest it is asked for more that is on its way
        for hand, share in zip(self._hands, shares, strict=True):
            hand.pipe.send((order, list(share), number))
        busy, deaths = set(range(len(self._hands))), 0
        while busy:
            waiting = {self._hands[i].pipe: i for i in busy} | {self._hands[i].process.sentinel: i for i in busy}
            for ready in wait(list(waiting), timeout=0.25):
                i = waiting[ready]  # type: ignore[index]
                event = self._hear(i) if ready is self._hands[i].pipe else self._last_words(i)
                if event is None:  # it died
                    deaths += 1
                    if deaths > MOST_DEATHS:
                        raise UserError(
                            f"workers keep dying ({deaths} in a row; is there enough memory?). "
                            "What is finished is stored: run again to go on, perhaps with fewer --workers."
                        )
                    self._hands[i] = self._hire()
                    self._hands[i].pipe.send((order, list(shares[i]), number))
                    break  # what `waiting` holds is out of date
                if event.kind == "failed":
                    raise UserError(event.detail)
                if event.kind in ("short", "idle"):
                    if event.detail < number:
                        continue
                    if added := more():
                        number += 1
                        shares = [[*share, *added] for share in shares]
                        busy = set(range(len(self._hands)))
                        for hand in self._hands:
                            with suppress(OSError):  # its successor is told everything
                                hand.pipe.send((order, list(added), number))
                    elif event.kind == "idle":
                        busy.discard(i)
                else:
                    deaths = 0 if event.kind == "done" else deaths
                    listen(event)

    def _hear(self, i: int) -> Event | None:
        try:
            event: Event = self._hands[i].pipe.recv()
        except (EOFError, OSError):
            self._hands[i].process.join(STOP_SECONDS)
            return None
        return event

    def _last_words(self, i: int) -> Event | None:
        """What a worker that has ended said before."""
        return self._hear(i) if self._hands[i].pipe.poll() else None

    def stop(self) -> None:
        """Ask every worker to save and leave; end those that do not."""
        for hand in self._hands:
            with suppress(OSError):  # it may have left already
                hand.pipe.send(("stop", [], 0))
        deadline = time.monotonic() + STOP_SECONDS
        for hand in self._hands:
            while hand.process.is_alive() and time.monotonic() < deadline:
                hand.process.join(0.05)
                with suppress(EOFError, OSError):
                    while hand.pipe.poll():  # a full pipe would keep it from leaving
                        hand.pipe.recv()
            if hand.process.is_alive():
                hand.process.terminate()
            hand.pipe.close()

    def _hire(self) -> _Hand:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=worker.main, args=(theirs, self._setup), daemon=True)
        process.start()
        theirs.close()  # so that its death is the end of the pipe
        return _Hand(process, ours)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
