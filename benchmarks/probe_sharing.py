"""Several trainings of the MAD protocol on one GPU at once: member-steps per second of all of them together.

    [nvidia-cuda-mps-control -d;] python benchmarks/probe_sharing.py [--fleets 128 128:fused 256] [--at-once 1 2 3]
        [--mixed 128+256] [--seconds 3] [--profile 12] [--out ROWS]

A fleet is the attention and SwiGLU probe at one length of sequence, its six grid points stacked, and of a kind as
`probe_gpu.py` has them: 128:fused,packed. Every process compiles all of them, each in another order, so that one finds
in the cache what another compiled. Then each fleet is trained by one process alone and by several at the same time, and
mixed ones beside each other. Compare with and without MPS: without it, processes take turns on the GPU. `--profile N`
lists the N kernels that take longest. `--device cpu --seconds 1 --fleets 32` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import queue
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from fleet import profiled
from probe_gpu import by_length, made, use

from plait import __version__
from plait.training.ensemble import Fleet

SLICE = 5  # steps between two looks at the clock


def prepared(name: str, device: str) -> tuple[Fleet, float]:
    """A fleet that has taken its first steps, and the seconds of these."""
    length, _, kinds = name.partition(":")
    use(kinds or "plain")
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
    together = [(name, [name] * count) for name in options.fleets for count in options.at_once]
    for name, parts in together + [(mixed, mixed.split("+")) for mixed in options.mixed]:
        barrier.wait()
        if index < len(parts):
            rate = measured(fleets[parts[index]], options)
            found.put({"fleet": parts[index], "among": name, "processes": len(parts), "member_steps_per_second": rate})
    barrier.wait()
    if options.profile and index == 0:
        for name in options.fleets:
            found.put({"fleet": name, "kernels": profiled(fleets[name], options.profile)})


def measured(fleet: Fleet, options: argparse.Namespace) -> float:
    """Member-steps per second."""
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < options.seconds:
        fleet.advance(SLICE)
        wait(options.device)
        steps += SLICE
    return steps * len(fleet.alive) / (time.perf_counter() - begun)


def report(rows: list[dict[str, Any]]) -> None:
    """Every measurement, as shares of what each fleet does alone."""
    rates = [row for row in rows if "member_steps_per_second" in row]
    alone = {row["fleet"]: row["member_steps_per_second"] for row in rates if row["processes"] == 1}
    for name, processes in dict.fromkeys((row["among"], row["processes"]) for row in rates):
        mine = [row for row in rates if (row["among"], row["processes"]) == (name, processes)]
        parts = [(row["fleet"], row["member_steps_per_second"]) for row in mine]
        gain = sum(rate / alone.get(fleet, math.nan) for fleet, rate in parts)
        each = ", ".join(f"{fleet} {1e3 / rate:.3f} ms" for fleet, rate in parts)
        print(f"{name}, {processes} at once: {gain:.2f} of one alone ({each} per member-step)", flush=True)
    for row in rows:
        if "kernels" in row:
            print(row["fleet"], *(f"    {ms:.4f} {kernel}" for kernel, ms in row["kernels"]), sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", nargs="*", default=["128", "128:fused", "256"])
    parser.add_argument("--at-once", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--mixed", nargs="*", default=[], metavar="FLEET+FLEET", help="different ones at once")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--profile", type=int, default=0, metavar="N")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a file to which rows are added")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, plait {__version__}", flush=True)
    context = multiprocessing.get_context("spawn")
    most = max(*options.at_once, *(mixed.count("+") + 1 for mixed in options.mixed), 1)
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
            if "kernels" not in rows[-1]:
                print(
                    *(f"{value:.4g}" if isinstance(value, float) else value for value in rows[-1].values()), flush=True
                )
    if options.out:
        with open(options.out, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    report(rows)


if __name__ == "__main__":
    main()
