"""Measurements that first compile: all compile at once, then each is timed while the others wait.

A benchmark gives `together` a function of (job, turn). Whatever it does before `with turn:` happens in parallel with
the other jobs; what is inside runs alone, after all have arrived (or `PATIENCE` is over).
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from gpu_turn import TURN

PATIENCE = 60.0


class Turn:
    def __init__(self, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._all_here, self._one = context.Barrier(jobs), context.Lock()

    def __enter__(self) -> None:
        with suppress(threading.BrokenBarrierError):
            self._all_here.wait(PATIENCE)
        self._one.acquire()
        self._alone = TURN.alone()
        self._alone.__enter__()

    def __exit__(self, *_: object) -> None:
        self._alone.__exit__(None, None, None)
        self._one.release()


def together(work: Callable[[Any, Turn], Any], jobs: Sequence[Any]) -> Iterator[Any]:
    """What `work` returns for every job, as they finish; a job that fails is reported and left out."""
    context = multiprocessing.get_context("spawn")
    turn, found = Turn(len(jobs)), context.Queue()
    processes = [context.Process(target=_run, args=(work, job, turn, found)) for job in jobs]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes) or not found.empty():
        with suppress(queue.Empty):
            yield found.get(timeout=0.5)


def _run(work: Callable[[Any, Turn], Any], job: Any, turn: Turn, found: Any) -> None:
    found.put(work(job, turn))
