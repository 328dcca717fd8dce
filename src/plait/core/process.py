"""The memory that is left for this process (`require_memory`), and processes that it starts.

These import what this one does, and nothing that happens to lie in the working folder; nor do they run the user's
script again, which therefore needs no `if __name__ == "__main__":`.

Python puts the working folder first on the path of `python -c` and `python -m`, so that a `numpy.py` there would run in
place of numpy. `python_command` sets the path of the child to ours; `start_process` relies on `PYTHONSAFEPATH`, which
Python knows since 3.11.

Ctrl-C in a terminal reaches children as well. They leave it to this process, which then ends them, from their first
moment on: while they import, they would print a traceback each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from plait.core.errors import UserError

SAFE = {"PYTHONSAFEPATH": "1"}
# Only built-in modules are imported before the path is set; `signal` itself is none.
_PROGRAM = (
    "import _signal, sys; _signal.signal(_signal.SIGINT, _signal.SIG_IGN); "
    "sys.path[:] = {path}; from {module} import {function}; {function}()"
)
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def available_memory() -> int:
    """Bytes that can be allocated now without swapping: the operating system's estimate, or the container's limit where
    that is smaller."""
    found = _meminfo() or _all_memory()
    limits = [int(text) for path in _LIMITS if (text := _text(path).strip()).isdecimal()]
    return min([found, *limits])


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
    except (ValueError, OSError, AttributeError):  # unknown here: refuse nothing
        return 1 << 62


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


# ---- processes that this one starts


def python_command(module: str, function: str) -> list[str]:
    """The command line of a Python process that calls a function of one of our modules."""
    path = json.dumps([entry for entry in sys.path if entry])  # "" is the working folder
    return [sys.executable, "-c", _PROGRAM.format(path=path, module=module, function=function)]


def start_process(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A new Python that calls `target(pipe, *arguments)`, and the other end of its pipe. It ends with this process."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    with _safe_imports(), _without_interrupts():
        process.start()
    theirs.close()  # its only holder is now the process, whose death is the end of the pipe
    return process, ours


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started meanwhile are not interrupted by Ctrl-C; this one is, as soon as the block ends."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started inside the block, it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _safe_imports() -> Iterator[None]:
    """Processes that `multiprocessing` starts meanwhile import neither from the working folder nor the main script:
    what they run is in our modules."""
    main = sys.modules["__main__"]
    hidden: dict[str, object] = {}
    for name in ("__file__", "__spec__"):
        if name in main.__dict__:
            hidden[name] = main.__dict__.pop(name)
    main.__spec__ = None
    before = {name: os.environ.get(name) for name in SAFE}
    os.environ.update(SAFE)
    try:
        yield
    finally:
        del main.__spec__
        main.__dict__.update(hidden)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
