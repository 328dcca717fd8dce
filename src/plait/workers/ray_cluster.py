"""Tasks on a Ray cluster, one Ray task each: Ray chooses the machine and assigns GPUs or fractions of them.

The connection to Ray is in a separate process, the bridge, because a Ray head that dies also ends the processes
connected to it, and this one must continue. When the bridge ends or is silent for too long, its running tasks count as
lost and are restarted once the cluster is back; finished results are in the store.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from plait.core.errors import UserError
from plait.workers.local_processes import start_process
from plait.workers.pool import Backend, Event, OnEvent, Place, Setup, Task
from plait.workers.worker import WorkerHome

CONNECT_SECONDS = 90.0  # for the first connection
AWAY_SECONDS = 600.0  # how long a cluster may be unreachable
SILENT_SECONDS = 45.0  # after which a silent bridge counts as disconnected
ROOM_SECONDS = 2.0  # between two checks of the cluster's machines
STOP_SECONDS = 30.0
ASK_SECONDS = 1.0  # between two checks of a task whether it should stop


class RayCluster(Backend):
    def __init__(self, place: Place, setup: Setup) -> None:
        self._address, self._setup, self._gpus = place.cluster, setup, place.gpus
        self._running: dict[str, Task] = {}
        self.slots, self._why = 0, ""
        self._begin()
        self._away_since = time.monotonic()
        while not self.slots:
            self._take(lambda event: None, 0.5)
            if time.monotonic() - self._away_since > CONNECT_SECONDS or (self._why and not self._process.is_alive()):
                self._end()
                raise UserError(f"--cluster {self._address}: no Ray cluster with room answers. {self._why}".strip())

    def _begin(self) -> None:
        self._process, self._pipe = start_process(bridge, self._address, self._setup, self._gpus)
        self._last_message = time.monotonic()

    def start(self, task: Task) -> None:
        self._running[task.name] = task
        with suppress(OSError):  # the bridge has ended; `poll_events` will notice
            self._pipe.send(task)

    def poll_events(self, on_event: OnEvent, seconds: float) -> None:
        connected = self._take(on_event, seconds)
        if connected and time.monotonic() - self._last_message < SILENT_SECONDS:
            return
        self._end()
        if self.slots:
            self._away_since, self.slots = time.monotonic(), 0
            self.where = "waiting for the cluster"
            lost, self._running = self._running, {}
            for name in lost:
                on_event(Event("lost", name))
        if time.monotonic() - self._away_since > AWAY_SECONDS:
            raise UserError(
                f"the cluster {self._address} has not answered for {AWAY_SECONDS / 60:.0f} minutes. Finished work "
                f"is stored: run again to resume. {self._why}".strip()
            )
        time.sleep(1.0)
        self._begin()

    def _take(self, on_event: OnEvent, seconds: float) -> bool:
        """Handle the bridge's messages; returns whether the bridge is alive."""
        try:
            if not self._pipe.poll(seconds):
                return self._process.is_alive()
            while self._pipe.poll():
                self._last_message = time.monotonic()
                said = self._pipe.recv()
                if isinstance(said, Event):
                    if said.kind != "progress":
                        self._running.pop(said.name, None)
                    on_event(said)
                elif isinstance(said, str):
                    self._why = said
                else:
                    self.slots, nodes = said
                    self.where = f"{nodes} node{'s' * (nodes != 1)}, {self.slots} at once"
        except (EOFError, OSError):
            return False
        return True

    def stop(self, on_event: OnEvent) -> None:
        with suppress(OSError):
            self._pipe.send(None)
        deadline = time.monotonic() + STOP_SECONDS
        while self._process.is_alive() and time.monotonic() < deadline:
            if not self._take(on_event, 0.1):
                break
        self._end()

    def _end(self) -> None:
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


class Hub:
    """A Ray actor that collects the tasks' progress and tells them when to stop."""

    def __init__(self) -> None:
        self._told: dict[str, object] = {}
        self._stopping = False

    def tell(self, name: str, detail: Any) -> None:
        self._told[name] = detail

    def drain(self) -> dict[str, object]:
        told, self._told = self._told, {}
        return told

    def stop(self) -> None:
        self._stopping = True

    def stopping(self) -> bool:
        return self._stopping


def bridge(pipe: Connection, address: str, setup: Setup, gpus: float) -> None:
    """The main function of the bridge process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then stops us
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray prints when machines join and leave; plait's own display shows this instead.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    import ray

    try:
        ray.init(address=address, namespace="plait", log_to_driver=False, logging_level=logging.ERROR)
        _Bridge(pipe, setup, gpus).serve()
        ray.shutdown()
    except (OSError, EOFError):  # the parent is gone
        return
    except Exception as wrong:  # Ray raises many kinds; only the message is useful
        with suppress(OSError):
            pipe.send(str(wrong).strip().partition("\n")[0][:300])


class _Bridge:
    def __init__(self, pipe: Connection, setup: Setup, gpus: float) -> None:
        import ray

        self._ray, self._pipe, self._gpus = ray, pipe, gpus
        self._setup = ray.put(setup)
        self._hub = self._new_hub()
        # The pool restarts lost tasks and counts how often; Ray must not restart them as well.
        self._run = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(run_on_node)
        self._names: dict[Any, str] = {}
        self._looked = 0.0

    def _new_hub(self) -> Any:
        return self._ray.remote(num_cpus=0, max_restarts=-1)(Hub).remote()

    def serve(self) -> None:
        parent = parent_process()
        while parent is not None and parent.is_alive():
            while self._pipe.poll():
                task = self._pipe.recv()
                if task is None:
                    self._stop()
                    return
                self._names[self._run.remote(self._setup, task, self._hub)] = task.name
            if time.monotonic() - self._looked > ROOM_SECONDS:
                self._looked = time.monotonic()
                self._pipe.send(self._room())
            self._collect(0.1)
            self._forward_progress()

    def _room(self) -> tuple[int, int]:
        """How many tasks the cluster has room for, and on how many machines."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        rooms = [int(node.get("CPU", 0)) for node in nodes]
        if self._gpus:
            rooms = [min(cpus, int(node.get("GPU", 0) / self._gpus)) for cpus, node in zip(rooms, nodes, strict=True)]
        return sum(rooms), sum(room > 0 for room in rooms)

    def _collect(self, seconds: float) -> None:
        if not self._names:
            time.sleep(seconds)
            return
        done, _ = self._ray.wait(list(self._names), timeout=seconds)
        for ref in done:
            name = self._names.pop(ref)
            try:
                event = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as wrong:
                event = Event("failed", name, str(wrong.cause or wrong).strip().rpartition("\n")[2])
            except self._ray.exceptions.RayError:  # its process or machine died, or ran out of memory
                event = Event("lost", name)
            self._pipe.send(event)

    def _forward_progress(self) -> None:
        """Forward the tasks' progress to the parent. A hub that was lost with its machine is replaced."""
        try:
            told = self._ray.get(self._hub.drain.remote(), timeout=5.0)
        except self._ray.exceptions.GetTimeoutError:
            return
        except self._ray.exceptions.RayError:
            self._hub = self._new_hub()
            return
        for name, detail in told.items():
            self._pipe.send(Event("progress", name, detail))

    def _stop(self) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(self._hub.stop.remote(), timeout=5.0)
        if self._names:
            self._ray.wait(list(self._names), num_returns=len(self._names), timeout=STOP_SECONDS / 2)
        for _ in range(len(self._names)):  # records of workers with their own stores
            self._collect(0)


_homes: dict[str, WorkerHome] = {}


def run_on_node(setup: Setup, task: Task, hub: Any) -> Event:
    """Run a task in a process of the cluster."""
    import ray

    if setup.key not in _homes:
        try:
            _homes[setup.key] = WorkerHome.of(setup)
        except UserError as wrong:
            return Event("failed", task.name, str(wrong))
    asked = [0.0, False]

    def stop_asked() -> bool:
        if not asked[1] and time.monotonic() - asked[0] > ASK_SECONDS:
            with suppress(ray.exceptions.RayError):
                asked[1] = ray.get(hub.stopping.remote(), timeout=5.0)
            asked[0] = time.monotonic()
        return bool(asked[1])

    return _homes[setup.key].run(task, lambda detail: hub.tell.remote(task.name, detail), stop_asked)
