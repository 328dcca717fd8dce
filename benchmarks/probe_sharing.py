"""Several trainings of the MAD protocol on one GPU at once: member-steps per second of all of them together.

    [nvidia-cuda-mps-control -d;] python benchmarks/probe_sharing.py [--fleets 128 128:fused 256] [--at-once 1 2 3]
        [--seconds 3] [--profile 12] [--out ROWS]

A fleet is the attention and SwiGLU probe at one length of sequence, its six grid points stacked; `:fused` has the whole
SwiGLU as one operator (`plait.ops.swiglu_mlp`). Every process compiles all of them, each in another order, so that one
finds in the cache what another compiled. Then each fleet is trained by one process alone and by several at the same
time. Compare with and without MPS: without it, processes take turns on the GPU. `--profile N` lists the N kernels that
take longest. `--device cpu --seconds 1 --fleets 32` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from fleet import profiled
from probe_gpu import by_length, made

from plait import __version__
from plait.ops import swiglu_mlp
from plait.training.ensemble import Fleet

SLICE = 20  # steps between two looks at the clock


def prepared(name: str, device: str) -> tuple[Fleet, float]:
    """A fleet that has taken its first steps, and the seconds of these."""
    length, _, kind = name.partition(":")
    swiglu_mlp.ENABLED = kind == "fused"
    setting = max(by_length()[int(length)], key=lambda each: each.training.steps)
    fleet = made("attn", setting, device)
    begun = time.perf_counter()
    fleet.advance(2)
    wait(device)
    return fleet, time.perf_counter() - begun


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def run(index: int, options: argparse.Namespace, barrier: Any, found: Any) -> None:
    torch.set_float32_matmul_precision("high")
    names = options.fleets[index % len(options.fleets) :] + options.fleets[: index % len(options.fleets)]
    fleets = {}
    for name in names:
        fleets[name], seconds = prepared(name, options.device)
        if index == 0:
            found.put({"fleet": name, "first_step_seconds": round(seconds, 1)})
    for name in options.fleets:
        fleet = fleets[name]
        for processes in options.at_once:
            barrier.wait()
            if index >= processes:
                continue
            steps, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < options.seconds:
                fleet.advance(SLICE)
                wait(options.device)
                steps += SLICE
            rate = steps * len(fleet.alive) / (time.perf_counter() - begun)
            found.put({"fleet": name, "processes": processes, "process": index, "member_steps_per_second": rate})
        barrier.wait()
        if options.profile and index == 0:
            found.put({"fleet": name, "kernels": profiled(fleet, options.profile)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", nargs="*", default=["128", "128:fused", "256"])
    parser.add_argument("--at-once", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--profile", type=int, default=0, metavar="N")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a file to which rows are added")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, plait {__version__}", flush=True)
    context, most = multiprocessing.get_context("spawn"), max(options.at_once)
    barrier, found = context.Barrier(most), context.Queue()
    workers = [context.Process(target=run, args=(index, options, barrier, found)) for index in range(most)]
    for worker in workers:
        worker.start()
    rows: list[dict[str, Any]] = []
    while any(worker.is_alive() for worker in workers) or not found.empty():
        if any(worker.exitcode for worker in workers):
            barrier.abort()  # one that failed must not keep the others waiting
        with suppress(queue.Empty):
            rows.append(found.get(timeout=0.5))
            if "first_step_seconds" in rows[-1]:
                print(rows[-1], flush=True)
    if options.out:
        with open(options.out, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    for name in options.fleets:
        alone = None
        for processes in options.at_once:
            mine = [row for row in rows if row["fleet"] == name and row.get("processes") == processes]
            rates = [row["member_steps_per_second"] for row in mine]
            if not rates:
                continue
            alone = alone or sum(rates)
            print(
                f"{name:>10} tokens, {processes} at once: {sum(rates):7.0f} member-steps/s, {1e3 / sum(rates):.3f} ms "
                f"each, {sum(rates) / alone:.2f} of one alone",
                flush=True,
            )
        for row in rows:
            if row["fleet"] == name and "kernels" in row:
                print("\n".join(f"    {ms:.4f} {kernel}" for kernel, ms in row["kernels"]), flush=True)


if __name__ == "__main__":
    main()
