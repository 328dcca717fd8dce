"""The interface of a backend (local processes, Ray, Slurm), and `Place`, the user's choice of one.

| `--cluster` | where |
|---|---|
| (none) | processes of this machine |
| `ray://HOST:PORT` | a Ray cluster, reached through its client server |
| `auto`, `HOST:PORT` | the Ray cluster that this machine belongs to |
| `slurm`, `slurm:partition=gpu,account=me` | Slurm, a job per training, by submitit |
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from plait.core.errors import UserError
from plait.records import Store
from plait.workers.task import Event, Setup, Task

OnEvent = Callable[[Event], object]
INSTALL = "pip install 'plait[cluster]'"


class Backend(ABC):
    """Runs tasks. The pool starts as many as there are slots and polls for their events."""

    #: How many tasks run at once; on a cluster that changes with its machines.
    slots: int = 1
    #: For the display: "2 nodes". Empty: this machine.
    where: str = ""
    #: Set by the pool's caller: save everything and stop.
    asked: threading.Event = threading.Event()

    @abstractmethod
    def start(self, task: Task) -> None: ...

    @abstractmethod
    def poll_events(self, on_event: OnEvent, seconds: float) -> None:
        """Call `on_event` for what happens within so many seconds."""

    @abstractmethod
    def stop(self, on_event: OnEvent) -> None:
        """Ask running tasks to save and stop, end those that do not, and shut down. Their last events are passed to
        `on_event`."""

    def wait_ready(self) -> None:  # noqa: B027 (most backends need not)
        """Wait until all slots could start a task at once."""


@dataclass(frozen=True)
class Place:
    """Where trainings run and how many GPUs each takes. `workers`: how many at once; None: as many as fit."""

    cluster: str = ""
    workers: int | None = None
    device: str = "cpu"
    gpus_per_training: float | None = None  # on a GPU; None: a whole one

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
        raise UserError(f"--cluster {self.cluster}: known are ray://HOST:PORT, auto, and slurm.")

    @property
    def gpus(self) -> float:
        """GPUs per training."""
        return 0.0 if self.device == "cpu" else self.gpus_per_training or 1.0

    def local_workers(self, usual: int = 1) -> int:
        """How many processes of this machine to start if there is no cluster. On CPUs: `workers`, by default the
        `usual` number. On GPUs: one, unless trainings share GPUs."""
        if self.device == "cpu":
            return self.workers or usual
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
