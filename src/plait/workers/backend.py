"""What a place where tasks run must do; `plait.workers.pool` does the rest for all of them.

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
    """Tasks are started while there are slots; what happens to them is handed on when it is asked for."""

    #: How many tasks run at once; on a cluster that changes with its machines.
    slots: int = 1
    #: For the display: "2 nodes". Empty: this machine.
    where: str = ""
    #: Set when everything is to be saved and left.
    asked: threading.Event = threading.Event()

    @abstractmethod
    def start(self, task: Task) -> None: ...

    @abstractmethod
    def poll_events(self, on_event: OnEvent, seconds: float) -> None:
        """For at most so long, hand on what comes."""

    @abstractmethod
    def stop(self, on_event: OnEvent) -> None:
        """Ask every task that runs to save and leave; end those that do not, and what was started for them.
        What they still give is handed on."""

    def wait_ready(self) -> None:  # noqa: B027 (most places need not)
        """Until as many tasks as there are slots could begin at once."""


@dataclass(frozen=True)
class Place:
    """Where trainings run, and what each takes. `workers`: how many at once, None: as many as there is room for."""

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
        """Of a training."""
        return 0.0 if self.device == "cpu" else self.gpus_per_training or 1.0

    def local_workers(self, usual: int = 1) -> int:
        """Processes of this machine, where no cluster is asked for: on a CPU as many as were, or the `usual` number; on
        GPUs one, unless trainings share them."""
        if self.device == "cpu":
            return self.workers or usual
        if self.gpus_per_training is None:
            return 1
        import torch

        room = max(1, int(torch.cuda.device_count() / self.gpus))
        return min(self.workers or room, room)

    def backend(self, setup: Setup, store: Store, *, local_workers: int, apart: bool = False) -> Backend:
        """`local_workers`: processes of this machine, where no cluster is asked for; a single one is this very process,
        unless it shall be `apart`."""
        if self.kind == "ray":
            from plait.workers.ray_cluster import RayCluster

            return RayCluster(self, setup)
        if self.kind == "slurm":
            from plait.workers.slurm_jobs import SlurmJobs

            return SlurmJobs(self, setup)
        from plait.workers.local_processes import InProcess, LocalProcesses

        return LocalProcesses(setup, local_workers, self) if local_workers > 1 or apart else InProcess(store)
