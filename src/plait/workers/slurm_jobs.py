"""Tasks as Slurm jobs, one each, submitted with submitit. They communicate through a folder that all machines share.

    --cluster slurm
    --cluster slurm:partition=gpu,account=me,timeout_min=240
    --cluster slurm:executor=local        # submitit's local executor, without Slurm, for testing

Keys are those of `submitit.AutoExecutor.update_parameters`; `executor` chooses submitit's executor, `folder` the folder
of the jobs (runs/jobs). A job that is preempted or runs out of time is queued again by submitit and resumes from its
checkpoint. Jobs outlive the command that submitted them: when it is started again, it finds them and their results in
the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.files import atomic_write, parse_json
from plait.workers.pool import Backend, Event, OnEvent, Place, Setup, Task
from plait.workers.worker import WorkerHome

FOLDER = Path("runs") / "jobs"
AT_ONCE = 64  # jobs, without --workers
TELL_SECONDS = 2.0  # between two writes of a job's progress
STOP_SECONDS = 60.0
#: Parameters that submitit has for every executor.
GENERIC = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")


class SlurmJobs(Backend):
    def __init__(self, place: Place, setup: Setup) -> None:
        self._setup = setup
        parameters = _parameters(place.cluster)
        executor, folder = parameters.pop("executor", "slurm"), Path(parameters.pop("folder", FOLDER)).resolve()
        self._folder = folder / setup.key
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)  # jobs contain the store's URL with its password, and are unpickled
        self._executor = _executor(executor, self._folder, place, parameters)
        self._kind = executor
        self._jobs: dict[str, Any] = {}
        self._told: dict[str, str] = {}
        self.slots = place.workers or AT_ONCE
        self.where = "Slurm" if executor == "slurm" else f"submitit, {executor}"

    def start(self, task: Task) -> None:
        kept = self._path(task.name, "job")
        self._path(task.name, "stop").unlink(missing_ok=True)
        job = self._known(kept)
        if job is None:
            job = self._executor.submit(Job(self._setup, task, str(self._folder)))
            with atomic_write(kept) as draft:
                draft.write_text(json.dumps({"job": job.job_id}), encoding="utf-8")
        self._jobs[task.name] = job

    def _path(self, name: str, kind: str) -> Path:
        return _path(self._folder, name, kind)

    def _known(self, kept: Path) -> Any:
        """The job that an earlier command submitted for this task, if it is still running or has a result."""
        if not kept.exists():
            return None
        with suppress(UserError, KeyError):
            number = parse_json(kept.read_text(encoding="utf-8"), str(kept))["job"]
            job = self._executor._executor.job_class(self._folder, number)
            if job.paths.result_pickle.exists() or not _ended(job):
                return job
        return None

    def poll_events(self, on_event: OnEvent, seconds: float) -> None:
        time.sleep(seconds)
        for name, job in list(self._jobs.items()):
            self._forward_progress(name, on_event)
            if not _ended(job):
                continue
            del self._jobs[name]
            self._path(name, "job").unlink(missing_ok=True)
            on_event(_event(name, job))

    def _forward_progress(self, name: str, on_event: OnEvent) -> None:
        path = self._path(name, "progress")
        with suppress(OSError, UserError):
            text = path.read_text(encoding="utf-8")
            if text != self._told.get(name):
                self._told[name] = text
                on_event(Event("progress", name, parse_json(text, str(path))))

    def stop(self, on_event: OnEvent) -> None:
        """Create a file in the folder for each job, which sees it, saves and stops."""
        if self._jobs:
            for name in self._jobs:  # only ours: others may have jobs in the same folder
                self._path(name, "stop").touch()
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and not all(
                job.done() or job.state == "PENDING" for job in self._jobs.values()
            ):
                time.sleep(0.5)
            for name, job in self._jobs.items():
                if _ended(job):
                    on_event(_event(name, job))
                else:
                    job.cancel(check=False)
        self._jobs = {}


def _path(folder: Path, name: str, kind: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.{kind}"


def _parameters(cluster: str) -> dict[str, str]:
    parameters = {}
    for part in filter(None, cluster.partition(":")[2].split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"--cluster {cluster}: '{part}' is not key=value, such as partition=gpu.")
        parameters[key.strip()] = value.strip()
    return parameters


def _key(key: str, kind: str) -> str:
    """The name of a parameter in submitit, which prefixes those of Slurm with `slurm_`."""
    return key if kind != "slurm" or key in GENERIC or key.startswith("slurm_") else f"slurm_{key}"


def _executor(kind: str, folder: Path, place: Place, parameters: dict[str, str]) -> Any:
    import submitit

    try:
        executor = submitit.AutoExecutor(folder=str(folder), cluster=kind)
    except (RuntimeError, ValueError) as wrong:
        raise UserError(f"--cluster {place.cluster}: submitit says: {str(wrong).strip() or 'no Slurm here'}") from None
    numbers = {_key(key, kind): int(value) if value.isdecimal() else value for key, value in parameters.items()}
    usual = {"name": "plait", "cpus_per_task": 1, "gpus_per_node": math.ceil(place.gpus), "timeout_min": 240}
    usual = {key: value for key, value in usual.items() if value}
    try:
        executor.update_parameters(**{**usual, **numbers})
    except (NameError, TypeError, ValueError) as wrong:
        raise UserError(f"--cluster {place.cluster}: {wrong}") from None
    return executor


def _ended(job: Any) -> bool:
    """Whether a job has ended. Jobs of submitit's local executor are processes, and their ids are process ids, which
    matters for jobs submitted by another command."""
    if job.paths.result_pickle.exists():
        return True
    if job.state != "NO PROCESS AND NO RESULT":
        return bool(job.done())
    try:
        os.kill(int(job.job_id), 0)
    except (ValueError, ProcessLookupError):
        return True
    return False


def _event(name: str, job: Any) -> Event:
    try:
        return job.result()  # type: ignore[no-any-return]
    except Exception:  # no result: it was killed, ran out of memory or lost its machine
        return Event("lost", name)


class Job:
    """The callable that submitit pickles, runs, and queues again if the job is preempted."""

    def __init__(self, setup: Setup, task: Task, folder: str) -> None:
        self.setup, self.task, self.folder = setup, task, folder

    def __call__(self) -> Event:
        folder = Path(self.folder)
        path = _path(folder, self.task.name, "progress")
        last = [0.0]

        def say(detail: Any) -> None:
            if time.monotonic() - last[0] > TELL_SECONDS:
                last[0] = time.monotonic()
                with suppress(OSError), atomic_write(path) as draft:
                    draft.write_text(json.dumps(detail), encoding="utf-8")

        try:
            home = WorkerHome.of(self.setup)
        except UserError as wrong:
            return Event("failed", self.task.name, str(wrong))
        try:
            return home.run(self.task, say, _path(folder, self.task.name, "stop").exists)
        finally:
            path.unlink(missing_ok=True)

    def checkpoint(self) -> Any:
        """Called by submitit before a job is preempted or runs out of time."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)
