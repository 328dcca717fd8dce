"""The worker pool: hands tasks to a backend (local processes, Ray, Slurm) until each has its result.

A task whose worker, machine or cluster is lost is started again, a bounded number of times. If another process computes
a task, the pool waits for it, and takes it over if that process dies. The pool itself stores nothing: a command that is
killed and started again runs what is missing in the store.

A task names one of plait's functions, "module:function", which is called with the `Worker` it runs in and with plain
data. Architectures are sent as text and users' mixers as source, whose hash is checked by the worker.

`Place` describes where trainings run:

| `--cluster` | where |
|---|---|
| (none) | processes of this machine |
| `ray://HOST:PORT` | a Ray cluster, reached through its client server |
| `auto`, `HOST:PORT` | the Ray cluster that this machine belongs to |
| `slurm`, `slurm:partition=gpu,account=me` | Slurm, a job per training, by submitit |
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from plait.core.errors import UserError
from plait.core.progress import Stopped
from plait.core.user_files import MixerSource
from plait.records import Record, Store
from plait.records.record import cores, this_machine
from plait.records.store import is_open

INSTALL = "pip install 'plait[cluster]'"


#: Modules that every training needs and that take long to import. (torch's optimizers import the compiler, and so does
#: recording an ensemble's step.)
PRELOAD = ("torch", "torch._dynamo", "sqlalchemy")


@dataclass(frozen=True)
class Task:
    name: str  # unique, and always the same for the same result
    function: str  # "module:function", called as function(worker, *args)
    args: tuple[Any, ...] = ()
    keys: tuple[str, ...] = ()  # keys of the records that it stores, the one that completes it last
    what: str = ""  # for messages


@dataclass(frozen=True)
class Setup:
    """What every worker of a pool is started with."""

    store: str  # URL; it may contain a password
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
    done      what its function returned; `records` are those that it could not store in our store itself
    busy      another process is computing the same
    stopped   it has saved its state, as requested
    failed    the error message; a restart would not help
    lost      its worker, machine or cluster is gone; it has to be restarted
    """

    kind: str
    name: str
    detail: Any = None
    records: tuple[Record, ...] = ()


OnEvent = Callable[[Event], object]


class Backend(ABC):
    """Runs tasks. The pool starts as many as there are slots and polls for their events."""

    #: How many tasks run at once; on a cluster, this changes with its machines.
    slots: int = 1
    #: For the display: "2 nodes". Empty: this machine.
    where: str = ""
    #: Set by the pool's caller: save everything and stop.
    asked: threading.Event = threading.Event()

    @abstractmethod
    def start(self, task: Task) -> None: ...

    @abstractmethod
    def poll_events(self, on_event: OnEvent, seconds: float) -> None:
        """Call `on_event` for all events within so many seconds."""

    @abstractmethod
    def stop(self, on_event: OnEvent) -> None:
        """Ask running tasks to save and stop, end those that do not, and shut down. Their last events are passed to
        `on_event`."""

    def wait_ready(self) -> None:  # noqa: B027 (most backends need not)
        """Wait until all slots could start a task at once."""


@dataclass(frozen=True)
class Place:
    """Where trainings run and how many GPUs each uses. `workers`: how many at once; None: as many as fit."""

    cluster: str = ""
    workers: int | None = None
    device: str = "cpu"
    gpus_per_training: float | None = None  # on a GPU; None: a whole one

    @classmethod
    def of(
        cls,
        cluster: str,
        workers: int | None,
        device: str,
        gpus_per_training: float | None,
        usual: int | None = None,
    ) -> Place:
        """From the user's options. Without `workers`: on a cluster as many at once as it has room for, on this machine
        the `usual` number, or one per core."""
        here = None if cluster else usual or cores()
        return cls(cluster, workers or here, device, gpus_per_training)

    def __post_init__(self) -> None:
        share = self.gpus_per_training
        if share is not None and (share <= 0 or (share > 1 and share != int(share))):
            raise UserError(f"--gpus-per-training {share:g}: a fraction such as 0.25, or whole GPUs.")
        if share is not None and self.device == "cpu":
            raise UserError("--gpus-per-training: needs --device cuda.")
        kind = self.kind
        package = {"ray": "ray", "slurm": "submitit"}.get(kind)
        if package and find_spec(package) is None:
            raise UserError(f"--cluster {self.cluster} needs the package {package}: {INSTALL}.")

    @property
    def kind(self) -> str:
        """local, ray or slurm."""
        if not self.cluster:
            return "local"
        if self.cluster == "slurm" or self.cluster.startswith("slurm:"):
            return "slurm"
        host, _, port = self.cluster.removeprefix("ray://").rpartition(":")
        if self.cluster == "auto" or (host and port.isdecimal()):
            return "ray"
        raise UserError(f"--cluster {self.cluster}: known: ray://HOST:PORT, auto, slurm.")

    @property
    def gpus(self) -> float:
        """GPUs per training."""
        return 0.0 if self.device == "cpu" else self.gpus_per_training or 1.0

    def local_workers(self) -> int:
        """How many processes of this machine to start if there is no cluster. On CPUs: `workers`, by default one. On
        GPUs: one, unless trainings share GPUs."""
        if self.device == "cpu":
            return self.workers or 1
        if self.gpus_per_training is None:
            return 1
        import torch

        room = max(1, int(torch.cuda.device_count() / self.gpus))
        return min(self.workers or room, room)

    def backend(self, setup: Setup, store: Store, *, local_workers: int, apart: bool = False) -> Backend:
        """The backend of this place. `local_workers` is the number of processes if there is no cluster; a single worker
        runs in this process unless `apart`."""
        if self.kind == "ray":
            from plait.workers.ray_cluster import RayCluster

            return RayCluster(self, setup)
        if self.kind == "slurm":
            from plait.workers.slurm_jobs import SlurmJobs

            return SlurmJobs(self, setup)
        from plait.workers.local_processes import InProcess, LocalProcesses

        return LocalProcesses(setup, local_workers, self) if local_workers > 1 or apart else InProcess(store)


ATTEMPTS = 5  # of a task whose worker is lost
LISTEN_SECONDS = 0.2
WAIT_SECONDS = 1.0  # between checks of what other processes compute
MOST_TIMED = 24  # most tasks that are timed several times, for a mean
TIMED_TIMES = 4

#: Called with a task's name and what it reports.
OnProgress = Callable[[str, Any], object]
#: Called with the name of a task whose result is stored, by whichever process.
OnDone = Callable[[str], object]
More = Callable[[], Sequence[Task]]


class Pool:
    """Workers at this place. `local_workers` is the number of processes if there is no cluster; a single worker runs in
    this process unless `apart`."""

    def __init__(self, place: Place, setup: Setup, store: Store, *, local_workers: int, apart: bool = False) -> None:
        self._store = store
        self._backend: Backend = place.backend(setup, store, local_workers=local_workers, apart=apart)
        self._most = place.workers if place.cluster else None

    @property
    def workers(self) -> int:
        return max(1, self._room)

    @property
    def _room(self) -> int:
        """How many tasks may run at once: 0 while a cluster cannot be reached."""
        return min(self._backend.slots, self._most or self._backend.slots)

    @property
    def where(self) -> str:
        """For a display; empty on this machine."""
        return self._backend.where

    def run(
        self,
        tasks: Iterable[Task],
        on_progress: OnProgress = lambda name, detail: None,
        on_done: OnDone = lambda name: None,
        more: More = lambda: (),
        asked: threading.Event | None = None,
        wait_for_others: bool = True,
    ) -> dict[str, Any]:
        """Run the tasks and return what they returned, by name. When a worker is idle, `more` may return further tasks.
        With `wait_for_others`, tasks that other processes compute are waited for; otherwise they are missing from the
        result. When `asked` is set, everything is saved and `Stopped` raised."""
        work = _Work(tasks)
        asked = self._backend.asked = asked or threading.Event()

        def on_event(event: Event) -> None:
            task = work.running.get(event.name)
            if task is None:  # a late event of a lost task
                return
            if event.kind == "progress":
                on_progress(event.name, event.detail)
                return
            del work.running[event.name]
            for record in event.records:
                self._store.put(record)
            if event.kind == "done":
                work.results[event.name] = event.detail
                on_done(event.name)
            elif event.kind == "failed":
                raise UserError(event.detail)
            elif event.kind == "stopped" and asked.is_set():
                raise Stopped
            elif event.kind == "busy":
                work.elsewhere.extend([task] if wait_for_others else [])
            else:  # lost, or stopped by its own machine's scheduler
                work.again(task)

        while True:
            self._check_other_processes(work, on_done)
            while len(work.running) < self._room and not asked.is_set():
                if not work.waiting:
                    work.waiting.extend(more())
                if not work.waiting:
                    break
                task = work.waiting.popleft()
                work.running[task.name] = task
                self._backend.start(task)
            if not (work.running or work.waiting or work.elsewhere):
                return work.results
            if asked.is_set() and not work.running:
                raise Stopped
            if work.running or not work.elsewhere:
                self._backend.poll_events(on_event, LISTEN_SECONDS)
            else:
                asked.wait(LISTEN_SECONDS)
            if asked.is_set():
                raise Stopped

    def _check_other_processes(self, work: _Work, on_done: OnDone) -> None:
        """Check the tasks that other processes compute: finished, or abandoned and to be taken over."""
        if not work.elsewhere or time.monotonic() - work.looked < WAIT_SECONDS:
            return
        work.looked = time.monotonic()
        for task in list(work.elsewhere):
            if task.keys and self._store.has(task.keys) == set(task.keys):
                work.elsewhere.remove(task)
                work.results[task.name] = None
                on_done(task.name)
            elif not task.keys or is_open(self._store, task.keys[-1]):
                work.elsewhere.remove(task)
                work.waiting.append(task)

    def timed(self, tasks: Sequence[Task], on_timed: OnDone = lambda name: None, most: float = math.inf) -> list[float]:
        """The mean of the seconds that each task returns, measured with all workers busy as in training. Each is timed
        several times, unless `most` seconds have passed."""
        self._backend.wait_ready()
        began, turns = time.perf_counter(), range(self.times(len(tasks)))

        def copies(turn: int) -> list[Task]:
            return [Task(f"{task.name}#{turn}", task.function, task.args, what=task.what) for task in tasks]

        further = iter(turns[1:])

        def more() -> list[Task]:
            late = time.perf_counter() - began > most
            return [] if late or (turn := next(further, None)) is None else copies(turn)

        seconds = self.run(copies(0), on_done=lambda name: on_timed(name.rpartition("#")[0]), more=more)
        return [fmean(seconds[name] for turn in turns if (name := f"{task.name}#{turn}") in seconds) for task in tasks]

    def times(self, tasks: int) -> int:
        """How often each of so many tasks is timed at most."""
        return min(TIMED_TIMES, max(2, self.workers)) if self.workers > 1 and tasks <= MOST_TIMED else 1

    def stop(self) -> None:
        self._backend.stop(lambda event: [self._store.put(record) for record in event.records])

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Work:
    def __init__(self, tasks: Iterable[Task]) -> None:
        self.waiting = deque(tasks)
        self.running: dict[str, Task] = {}
        self.elsewhere: list[Task] = []  # computed by other processes
        self.results: dict[str, Any] = {}
        self.looked = 0.0
        self._lost: dict[str, int] = {}

    def again(self, task: Task) -> None:
        self._lost[task.name] = self._lost.get(task.name, 0) + 1
        if self._lost[task.name] >= ATTEMPTS:
            raise UserError(
                f"{task.what or task.name} has lost its worker {ATTEMPTS} times (is there enough memory?). What is "
                "finished is stored: run again to go on, perhaps with fewer --workers."
            )
        self.waiting.appendleft(task)
