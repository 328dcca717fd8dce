"""Long work: how far it is (what a verb's `on_progress` is called with), and being asked to stop (what can be saved is
stopped between its steps, not in the middle of one)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: What is being done, how much of it is done, and of how much (None: not known).
OnProgress = Callable[[str, float, "float | None"], None]
#: How much is done, and of how much: of work that whoever asked for it has a name for.
OnCount = Callable[[int, int], None]


def ignore(what: str, done: float, total: float | None) -> None:
    """Progress that nobody watches."""


def silent(done: int, total: int) -> None:
    """A count that nobody watches."""


class Stopped(Exception):
    """Something long was asked to stop, and everything is saved."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Set by Ctrl-C and by a scheduler's SIGTERM, to be looked at between steps. A second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def stop(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
