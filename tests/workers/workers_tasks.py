"""What the tests' workers do: nothing of it trains."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from plait.core.errors import UserError
from plait.core.progress import Stopped
from plait.records import Record
from plait.records.store import held
from plait.workers.pool import Task
from plait.workers.worker import Worker


def record(number: int) -> Record:
    config = {"protocol": 1, "number": number}
    return Record.of("number", config, {"square": number**2}, {"started": "2026-01-02T03:04:05+00:00"})


def asked_once_begun(folder: Path) -> threading.Event:
    """The user's wish to stop, which comes as soon as `wait` has begun in this folder."""
    asked = threading.Event()

    def stop() -> None:
        while not (folder / "begun").exists():
            time.sleep(0.05)
        asked.set()

    threading.Thread(target=stop, daemon=True).start()
    return asked


def square(worker: Worker, number: int, folder: str = "", deaths: int = 0) -> int:
    """Noted in `folder` when it begins; killed so many times before it ends."""
    key = record(number).key
    if worker.store.has([key]):
        return -1
    with held(worker.store, key, str(number), 4.0):
        if folder:
            begun = len(list(Path(folder).glob(f"{number}-*")))
            (Path(folder) / f"{number}-{begun}").touch()
            if begun < deaths:
                os.kill(os.getpid(), signal.SIGKILL)
        worker.tell(number)
        worker.store.put(record(number))
    return number**2


def wait(worker: Worker, folder: str) -> None:
    """Until it is told to stop."""
    (Path(folder) / "begun").touch()
    for _ in range(600):
        worker.tell(0)
        if worker.stopping():
            (Path(folder) / "saved").touch()
            raise Stopped
        time.sleep(0.05)


def wrong(worker: Worker) -> None:
    raise UserError("there is no file x.txt.")


def broken(worker: Worker) -> None:
    raise ZeroDivisionError("by zero")


def seconds(worker: Worker, number: float) -> float:
    return number


def named(worker: Worker, spec: str) -> str:
    from plait.model.architecture import architecture

    return architecture(spec).layers[0].name


def square_task(number: int, folder: str = "", deaths: int = 0) -> Task:
    key = record(number).key
    return Task(key, "workers_tasks:square", (number, folder, deaths), (key,), f"the square of {number}")
