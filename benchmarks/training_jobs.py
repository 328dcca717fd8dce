"""Models that a benchmark measures, each in a process of its own: built some at a time, then timed one by one.

A worker is asked line by line (build, time) and answers by one line of JSON. One that fails, ends or takes too long
leaves the others alone; all end with the process that started them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

#: GiB that a model needs while it is built; some are built at once.
MEMORY = {("ours", "125m"): 25, ("peer", "125m"): 30, ("ours", "360m"): 50, ("peer", "360m"): 50}
LARGE = {("peer", "mamba2"), ("peer", "rwkv6")}  # built alone; Mamba-2 is plain torch without the mamba_ssm package
ALL_MEMORY, ABREAST, AHEAD = 104, 4, 6  # GiB; models built at once, and such as wait to be built
PROGRAM = Path(__file__).with_name("linear_training.py")
Row = dict[str, Any]


class Job(NamedTuple):
    trainer: str  # ours, peer; tune, which prepares a peer, and warm, which prepares ours
    model: str
    size: str


class Worker:
    def __init__(self, job: Job, options: list[str]) -> None:
        command = [sys.executable, "-W", "ignore", str(PROGRAM), "work", *options, "--job", *job]
        self.job, self.alive, self.last = job, True, ""
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, what: str) -> None:
        if self.alive and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(f"{what}\n")
                self.process.stdin.flush()

    def answer(self, until: float) -> Row:
        while self.alive:
            try:
                line = self.lines.get(timeout=max(0.05, until - time.perf_counter()))
            except queue.Empty:
                self.end()
                return {"failure": f"no result in time; said last: {self.last[-200:]}"}
            if line is None:
                self.end()
            elif line.startswith("{"):
                found: Row = json.loads(line)
                return found
            else:
                self.last = line.strip() or self.last
        return {"failure": f"gone; said last: {self.last[-300:]}"}

    def end(self) -> None:
        self.alive = False
        self.process.kill()
        self.process.wait()


class Clock:
    def __init__(self, seconds: float) -> None:
        self.begun = time.perf_counter()
        self.end = self.begun + seconds

    @property
    def left(self) -> float:
        return self.end - time.perf_counter()

    def say(self, *words: object) -> None:
        print(f"[{time.perf_counter() - self.begun:5.1f}]", *words, flush=True)


def tune(
    jobs: list[Job], start: Callable[[Job], Worker], marks: Path, abreast: int, limit: float, clock: Clock
) -> None:
    waiting, running = list(jobs), dict[Worker, float]()
    while (waiting or running) and clock.left > 1:
        while waiting and len(running) < abreast:
            worker = start(waiting.pop(0))
            running[worker] = time.perf_counter()
        time.sleep(0.1)
        for worker, begun in list(running.items()):
            late = time.perf_counter() - begun > limit
            if worker.process.poll() is None and not late:
                continue
            row = worker.answer(time.perf_counter() + 1)
            worker.end()
            del running[worker]
            took = time.perf_counter() - begun
            clock.say(*worker.job, f"{took:.0f} s", row.get("failure", ""))
            if worker.job.trainer == "warm":
                continue
            mark = marks / f"{worker.job.model}-{worker.job.size}"
            unfinished = marks / f"part-{os.getpid()}"
            unfinished.write_text(json.dumps(row | {"seconds": took}))
            unfinished.rename(mark)
    for worker in running:
        worker.end()


def time_all(
    jobs: list[Job], start: Callable[[Job], Worker], marks: Path, limits: list[float], out: Path | None, clock: Clock
) -> list[Row]:
    """Rows of all jobs that could be measured before the time was up. What found no room beside others is tried once
    more at the end, by itself."""
    waiting, workers, rows = list(jobs), dict[Job, Worker](), list[Row]()
    by_itself: set[Job] = set()

    def mark(job: Job) -> Path:
        return marks / f"{job.model}-{job.size}"

    def ready(job: Job) -> bool:
        return job.trainer == "ours" or mark(job).exists()

    def note(job: Job, row: Row) -> None:
        rows.append({"model": job.model, "size": job.size, "trainer": job.trainer} | row)
        clock.say(job.size, job.model, job.trainer, text(row))
        if out is not None:
            with open(out, "a") as file:
                file.write(json.dumps(rows[-1]) + "\n")

    try:
        while waiting and clock.left > 5:
            for job in waiting[:AHEAD]:  # they import what they need meanwhile
                if job not in workers:
                    workers[job] = start(job)
            wave = _wave([job for job in waiting[: 2 * AHEAD] if ready(job)], by_itself)
            if not wave:
                time.sleep(0.2)
                continue
            waiting = [job for job in waiting if job not in wave]
            for job in [job for job in wave if job.trainer == "peer"]:
                tuned = json.loads(mark(job).read_text())
                if "failure" in tuned:
                    wave.remove(job)
                    if job in workers:
                        workers.pop(job).end()
                    note(job, {"failure": f"tuning: {tuned['failure']}"})
            going = [workers.pop(job, None) or start(job) for job in wave]
            for worker in going:
                worker.ask("build")
            until = time.perf_counter() + min(limits[0], clock.left - 2)
            firsts = {worker.job: worker.answer(until) for worker in going}
            for worker in going:
                row = firsts[worker.job]
                if "failure" not in row:
                    worker.ask("time")
                    found = worker.answer(time.perf_counter() + min(limits[1], clock.left))
                    row = found | {"first": row["first"]}
                worker.end()
                if "OutOfMemory" in row.get("failure", "") and worker.job not in by_itself:
                    by_itself.add(worker.job)
                    waiting.append(worker.job)
                    clock.say(*worker.job, "found no room")
                    continue
                note(worker.job, row)
    finally:
        for worker in workers.values():
            worker.end()
    return rows


def _wave(ready: list[Job], by_itself: set[Job]) -> list[Job]:
    """The first few that fit into memory at once."""
    wave, room = list[Job](), ALL_MEMORY
    for job in ready:
        alone = job in by_itself or (job.trainer, job.model) in LARGE
        needs = ALL_MEMORY if alone else MEMORY[job.trainer, job.size]
        if len(wave) < ABREAST and needs <= room:
            wave.append(job)
            room -= needs
    return wave


def text(row: Row) -> str:
    if "failure" in row:
        return f"FAILED {row['failure']}"
    parts = [f"{row['speed'] / 1e3:.1f}k tokens/s, {row['gib']:.1f} GiB"]
    parts += [f"MFU {100 * row['mfu']:.1f} %"] if row.get("mfu") is not None else []
    return ", ".join([*parts, f"loss {row['loss']:.3f}", f"first {row['first']:.1f} s"])
