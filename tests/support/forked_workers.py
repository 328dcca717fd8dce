"""Worker processes that tests start are forked from one process that has imported torch, which takes milliseconds where
a new Python takes seconds. plait itself always starts new ones; the tests of that ask for the fixture `new_processes`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

PRELOADED = ["plait.workers.local_processes", "plait.probing.worker", "plait.racing.workers", "warm_worker"]
T = TypeVar("T")


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


def launch(count: int, folder: Path, target: Callable[..., T], *args: Any) -> T:
    """What `target` returns in the first of so many processes in a folder, of which each knows of the others what
    torchrun would have told it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(count, mp_context=context) as pool:  # none is free for another's work before all are done
        ranks = [{**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        started = [pool.submit(_run_in, folder, rank, target, args) for rank in ranks]
        first, *_ = [each.result() for each in started]
        return first


def _run_in(folder: Path, environment: dict[str, str], target: Callable[..., T], args: tuple[Any, ...]) -> T:
    os.environ.update(environment)
    os.chdir(folder)
    return target(*args)
