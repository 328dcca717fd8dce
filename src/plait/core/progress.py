"""Long-running work: memory checks (`require_memory`), progress callbacks (`on_progress`), stopping on a signal between
two steps with everything saved (`stop_signals`), and starting Python child processes (`python_command`), which import
the same modules as this process and nothing from the working folder.

Python puts the working folder first on the import path of `python -c` and `python -m`, so a `numpy.py` there would be
imported instead of numpy. `python_command` sets the child's path to ours; `SAFE` has the same effect on Python 3.11 and
newer.

Ctrl-C in a terminal also reaches children. They ignore it from the start, otherwise each would print a traceback while
importing; this process then stops them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plait.core.errors import UserError

#: Called with what is being done, how much of it is done, and the total (None: unknown).
OnProgress = Callable[[str, float, "float | None"], None]
#: Called with how much is done, and the total; the caller knows what is being done.
OnCount = Callable[[int, int], None]


def ignore(what: str, done: float, total: float | None) -> None:
    """An `OnProgress` that does nothing."""


def silent(done: int, total: int) -> None:
    """An `OnCount` that does nothing."""


def partial_progress(on_progress: OnProgress, what: str, done: int, total: int) -> Callable[[float], None]:
    """A function of the share done of one piece of work, the next after `done` of `total`."""
    return lambda share: on_progress(what, done + share, total)


class Stopped(KeyboardInterrupt):
    """Raised by long-running work that was asked to stop, once everything is saved; `saved` says what. Like Ctrl-C
    itself it is no `Exception`, so that a loop over trainings that goes on after errors ends."""

    def __init__(self, saved: str = "") -> None:
        super().__init__(saved)
        self.saved = saved

    def __str__(self) -> str:
        return f"{self.saved or 'finished work is stored'}; the same call resumes"


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


_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def available_memory() -> int:
    """Bytes that can be allocated now without swapping: the operating system's estimate, or the container's limit if
    that is smaller."""
    available = _meminfo() or _all_memory()
    limits = [int(text) for path in _LIMITS if (text := _text(path).strip()).isdecimal()]
    return min([available, *limits])


def require_memory(needed: float, what: str, then: str = "") -> None:
    """Raise a `UserError` if `needed` bytes are not available. `what` needs them; `then` says what to change."""
    there = available_memory()
    if needed > there:
        raise UserError(f"{what} needs {_size(needed)} of memory; there are {_size(there)}. {then}".rstrip())


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 1e18 else f"{count:.1e} bytes"


def _meminfo() -> int:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _all_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # unknown on this system: refuse nothing
        return 1 << 62


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


SAFE = {"PYTHONSAFEPATH": "1"}
# Only built-in modules may be imported before the path is set, and `signal` is not one.
_PROGRAM = (
    "import _signal, sys; _signal.signal(_signal.SIGINT, _signal.SIG_IGN); "
    "sys.path[:] = {path}; from {module} import {function}; {function}()"
)


def python_command(module: str, function: str) -> list[str]:
    """The command line of a Python process that calls a function of one of our modules."""
    path = json.dumps([entry for entry in sys.path if entry])  # "" is the working folder
    return [sys.executable, "-c", _PROGRAM.format(path=path, module=module, function=function)]
