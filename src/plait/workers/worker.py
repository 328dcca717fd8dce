"""The worker's side: the state of a process that runs tasks, and how it runs one.

A task's function stores its result itself, so that it can be lost and restarted anywhere. SQLite files are not shared
between machines: a worker on another machine has its own store, whose records are sent back with the result.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.progress import Stopped
from plait.core.registry import load_attribute
from plait.core.user_files import MixerSource, announce_nothing, users_fault
from plait.records import Record, Store, open_store
from plait.records.record import this_machine
from plait.records.store import Busy
from plait.workers.pool import Event, Setup, Task

TELL_SECONDS = 0.2  # between two reports of progress


@dataclass
class Worker:
    """The first argument of a task's function. `kept` is a cache that the tasks of one worker share."""

    store: Store
    say: Callable[[Any], object]
    stop_asked: Callable[[], bool]
    kept: dict[str, Any] = field(default_factory=dict)
    _last: float = 0.0

    def tell(self, detail: Any) -> None:
        """Report progress, at most once per `TELL_SECONDS`."""
        now = time.monotonic()
        if now - self._last > TELL_SECONDS:
            self._last = now
            self.say(detail)

    def stopping(self) -> bool:
        return self.stop_asked()


class WorkerHome:
    """State of a worker process between its tasks. `apart`: it has its own store, not that of the pool."""

    def __init__(self, store: Store, *, apart: bool = False) -> None:
        self.store, self.apart = store, apart
        self.kept: dict[str, Any] = {}

    @classmethod
    def of(cls, setup: Setup) -> WorkerHome:
        """Prepare this process to be a worker."""
        import plait

        announce_nothing()
        if setup.version != plait.__version__:
            raise UserError(f"{platform.node()} has plait {plait.__version__}, and {setup.version} asks: install that.")
        if Path(setup.folder).is_dir():
            os.chdir(setup.folder)
        if setup.threads:
            os.environ["OMP_NUM_THREADS"] = str(setup.threads)
        for module in setup.preload:
            import_module(module)
        if setup.threads and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(setup.threads)
        _register_mixers(setup)
        if not setup.store.startswith("sqlite") or setup.machine == this_machine():
            return cls(open_store(setup.store))
        folder = tempfile.TemporaryDirectory(prefix="plait-")
        home = cls(open_store(f"sqlite:///{folder.name}/plait.db"), apart=True)
        home.kept["folder"] = folder  # kept as long as the process lives
        return home

    def run(self, task: Task, say: Callable[[Any], object], stop_asked: Callable[[], bool]) -> Event:
        """Run a task and return how it ended; raises nothing."""
        worker = Worker(self.store, say, stop_asked, self.kept)
        try:
            result = load_attribute(task.function)(worker, *task.args)
        except Stopped:
            return Event("stopped", task.name, None, self._own_records())  # for the budgets that it had reached
        except Busy:
            return Event("busy", task.name)
        except UserError as wrong:
            return Event("failed", task.name, str(wrong))
        except Exception as wrong:
            if fault := users_fault(wrong):
                return Event("failed", task.name, fault)
            traceback.print_exc()
            what = f"{task.what}: " if task.what else ""
            return Event("failed", task.name, f"{what}{type(wrong).__name__}: {wrong}")
        return Event("done", task.name, result, self._own_records())

    def _own_records(self) -> tuple[Record, ...]:
        """Remove and return the records of its own store, to be sent to the pool."""
        if not self.apart:
            return ()
        records = tuple(self.store.find())
        self.store.delete([record.key for record in records])
        return records


def _register_mixers(setup: Setup) -> None:
    """Register the users' mixers, after checking that their text matches the pool's."""
    if not setup.mixers:
        return
    from plait.model.user_mixers import register_sources

    hashes = tuple(MixerSource(s.file, s.attribute, s.text, s.package).hash for s in setup.mixers)
    if hashes != setup.hashes:
        raise UserError("a mixer's source has changed on its way to a worker; run again.")
    register_sources(setup.mixers)
