"""A task: one training (or timing) that runs wherever there is room, and what it is run with.

A task names a function of plait's own, "module:function", which is called with the `Worker` it runs in and with plain
data; architectures travel as text, users' mixers as their source, whose hash is checked where it is run. Its result is
in the store when it ends, so that it can be lost and started again anywhere.

Where the store is a file that the worker's machine does not share (SQLite files are not shared between machines), the
worker has one of its own, and what it has put there travels back with the result.
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
from plait.core.user_files import announce_nothing
from plait.mixers.options import MixerSource
from plait.records import Record, Store, open_store
from plait.records.claims import Busy, this_machine

TELL_SECONDS = 0.2  # between two words on progress
#: What every training imports and takes long to. (torch's optimizers, and the recording of an ensemble's step, import
#: the compiler.)
PRELOAD = ("torch", "torch._dynamo", "sqlalchemy")


@dataclass(frozen=True)
class Task:
    name: str  # the same whenever the same is asked for, and unlike any other's
    function: str  # "module:function", called as function(worker, *args)
    args: tuple[Any, ...] = ()
    keys: tuple[str, ...] = ()  # of the records that it makes; the last ends it
    what: str = ""  # for messages


@dataclass(frozen=True)
class Setup:
    """What every worker is started with."""

    store: str  # URL; it may hold a password
    mixers: tuple[MixerSource, ...] = ()  # users' own, to be known by name
    threads: int = 1  # of torch; 0: as many as torch takes
    folder: str = field(default_factory=os.getcwd)  # what paths are relative to
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
    """What happens to a task.

    progress  how far it is, or whatever its function tells
    done      with what its function returned, and the records that it could not store itself
    busy      another process computes it now
    stopped   it has saved where it was, as it was asked to
    failed    and why: starting it again would not help
    lost      its worker, machine or cluster has gone; it is to be started again
    """

    kind: str
    name: str
    detail: Any = None
    records: tuple[Record, ...] = ()


@dataclass
class Worker:
    """What a task's function is called with. `kept` is what tasks leave for those that come after them, by name."""

    store: Store
    say: Callable[[Any], object]
    stop_asked: Callable[[], bool]
    kept: dict[str, Any] = field(default_factory=dict)
    _last: float = 0.0

    def tell(self, detail: Any) -> None:
        """Not every word: the newest now and then."""
        now = time.monotonic()
        if now - self._last > TELL_SECONDS:
            self._last = now
            self.say(detail)

    def stopping(self) -> bool:
        return self.stop_asked()


class WorkerHome:
    """A process's own: opened once for all tasks that it is given. `apart`: its store is not the asker's."""

    def __init__(self, store: Store, *, apart: bool = False) -> None:
        self.store, self.apart = store, apart
        self.kept: dict[str, Any] = {}

    @classmethod
    def of(cls, setup: Setup) -> WorkerHome:
        """In a process that works for another."""
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
        _adopt(setup)
        if not setup.store.startswith("sqlite") or setup.machine == this_machine():
            return cls(open_store(setup.store))
        folder = tempfile.TemporaryDirectory(prefix="plait-")
        home = cls(open_store(f"sqlite:///{folder.name}/plait.db"), apart=True)
        home.kept["folder"] = folder  # as long as the process
        return home

    def run(self, task: Task, say: Callable[[Any], object], stop_asked: Callable[[], bool]) -> Event:
        """What comes of a task; nothing is raised."""
        worker = Worker(self.store, say, stop_asked, self.kept)
        try:
            found = load_attribute(task.function)(worker, *task.args)
        except Stopped:
            return Event("stopped", task.name, None, self._taken())  # the budgets that it had reached
        except Busy:
            return Event("busy", task.name)
        except UserError as wrong:
            return Event("failed", task.name, str(wrong))
        except Exception as wrong:
            traceback.print_exc()
            what = f"{task.what}: " if task.what else ""
            return Event("failed", task.name, f"{what}{type(wrong).__name__}: {wrong}")
        return Event("done", task.name, found, self._taken())

    def _taken(self) -> tuple[Record, ...]:
        """Records that the asker's store has not."""
        if not self.apart:
            return ()
        records = tuple(self.store.find())
        self.store.delete([record.key for record in records])
        return records


def _adopt(setup: Setup) -> None:
    """The users' mixers, each the very text that the asker has."""
    if not setup.mixers:
        return
    from plait.model.user_mixers import adopt

    found = tuple(MixerSource(s.file, s.attribute, s.text, s.package).hash for s in setup.mixers)
    if found != setup.hashes:
        raise UserError("a mixer's source has changed on its way to a worker; run again.")
    adopt(setup.mixers)
