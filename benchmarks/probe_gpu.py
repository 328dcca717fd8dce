"""The probe's baseline settings as fleets on a GPU, and what the full protocol would take.

    python benchmarks/probe_gpu.py [--mixers attn gla] [--tasks in-context-recall …] [--steps 200] [--learn SECONDS]
                                   [--out FILE.json]

For each architecture and task: the six grid points (learning rate × weight decay) as one fleet at the task's baseline
setting; milliseconds a member-step, seconds until the first step (compilation included), and the best validation
accuracy after `--steps`. The projection multiplies the 66 settings' optimizer steps by the measured time, scaled by
tokens a step, without early stops and without compilation. `--learn` trains each fleet on for so long and says when its
members have solved their task, where the protocol stops them. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from together import Turn, together

from plait import __version__
from plait.model.architecture import Architecture, architecture
from plait.tasks import baseline, make_data, names
from plait.training.ensemble import Fleet, Member, Plan, Split

PRESETS = {"attn": "mad-attn-swiglu", "hyena": "mad-hyena-swiglu", "gla": "mad-gla-swiglu", "mamba": "mad-mamba"}
GRID = [Member(lr, decay, seed=0) for lr in (1e-4, 5e-4, 1e-3) for decay in (0.0, 0.1)]
EPOCHS, BATCH, SOLVED = 200, 128, 0.999


def measure(job: tuple[str, str, int, float], turn: Turn) -> dict[str, Any]:
    mixer, name, steps, learn = job
    torch.set_float32_matmul_precision("high")
    task = baseline(name)
    data = make_data(task, seed=0)
    arch = architecture(PRESETS[mixer])
    arch = Architecture(replace(arch.header, vocab=task.model_vocab, kind=task.model_kind), arch.layers)
    splits = [
        Split(torch.from_numpy(examples.inputs_NT)[None], torch.from_numpy(examples.targets_NT)[None])
        for examples in (data.train, data.validation, data.test)
    ]
    total = EPOCHS * -(-task.train_size // BATCH)
    fleet = Fleet(arch, GRID, Plan(steps=total, batch=BATCH, eval_every=total), *splits, device="cuda")
    start = time.perf_counter()
    fleet.advance(2)
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    with turn:
        start = time.perf_counter()
        fleet.advance(steps)
        torch.cuda.synchronize()
        ms = 1e3 * (time.perf_counter() - start) / steps / len(GRID)
        accuracy, _ = fleet.score("validation")
        solved = solved_at(fleet, learn) if learn else {}
    projected = sum(
        len(GRID) * EPOCHS * -(-s.train_size // BATCH) * ms * s.input_length / task.input_length for s in task.grid()
    )
    return {"mixer": mixer, "task": name, "ms_a_member_step": ms, "seconds_to_first_step": ready, "steps": steps,
            "best_accuracy": float(accuracy.max()), "projected_full_minutes": projected / 6e4,
            "trained_steps": fleet.step, "of_steps": total, "solved_at": solved}  # fmt: skip


def solved_at(fleet: Fleet, seconds: float) -> dict[str, int]:
    """After how many steps members reach the accuracy at which the protocol stops them, looking every tenth epoch."""
    found: dict[str, int] = {}
    every = fleet.plan.steps // 20
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline and fleet.step + every <= fleet.plan.steps and len(found) < len(GRID):
        fleet.advance(every - fleet.step % every)
        for member, accuracy in zip(GRID, fleet.score("validation")[0].tolist(), strict=True):
            if accuracy >= SOLVED:
                found.setdefault(f"lr {member.lr} decay {member.weight_decay}", fleet.step)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixers", nargs="*", default=list(PRESETS))
    parser.add_argument("--tasks", nargs="*", default=names())
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learn", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, plait {__version__}")
    jobs = [(mixer, name, asked.steps, asked.learn) for mixer in asked.mixers for name in asked.tasks]
    for row in together(measure, jobs):
        rows.append(row)
        print(
            f"{row['mixer']:6} {row['task']:24} {row['ms_a_member_step']:7.3f} ms a member-step, first after "
            f"{row['seconds_to_first_step']:5.1f} s, accuracy {row['best_accuracy']:.3f}",
            flush=True,
        )
        if asked.learn:
            print(f"    solved after {row['solved_at']} in {row['trained_steps']} of {row['of_steps']}", flush=True)
    for mixer in asked.mixers:
        minutes = sum(row["projected_full_minutes"] for row in rows if row["mixer"] == mixer)
        print(f"{mixer:6} {len(asked.tasks)} tasks, full protocol: {minutes:.0f} minutes at most", flush=True)
    if asked.out:
        about = {"date": time.strftime("%Y-%m-%d"), "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                 "plait": __version__}  # fmt: skip
        asked.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
