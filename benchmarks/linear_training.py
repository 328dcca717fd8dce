"""Training speed and peak memory of linear-time mixers on a GPU, each model in a process of its own, in one run.

    python benchmarks/linear_training.py [--models gla …] [--size 125m] [--seconds 300] [--how warm eager build …]

8 × 4096 random tokens per step, vocabulary 50257, the real trainer (`plait.training.throughput`). To be done, in this
order: `warm`, every model takes some steps at batch 1, all at once, which compiles its kernels; `eager`, they are timed
one by one while the others wait; `build`, compiled models take their first steps, `--abreast` at a time; `compiled`,
they are timed; `profile`, the kernels of one compiled step that take longest; `try`, flash-linear-attention's take
their first steps at batch 1; `peer`, they are timed. `eager:gla,kda` does so with these alone. `mark:FILE` makes a file
and `until:FILE` waits for one, for what else is to run where nothing is timed. Every row is printed as soon as it is
there, and a model that fails or takes too long leaves the others alone. `--device cpu --batch 1 --seq-len 64` tries it
without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODELS = ("mamba2", "gla", "hgrn2", "retnet", "rwkv6", "mamba", "hyena", "gated-deltanet", "deltanet", "kda")
Row = dict[str, Any]


def spec_of(model: str, size: str) -> str:
    from plait.interop.train_bench import MODELS as named
    from plait.interop.train_bench import SIZES
    from plait.interop.train_bench import spec_of as known

    if "|" in model:
        return model
    return known(model, size) if model in named else SIZES[size].format(model)


def work(model: str, size: str, steps: int, **sizes: Any) -> None:
    """In a process of its own: what each line asks for, answered by one line."""
    import torch

    from plait.training.throughput import Throughput, WarmTraining

    spec, built = spec_of(model, size), None

    def row(found: Throughput) -> Row:
        gib = (found.peak_bytes or 0) / 2**30
        first = found.first_step_seconds
        return {"speed": found.tokens_per_second, "gib": gib, "mfu": found.mfu, "first": first, "loss": found.loss}

    def kernels(built: WarmTraining) -> list[str]:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            built.time(1)
        found = sorted(seen.key_averages(), key=lambda each: -each.device_time_total)
        whole = sum(each.device_time_total for each in found) / 1e3
        named = [f"{each.device_time_total / 1e3:.2f} ms ×{each.count} {each.key[:90]}" for each in found[:16]]
        return [f"{whole:.1f} ms of kernels", *named]

    def peer(steps: int, warm_up: int, batch: int) -> Row:
        from plait.interop.fla_models import peer_throughput

        found = peer_throughput(spec, batch=batch, steps=steps, warm_up=warm_up)
        return {"speed": found["tokens_per_second"], "gib": found["peak_bytes"] / 2**30, "loss": found["loss"]}

    for line in sys.stdin:
        how, answer = line.strip(), {}
        try:
            if how == "warm":
                WarmTraining(spec, **{**sizes, "batch": 1}, steps=1).time()
            elif how == "eager":
                built = None  # of whose memory the peak should hold nothing
                gc.collect()
                begun = WarmTraining(spec, **sizes, steps=steps + 2)
                begun.time(1)  # as a compiled one: the losses are of the same step
                answer = row(begun.time(steps))
                begun = None
            elif how == "build":
                built = WarmTraining(spec, **sizes, compiled=True, steps=steps + 2)
                answer = {"first": built.first_step_seconds}
            elif how == "compiled" and built is not None:
                built.time(1)  # memory that was given back is there again
                answer = row(built.time(steps))
            elif how == "profile" and built is not None:
                answer, built = {"kernels": kernels(built)}, None
            elif how in ("try", "peer"):
                answer = peer(*((1, 1, 1) if how == "try" else (steps, 3, 8)))
            else:
                answer = {"failure": "not built"}
        except Exception as wrong:
            answer = {"failure": f"{type(wrong).__name__}: {wrong}"[:600]}
        if built is None:
            torch._dynamo.reset()
        gc.collect()
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()
        print(json.dumps(answer), flush=True)


class Worker:
    def __init__(self, model: str, options: list[str]) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--worker", model, *options]
        self.model, self.alive, self.last = model, True, ""
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

    def ask(self, how: str) -> None:
        if self.alive and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(f"{how}\n")
                self.process.stdin.flush()

    def answer(self, limit: float) -> Row:
        until = time.perf_counter() + max(limit, 0.5)
        while self.alive:
            try:
                line = self.lines.get(timeout=max(0.1, until - time.perf_counter()))
            except queue.Empty:
                self.end()
                return {"failure": f"no result in {limit:.0f} s; said last: {self.last[-200:]}"}
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


def text(row: Row) -> str:
    if "failure" in row:
        return f"FAILED {row['failure']}"
    if "kernels" in row:
        return "\n      ".join(row["kernels"])
    parts = []
    if "speed" in row:
        parts += [f"{row['speed'] / 1e3:.1f}k tokens/s, {row['gib']:.1f} GiB"]
        parts += [f"MFU {100 * row['mfu']:.1f} %"] if row.get("mfu") is not None else []
        parts += [f"loss {row['loss']:.3f}"]
    parts += [f"first step {row['first']:.1f} s"] if "first" in row else []
    return ", ".join(parts) or "done"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--size", default="125m")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--how", nargs="*", default=["warm", "eager", "build", "compiled"])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit", type=float, default=15, help="seconds for one row")
    parser.add_argument("--slowest", type=float, default=60, help="seconds for warming, building or trying")
    parser.add_argument("--abreast", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(
            asked.worker, asked.size, asked.steps, device=asked.device, batch=asked.batch, seq_len=asked.seq_len
        )  # fmt: skip
        return
    begun = time.perf_counter()
    os.environ.setdefault("OMP_NUM_THREADS", "2")

    def left() -> float:
        return asked.seconds - (time.perf_counter() - begun)

    def say(*words: object) -> None:
        print(f"[{time.perf_counter() - begun:5.1f}]", *words, flush=True)

    def together(workers: Sequence[Worker], how: str, abreast: int) -> None:
        for first in range(0, len(workers), abreast):
            some = workers[first : first + abreast]
            for worker in some:
                worker.ask(how)
            until = time.perf_counter() + min(asked.slowest, left())
            for worker in some:
                say(how, worker.model, text(worker.answer(until - time.perf_counter())))

    passed = ("size", "steps", "device", "batch", "seq_len")
    options = [word for name in passed for word in (f"--{name.replace('_', '-')}", str(getattr(asked, name)))]
    workers = [Worker(model, options) for model in asked.models]
    try:
        for how in asked.how:
            kind, _, file = how.partition(":")
            if kind == "mark":
                Path(file).touch()
                continue
            if kind == "until":
                patience = time.perf_counter() + left()
                while not Path(file).exists() and time.perf_counter() < patience:
                    time.sleep(0.2)
                say("waited for", file)
                continue
            going = [worker for worker in workers if worker.alive]
            if how in ("warm", "build", "try"):
                together(going, how, asked.abreast if how == "build" else len(going))
                continue
            for worker in going:
                if file and worker.model not in file.split(","):
                    continue
                if left() < 3:
                    say("no time for", worker.model, how)
                    continue
                worker.ask(kind)
                say(worker.model, asked.size, kind, text(worker.answer(min(asked.limit, left()))))
    finally:
        for worker in workers:
            worker.end()


if __name__ == "__main__":
    main()
