"""Tasks (one training or timing each), the events they cause, and the worker's side that runs them.

A task names one of plait's functions, "module:function", which is called with the `Worker` it runs in and with plain
data. Architectures are sent as text and users' mixers as source, whose hash is checked by the worker. A task stores its
result itself, so that it can be lost and started again anywhere.

SQLite files are not shared between machines: a worker on another machine has a store of its own, and the records that
it has put there are sent back with the result.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.progress import Stopped
from plait.core.registry import load_attribute
from plait.core.user_files import MixerSource, announce_nothing, users_fault
from plait.records import Record, Store, open_store
from plait.records.claims import Busy
from plait.records.record import this_machine

TELL_SECONDS = 0.2  # between two reports of progress
#: Modules that every training needs and that take long to import. (torch's optimizers import the compiler, and so does
#: recording an ensemble's step.)
PRELOAD = ("torch", "torch._dynamo", "sqlalchemy")


@dataclass(frozen=True)
class Task:
    name: str  # unique, and the same whenever the same result is wanted
    function: str  # "module:function", called as function(worker, *args)
    args: tuple[Any, ...] = ()
    keys: tuple[str, ...] = ()  # of the records that it stores, the one that completes it last
    what: str = ""  # for messages


@dataclass(frozen=True)
class Setup:
    """What every worker of a pool is started with."""

    store: str  # URL; it may hold a password
    mixers: tuple[MixerSource, ...] = ()  # users' mixers that specs may name
    threads: int = 1  # of torch; 0: torch's default
    folder: str = field(default_factory=os.getcwd)  # working folder, for relative paths
    machine: str = field(default_factory=this_machine)
    hashes: tuple[str, ...] = ()
    version: str = ""
    preload: tuple[str, ...] = PRELOAD

    @classmethod
    def of(
        cls, store: Store, mixers: Sequence[MixerSource] = (), threads: int = 1, preload: tuple[str, ...] = PRELOAD
    ) -> Setup:
        import plait

        absolute = f"sqlite:///{store.file.resolve()}" if store.file is not None else store.url
        hashes = tuple(source.hash for source in mixers)
        return cls(absolute, tuple(mixers), threads, hashes=hashes, version=plait.__version__, preload=preload)

    @cached_property
    def key(self) -> str:
        plain = [self.store, list(self.hashes), self.threads, self.folder, self.machine, self.version]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Event:
    """What happens to a task; `detail` depends on the kind.

    progress  whatever its function reports
    done      what its function returned; `records` are those that it could not put into our store itself
    busy      another process computes the same now
    stopped   it has saved its state, as it was asked to
    failed    the error message; starting it again would not help
    lost      its worker, machine or cluster is gone; it has to be started again
    """

    kind: str
    name: str
    detail: Any = None
    records: tuple[Record, ...] = ()


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
    """What a worker process keeps between its tasks. `apart`: its store is its own, not that of the pool."""

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
        home.kept["folder"] = folder  # as long as the process
        return home

    def run(self, task: Task, say: Callable[[Any], object], stop_asked: Callable[[], bool]) -> Event:
        """Run a task and return how it ended; raises nothing."""
        worker = Worker(self.store, say, stop_asked, self.kept)
        try:
            found = load_attribute(task.function)(worker, *task.args)
        except Stopped:
            return Event("stopped", task.name, None, self._own_records())  # of the budgets that it had reached
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
        return Event("done", task.name, found, self._own_records())

    def _own_records(self) -> tuple[Record, ...]:
        """Remove and return the records of a store of its own, to be sent to the pool."""
        if not self.apart:
            return ()
        records = tuple(self.store.find())
        self.store.delete([record.key for record in records])
        return records


def _register_mixers(setup: Setup) -> None:
    """Register the users' mixers, after checking that their text is what the pool has."""
    if not setup.mixers:
        return
    from plait.model.user_mixers import register_sources

    found = tuple(MixerSource(s.file, s.attribute, s.text, s.package).hash for s in setup.mixers)
    if found != setup.hashes:
        raise UserError("a mixer's source has changed on its way to a worker; run again.")
    register_sources(setup.mixers)
