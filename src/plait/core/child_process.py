"""Python processes that plait starts. They import what this one does, and nothing that happens to lie in the working
folder; nor do they run the user's script again, which therefore needs no `if __name__ == "__main__":`.

Python puts the working folder first on the path of `python -c` and `python -m`, so that a `numpy.py` there would run in
place of numpy. `python_command` sets the path of the child to ours; `start_process` relies on `PYTHONSAFEPATH`, which
Python knows since 3.11.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

SAFE = {"PYTHONSAFEPATH": "1"}
# Only built-in modules are imported before the path is set.
_PROGRAM = "import sys; sys.path[:] = {path}; from {module} import {function}; {function}()"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def python_command(module: str, function: str) -> list[str]:
    """The command line of a Python process that calls a function of one of our modules."""
    path = json.dumps([entry for entry in sys.path if entry])  # "" is the working folder
    return [sys.executable, "-c", _PROGRAM.format(path=path, module=module, function=function)]


def start_process(
    target: Callable[..., None], *arguments: Any, fork_with: Sequence[str] = ()
) -> tuple[BaseProcess, Connection]:
    """A process that calls `target(pipe, *arguments)`, and the other end of its pipe. It ends with this process.

    `fork_with` names modules that take long to import. Where it can be done safely (Linux, Python 3.11), a fork server
    imports them once and all processes are forked from it; elsewhere each process is a new Python. The server has no
    threads, and lives as long as this process: what is started later finds the modules imported.
    """
    fork = bool(fork_with) and sys.platform == "linux" and sys.version_info >= (3, 11)
    context: ForkServerContext | SpawnContext = get_context("forkserver") if fork else get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(target, dict(os.environ), theirs, *arguments), daemon=True)
    with _safe_imports():
        if fork:
            _ensure_fork_server(fork_with)
        process.start()
    theirs.close()  # its only holder is now the process, whose death is the end of the pipe
    return process, ours


def _run(target: Callable[..., None], environment: dict[str, str], pipe: Connection, *arguments: Any) -> None:
    """In the new process, whose environment is that of the fork server: it gets its parent's of now."""
    os.environ.clear()
    os.environ.update(environment)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    target(pipe, *arguments)


def _ensure_fork_server(modules: Sequence[str]) -> None:
    """Start it, if it does not run. A signal to all processes of a terminal or a job must not end it before those that
    it has forked, and numpy must start no threads in it: threads do not survive a fork."""
    forkserver.set_forkserver_preload(list(modules))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # which the server inherits
    try:
        with _environment({"OPENBLAS_NUM_THREADS": "1"}):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


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
    try:
        with _environment(SAFE):
            yield
    finally:
        del main.__spec__
        main.__dict__.update(hidden)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
