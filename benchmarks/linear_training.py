"""Training speed and peak memory of models on a GPU beside flash-linear-attention's of the same sizes, in one run.

    python benchmarks/linear_training.py tune [--models gla …] [--sizes 125m 360m] [--seconds 300] [--only peer]
    python benchmarks/linear_training.py time [--models gla …] [--sizes 125m 360m] [--seconds 300] [--out ROWS.jsonl]
    python benchmarks/linear_training.py table ROWS.jsonl

8 × 4096 random tokens per step, vocabulary 50257, the real trainer (`plait.training.speed`). `tune` lets flash-
linear-attention's kernels be tuned (`peer_tuning`), on models of one layer with the shapes of the whole one, and marks
in the folder of `--marks` which are done; ours compile there, with two repetitions of their pattern of blocks. `time`
builds some models at once, each in a process of its own (ours compile; the peer's are taken once they are tuned), gives
back the memory they do not need, then times them one by one while nothing else uses the GPU (`gpu_turn`), and ends
them. `time` and `tune` are made to run beside each other. Every row is written as soon as it is there, and a model that
fails or takes too long leaves the others alone. `--device cpu --batch 1 --seq-len 64` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from training_jobs import Clock, Job, Row, Worker, time_all, tune

#: In the order in which they are measured.
MODELS = (
    "gla", "mamba2", "gated-deltanet", "deltanet", "transformer", "fox-llama", "fox-pro", "hgrn2", "retnet", "kda",
    "rwkv6", "mamba", "hyena",
)  # fmt: skip
#: flash-linear-attention has no Hyena, and its Mamba has no kernels without the mamba_ssm package.
WITHOUT_PEER = ("mamba", "hyena")
STEPS = {"125m": 8, "360m": 6}
TUNED_VOCABULARY = 512  # so that logits take no room; no tuned kernel sees them


def spec_of(model: str, size: str) -> str:
    from plait.interop.train_bench import MODELS as named
    from plait.interop.train_bench import SIZES
    from plait.interop.train_bench import spec_of as known

    if "|" in model:
        return model
    if model == "fox-llama":
        return f"{model}-{size}"
    return known(model, size) if model in named else SIZES[size].format(model)


def work(job: Job, **sizes: Any) -> None:
    """What each line asks for (build, time), answered by one line; a tuner does its one thing."""
    import ctypes

    import torch

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # should the process that started this one end before it

    from plait.interop.fla_models import PeerTraining
    from plait.training.speed import WarmTraining

    spec, steps, on_gpu = spec_of(job.model, job.size), STEPS[job.size], sizes["device"] != "cpu"
    if job.trainer in ("peer", "tune") and on_gpu:
        import peer_tuning

        peer_tuning.install()
        peer_tuning.refuse_nothing()
    from gpu_turn import TURN

    if on_gpu:
        torch.cuda.init()
    built: Any = None

    def give_back() -> None:
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()

    def build() -> Row:
        begun = time.perf_counter()
        if job.trainer == "ours":
            trained = WarmTraining(spec, **sizes, compiled=on_gpu, steps=steps + 3)
            return {"built": trained, "first": trained.first_step_seconds}
        return {"built": PeerTraining(spec, **sizes), "first": time.perf_counter() - begun}

    def timed() -> Row:
        built.time(1)  # memory that was given back is there again
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        found = built.time(steps)
        if job.trainer == "peer":
            return {"speed": found["tokens_per_second"], "gib": found["peak_bytes"] / 2**30, "loss": found["loss"]}
        gib = (found.peak_bytes or 0) / 2**30
        row = {"speed": found.tokens_per_second, "gib": gib, "loss": found.loss, "mfu": found.mfu}
        profiled = on_gpu and (job.size == "125m" or job.model == "transformer")
        return row | ({"kernels": kernels_of(built)} if profiled else {})

    if job.trainer == "warm":
        with TURN.shared():
            WarmTraining(twice(spec), **sizes, compiled=on_gpu, steps=1)
        print(json.dumps({"compiled": True}), flush=True)
        return
    if job.trainer == "tune":
        os.nice(12)  # behind what is timed
        if on_gpu:
            from gpu_turn import aside_while_compiling

            aside_while_compiling()
        with TURN.shared():
            PeerTraining(spec, **{**sizes, "vocab": TUNED_VOCABULARY}, layers=1, warm_up=1)
        print(json.dumps({"tuned": True}), flush=True)
        return
    for line in sys.stdin:
        answer: Row = {}
        try:
            if line.strip() == "build":
                with TURN.shared():
                    answer = build()
                    built = answer.pop("built")
                    give_back()
            else:
                with TURN.alone():
                    answer = timed()
        except Exception as wrong:
            answer = {"failure": f"{type(wrong).__name__}: {wrong}"[:600]}
        print(json.dumps(answer), flush=True)


def twice(spec: str) -> str:
    """The same model with two repetitions of its pattern: what is compiled for it serves the whole depth."""
    from plait.model.architecture import Architecture, architecture
    from plait.model.compiled_blocks import repeated_pattern

    arch = architecture(spec)
    return Architecture(arch.header, arch.layers[: 2 * repeated_pattern(arch.layers)]).text


def kernels_of(built: Any) -> list[str]:
    """The kernels of one step that take longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        built.time(1)
    found = sorted(seen.key_averages(), key=lambda each: -each.device_time_total)
    whole = sum(each.device_time_total for each in found) / 1e3
    named = [f"{each.device_time_total / 1e3:.2f} ms x{each.count} {each.key[:90]}" for each in found[:24]]
    return [f"{whole:.1f} ms of kernels", *named]


def table(rows: list[Row]) -> str:
    """By size and model: ours, the peer's, and how many times as fast ours is."""
    lines = ["| model | size | plait, tokens/s | GiB | MFU | flash-linear-attention | GiB | ratio | first step |"]
    lines += ["|-|-|-|-|-|-|-|-|-|"]
    found = {(row["size"], row["model"], row["trainer"]): row for row in rows}
    for size, model in dict.fromkeys((row["size"], row["model"]) for row in rows):
        ours, peer = (found.get((size, model, trainer), {}) for trainer in ("ours", "peer"))
        speeds = [
            f"{row['speed'] / 1e3:.0f}k" if "speed" in row else row.get("failure", "")[:60] for row in (ours, peer)
        ]
        gib = [f"{row['gib']:.1f}" if "gib" in row else "" for row in (ours, peer)]
        mfu = f"{100 * ours['mfu']:.1f} %" if ours.get("mfu") else ""
        ratio = f"{ours['speed'] / peer['speed']:.2f}" if "speed" in ours and "speed" in peer else ""
        first = f"{ours['first']:.0f} s" if "first" in ours else ""
        lines.append(
            f"| {model} | {size} | {speeds[0]} | {gib[0]} | {mfu} | {speeds[1]} | {gib[1]} | {ratio} | {first} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "time", "table", "work"))
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--sizes", nargs="*", default=["125m"])
    parser.add_argument("--only", choices=("ours", "peer"))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--limits", nargs=2, type=float, default=[90, 25], help="seconds to build, and to time")
    parser.add_argument("--slowest", type=float, default=240, help="seconds to tune")
    parser.add_argument("--abreast", type=int, default=6, help="tuned at once")
    parser.add_argument("--out", type=Path, help="a file to which rows are added")
    parser.add_argument("--marks", type=Path, default=Path("tuned"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.what == "table":
        print(table([json.loads(line) for file in asked.rows for line in file.read_text().splitlines()]))
        return
    sizes = {name: getattr(asked, name) for name in ("device", "batch", "seq_len", "vocab")}
    if asked.what == "work":
        work(Job(*asked.job), **sizes)
        return
    clock = Clock(asked.seconds)
    asked.marks.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    options = [word for name, value in sizes.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    def start(job: Job) -> Worker:
        return Worker(job, options)

    trainers = ("ours", "peer") if asked.only is None else (asked.only,)
    jobs = [
        Job(trainer, model, size)
        for size in asked.sizes
        for model in asked.models
        for trainer in trainers
        if trainer == "ours" or model not in WITHOUT_PEER
    ]
    if asked.what == "tune":
        jobs = [job._replace(trainer={"ours": "warm", "peer": "tune"}[job.trainer]) for job in jobs]
    if asked.what == "tune":
        tune(jobs, start, asked.marks, asked.abreast, asked.slowest, clock)
    else:
        print(table(time_all(jobs, start, asked.marks, asked.limits, asked.out, clock)), flush=True)


if __name__ == "__main__":
    main()
