"""Tasks in processes of this machine. Each worker has its own pipe, so that a killed one can neither hold a lock that
others need nor corrupt their messages. A worker that dies is replaced.

On GPUs each worker sees one device. A single worker on the CPU is this process itself (`InProcess`).

`start_process` starts a worker without running the user's script again, which therefore needs no
`if __name__ == "__main__":`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from plait.core.errors import UserError
from plait.core.progress import SAFE
from plait.records import Store
from plait.workers.pool import Backend, Event, OnEvent, Place, Setup, Task
from plait.workers.worker import WorkerHome

STOP_SECONDS = 20.0
START_SECONDS = 120.0
READY = "ready"


class InProcess(Backend):
    """Runs one task after the other in this process."""

    def __init__(self, store: Store) -> None:
        self._home = WorkerHome(store)
        self._waiting: deque[Task] = deque()

    def start(self, task: Task) -> None:
        self._waiting.append(task)

    def poll_events(self, on_event: OnEvent, seconds: float) -> None:
        task = self._waiting.popleft()
        raised: list[Exception] = []

        def say(detail: Any) -> None:
            try:
                on_event(Event("progress", task.name, detail))
            except Exception as wrong:  # raised by the listener, not the task: save and stop
                raised.append(wrong)

        event = self._home.run(task, say, lambda: bool(raised) or self.asked.is_set())
        if raised:
            raise raised[0]
        if event.kind == "stopped":
            self.asked.set()  # the task caught the signal itself
        on_event(event)

    def stop(self, on_event: OnEvent) -> None:
        self._waiting.clear()


@dataclass
class _Process:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None
    ready: bool = False


class LocalProcesses(Backend):
    def __init__(self, setup: Setup, workers: int, place: Place) -> None:
        self._setup, self._place = setup, place
        self.slots = workers
        self._devices = _devices(workers, place)
        self._workers = [self._begin(i) for i in range(workers)]

    def _begin(self, i: int) -> _Process:
        return _Process(*start_process(main, self._setup, self._devices[i]))

    def start(self, task: Task) -> None:
        worker = next(worker for worker in self._workers if worker.task is None)
        worker.task = task
        with suppress(OSError):  # it has died; `poll_events` will notice
            worker.pipe.send(task)

    def poll_events(self, on_event: OnEvent, seconds: float) -> None:
        for ready in wait([worker.pipe for worker in self._workers], timeout=seconds):
            i = next(i for i, worker in enumerate(self._workers) if worker.pipe is ready)
            self._receive(i, on_event)

    def _receive(self, i: int, on_event: OnEvent) -> None:
        worker = self._workers[i]
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):  # it died
            worker.process.join(STOP_SECONDS)
            worker.pipe.close()
            self._workers[i] = self._begin(i)
            if worker.task is not None:
                on_event(Event("lost", worker.task.name))
            elif not worker.ready:
                raise UserError("a worker process has died as it started (is there enough memory?).") from None
            return
        if message == READY:
            worker.ready = True
            return
        if message.kind == "failed" and not message.name:  # it could not start
            raise UserError(message.detail)
        if message.kind != "progress":
            worker.task = None
        on_event(message)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(worker.ready for worker in self._workers) and time.monotonic() < deadline:
            self.poll_events(lambda event: None, 0.2)

    def stop(self, on_event: OnEvent) -> None:
        for worker in self._workers:
            if not worker.ready or (worker.task is not None and not worker.task.keys):
                worker.process.kill()  # it is still importing or only timing: nothing to save
            with suppress(OSError):  # it may have ended already
                worker.pipe.send(None)
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers:
            while worker.process.is_alive() and time.monotonic() < deadline:
                worker.process.join(0.05)
                with suppress(EOFError, OSError):
                    while worker.pipe.poll():  # a full pipe would keep it from ending
                        worker.pipe.recv()
            if worker.process.is_alive():
                worker.process.terminate()
            worker.pipe.close()


def start_process(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A new Python that calls `target(pipe, *arguments)`, and the other end of its pipe. It ends with this process."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    with _safe_imports(), _without_interrupts():
        process.start()
    theirs.close()  # now held only by the child, so its death closes the pipe
    return process, ours


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started in this block ignore Ctrl-C; this process receives it as soon as the block ends."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # if started inside the block, it would unblock interrupts again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _safe_imports() -> Iterator[None]:
    """Processes that `multiprocessing` starts in this block import neither from the working folder nor the main script:
    they only run our modules."""
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


def _devices(workers: int, place: Place) -> list[str | None]:
    """`CUDA_VISIBLE_DEVICES` of each worker, round-robin over the GPUs; None on a CPU."""
    if place.device == "cpu":
        return [None] * workers
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(max(1, torch.cuda.device_count()))]
    return [devices[i % len(devices)] for i in range(workers)]


def main(pipe: Connection, setup: Setup, device: str | None) -> None:
    """The main function of a worker process: runs tasks from the pipe until the parent asks it to stop, a scheduler
    sends SIGTERM, or the parent dies. A training in progress is saved first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then stops us
    left = False

    def leave(number: int, frame: object) -> None:
        nonlocal left
        left = True

    signal.signal(signal.SIGTERM, leave)
    parent = parent_process()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    def stop_asked() -> bool:
        nonlocal left
        # While a task runs, the only possible message is to stop; if the parent is gone, the pipe is closed.
        left = left or pipe.poll() or (parent is not None and not parent.is_alive())
        return left

    def send(event: Event) -> None:
        with suppress(OSError):  # the parent is gone: `stop_asked` will stop the task and save everything
            pipe.send(event)

    try:
        try:
            home = WorkerHome.of(setup)
        except UserError as wrong:
            pipe.send(Event("failed", "", str(wrong)))
            return
        pipe.send(READY)
        while not left:
            if not pipe.poll(1.0):
                left = left or (parent is not None and not parent.is_alive())
                continue
            task = pipe.recv()
            if task is None:
                return
            send(home.run(task, lambda detail, name=task.name: send(Event("progress", name, detail)), stop_asked))  # type: ignore[misc]
    except (EOFError, OSError):  # the parent is gone
        return
