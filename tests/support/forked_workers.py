"""Worker processes that tests start are forked from one process that has imported torch, which takes milliseconds where
a new Python takes seconds. plait itself always starts new ones; the tests of that ask for the fixture `new_processes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

PRELOADED = ["plait.workers.local_processes", "plait.probing.worker", "plait.racing.workers", "forked_workers"]


class ForkedContext:
    """In place of multiprocessing's context "spawn" in `plait.workers.local_processes`."""

    def __init__(self) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def Pipe(self) -> tuple[Connection, Connection]:
        return self._context.Pipe()

    def Process(self, *, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> BaseProcess:
        return self._context.Process(target=run, args=(dict(os.environ), target, args), daemon=daemon)


def run(environment: dict[str, str], target: Callable[..., None], args: tuple[Any, ...]) -> None:
    """In the child, which has the fork server's environment: it gets its parent's of now, as a new process would."""
    os.environ.clear()
    os.environ.update(environment)
    target(*args)
