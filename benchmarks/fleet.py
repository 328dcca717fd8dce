"""How fast a fleet is on a GPU, against the plain eager loop, in one run.

    python benchmarks/fleet.py [--replicas 6 24] [--steps 200] [--only attn gla] [--profile 10] [--out FILE.json]

The probe's models (two blocks of mixer and SwiGLU 512, four Mamba layers; width 128, bf16 autocast) on in-context
recall's shape, batch 128 × 128 tokens. For each: milliseconds per step of one model in the plain loop (eager, fused
AdamW), milliseconds per replica-step of a fleet, their ratio, and how far its loss is from the plain loop's after 20
steps. All fleets are compiled at once in processes of their own, then timed one by one. `--profile N` adds the N
kernels that take longest. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from together import Turn, together

from plait import __version__
from plait.device.model_bench import BATCH, BODIES, EARLY, TOKENS, fleet_data, made_fleet, plain_loop
from plait.training.ensemble import Fleet


def measure(job: tuple[str, int, int, int], turn: Turn) -> dict[str, Any]:
    """One row of the table: a fleet, and the plain loop beside it."""
    name, replicas, steps, kernels = job
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    split = fleet_data(device, BATCH, TOKENS)
    fleet = made_fleet(name, replicas, split, BATCH, device)
    start = time.perf_counter()
    fleet.advance(1)
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    with turn:
        loss = float(fleet.advance(EARLY - 1)[0])
        start = time.perf_counter()
        fleet.advance(steps)
        torch.cuda.synchronize()
        ms = 1e3 * (time.perf_counter() - start) / steps / replicas
        plain_ms, plain_loss = plain_loop(name, split, steps, BATCH, device)
        longest = profiled(fleet, kernels) if kernels else []
    return {
        "model": name, "replicas": replicas, "plain_ms": plain_ms, "fleet_ms_per_replica_step": ms,
        "ratio": plain_ms / ms, "compile_seconds": ready, "loss_gap": abs(loss - plain_loss), "kernels": longest,
    }  # fmt: skip


def profiled(fleet: Fleet, kernels: int, steps: int = 5) -> list[tuple[str, float]]:
    """The kernels that take longest, with milliseconds per replica-step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        fleet.advance(steps)
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.device_time_total)[:kernels]
    return [(row.key[:80], row.device_time_total / 1e3 / steps / len(fleet.alive)) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="*", default=[6, 24])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=list(BODIES))
    parser.add_argument("--profile", type=int, default=0, metavar="N")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, plait {__version__}")
    names = ("replicas", 8), ("plain ms", 9), ("fleet ms", 9), ("ratio", 6), ("compile s", 10), ("loss gap", 9)
    print(f"{'model':10}", *(f"{name:>{width}}" for name, width in names))
    jobs = [(name, replicas, asked.steps, asked.profile) for name in asked.only for replicas in asked.replicas]
    for row in together(measure, jobs):
        rows.append(row)
        print(f"{row['model']:10} {row['replicas']:8} {row['plain_ms']:9.2f} {row['fleet_ms_per_replica_step']:9.3f} "
              f"{row['ratio']:6.1f} {row['compile_seconds']:10.1f} {row['loss_gap']:9.1e}", flush=True)  # fmt: skip
        for kernel, ms in row["kernels"]:
            print(f"    {ms:.4f} {kernel}", flush=True)
    if asked.out:
        about = {"date": time.strftime("%Y-%m-%d"), "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                 "plait": __version__, "steps": asked.steps}  # fmt: skip
        asked.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
