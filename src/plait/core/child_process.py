"""Python processes that plait starts. They import what this one does, and nothing that happens to lie in the working
folder; nor do they run the user's script again, which therefore needs no `if __name__ == "__main__":`.

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
from typing import Any

SAFE = {"PYTHONSAFEPATH": "1"}
# Only built-in modules are imported before the path is set; `signal` itself is none.
_PROGRAM = (
    "import _signal, sys; _signal.signal(_signal.SIGINT, _signal.SIG_IGN); "
    "sys.path[:] = {path}; from {module} import {function}; {function}()"
)


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
