"""Long-running work: reporting how far it is (the signature of `on_progress`), and stopping it on a signal, between two
steps and with everything saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: What is being done, how much of it is done, and of how much (None: not known).
OnProgress = Callable[[str, float, "float | None"], None]
#: How much is done, and of how much; the caller knows what is being done.
OnCount = Callable[[int, int], None]


def ignore(what: str, done: float, total: float | None) -> None:
    """An `OnProgress` that does nothing."""


def silent(done: int, total: int) -> None:
    """An `OnCount` that does nothing."""


class Stopped(Exception):
    """Raised by long-running work that was asked to stop, once everything is saved."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and a scheduler's SIGTERM set, to be checked between steps. A second signal raises
    `KeyboardInterrupt` at once."""
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
