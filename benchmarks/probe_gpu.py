"""How long the full MAD protocol takes on a GPU: its fleets timed on every task and length of sequence, and all steps
added up.

    python benchmarks/probe_gpu.py [--mixers attn gla] [--tasks …] [--lengths 128 1024] [--steps 100] [--profile 9]
    python benchmarks/probe_gpu.py --learn SECONDS [--mixers attn] [--tasks in-context-recall …] [--out ROWS]

The 66 settings have six lengths (32 to 1,024 tokens) and 5,384,400 steps of one model in all. For each task and length
the longest-trained setting is timed as the protocol runs it, its six grid points as one fleet: milliseconds per
replica-step, seconds of an evaluation, seconds until the first step (compilation included). The projection is every
setting's steps and evaluations at these times, without early stops; compilation is listed apart, for another process
can do it meanwhile. `--learn` trains the fleets of the tasks' baseline settings for so long and says when
members have solved them, which is when the protocol stops. `--profile N` adds the N kernels that take longest. Rows of
JSON are added to the file of `--out`. Needs a CUDA device; `--device cpu --steps 1 --lengths 32` tries it without one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from fleet import profiled
from gpu_turn import TURN
from together import Turn, together

from plait import __version__
from plait.probing.protocol import Setting, full, parse_candidate
from plait.probing.trial import Trial
from plait.training import ensemble
from plait.training.ensemble import Fleet

PRESETS = {"attn": "mad-attn-swiglu", "hyena": "mad-hyena-swiglu", "gla": "mad-gla-swiglu", "mamba": "mad-mamba"}
Row = dict[str, Any]


def by_shape() -> dict[tuple[str, int], list[Setting]]:
    """Settings by task and length: how many positions are scored, and so what a step costs, differs between tasks."""
    shapes: dict[tuple[str, int], list[Setting]] = {}
    for setting in full().settings:
        shapes.setdefault((setting.task.name, setting.task.input_length), []).append(setting)
    return dict(sorted(shapes.items()))


def made(mixer: str, setting: Setting, device: str) -> Fleet:
    return Trial.of(parse_candidate(PRESETS[mixer], full()), setting, (0,), device).fleet()


def clocked(run: Any, device: str) -> float:
    begun = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(job: tuple[str, tuple[str, int], int, int, str, bool], turn: Turn) -> Row:
    mixer, shape, steps, kernels, device, whole = job
    if whole:
        ensemble.SCORED_SHARE = 0.0
    torch.set_float32_matmul_precision("high")
    setting = max(by_shape()[shape], key=lambda each: each.training.steps)
    fleet = made(mixer, setting, device)
    first = clocked(lambda: fleet.advance(2), device)
    with turn:
        fleet.score("validation")
        seconds = clocked(lambda: fleet.advance(steps), device)
        evaluation = clocked(lambda: fleet.score("validation"), device)
        longest = profiled(fleet, kernels) if kernels else []
    ms = 1e3 * seconds / steps / len(fleet.alive)
    return {"mixer": mixer, "tokens": shape[1], "whole": whole, "task": setting.task.name,
            "vocab": setting.task.model_vocab, "members": len(fleet.alive),
            "scored": fleet.batch(fleet._batch_rows(0))[1].shape[-1],
            "ms_per_member_step": ms, "evaluation_seconds": evaluation,
            "first_step_seconds": first, "kernels": longest}  # fmt: skip


def learn(job: tuple[str, str, float, str], turn: Turn) -> Row:
    """When members reach the accuracy at which the protocol stops them, looked at as often as it looks."""
    mixer, name, seconds, device = job
    torch.set_float32_matmul_precision("high")
    setting = next(each for each in full([name]).settings if each.task.settings() == _baseline(name))
    fleet = made(mixer, setting, device)
    deadline = time.perf_counter() + seconds
    accuracies: list[tuple[int, list[float]]] = []
    solved: dict[str, int] = {}
    while time.perf_counter() < deadline and fleet.step < fleet.plan.steps and not solved:
        with TURN.shared():  # others may time something meanwhile
            evaluation = fleet.plan.next_evaluation(fleet.step)
            fleet.advance(evaluation - fleet.step)
            if device != "cpu":
                torch.cuda.synchronize()
        if fleet.step == evaluation:
            with TURN.shared():
                accuracies.append((fleet.step, [round(x, 4) for x in fleet.score("validation")[0].tolist()]))
            print(mixer, name, *accuracies[-1], flush=True)
            for member, accuracy in zip(fleet.replicas, accuracies[-1][1], strict=True):
                if accuracy >= fleet.plan.solved:
                    solved.setdefault(f"lr {member.lr} decay {member.weight_decay}", fleet.step)
    return {"mixer": mixer, "task": name, "solved": solved, "steps": fleet.step, "of": fleet.plan.steps,
            "accuracies": accuracies}  # fmt: skip


def _baseline(name: str) -> Any:
    from plait.tasks import baseline

    return baseline(name).settings()


def projection(rows: list[Row]) -> str:
    """Minutes of the whole protocol, task by task, from the times of one mixer's fleets."""
    lines, whole = [], 0.0
    for row in sorted(rows, key=lambda each: (each["task"], each["tokens"])):
        settings = by_shape()[row["task"], row["tokens"]]
        steps = sum(len(each.training.grid) * each.training.steps for each in settings)
        looks = sum(len(each.training.evaluations) for each in settings)
        minutes = steps * row["ms_per_member_step"] / 6e4 + looks * row["evaluation_seconds"] / 60
        whole += minutes
        lines.append(
            f"    {row['task']}, {row['tokens']} tokens, {row['scored']} scored: "
            f"{len(settings)} settings, {steps:,} replica-steps at "
            f"{row['ms_per_member_step']:.3f} ms, {looks} evaluations of {row['evaluation_seconds']:.2f} s: "
            f"{minutes:.1f} minutes; first step after {row['first_step_seconds']:.0f} s"
        )
    known = {(row["task"], row["tokens"]) for row in rows}
    missing = [f"{name} {length}" for name, length in by_shape() if (name, length) not in known]
    left_out = f" (without {', '.join(missing)})" if missing else ""
    return "\n".join([f"{rows[0]['mixer']}: {whole:.0f} minutes without early stops{left_out}", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixers", nargs="*", default=["attn"], choices=list(PRESETS))
    parser.add_argument("--lengths", nargs="*", type=int, default=[length for _, length in by_shape()])
    parser.add_argument("--tasks", nargs="*", default=list(dict.fromkeys(name for name, _ in by_shape())))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--profile", type=int, default=0, metavar="N")
    parser.add_argument("--learn", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--whole", action="store_true", help="beside it, with positions computed that nobody scores")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a file to which rows are added")
    asked = parser.parse_args()
    name = "cpu" if asked.device == "cpu" else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, plait {__version__}", flush=True)
    if asked.learn:
        work: Any = learn
        jobs: list[Any] = [(m, task, asked.learn, asked.device) for m in asked.mixers for task in asked.tasks]
    else:
        work = measure
        shapes = [(name, length) for name, length in by_shape() if name in asked.tasks and length in asked.lengths]
        jobs = [(m, shape, asked.steps, asked.profile, asked.device, False) for m in asked.mixers for shape in shapes]
        jobs += [(*job[:-1], True) for job in jobs if asked.whole]
    rows: list[Row] = []
    for row in together(work, jobs):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if asked.out:
            with open(asked.out, "a") as file:
                file.write(json.dumps({"device": name, "torch": torch.__version__, **row}) + "\n")
    for mixer in asked.mixers:
        mine = [row for row in rows if row["mixer"] == mixer and "ms_per_member_step" in row and not row["whole"]]
        if mine:
            print(projection(mine), flush=True)


if __name__ == "__main__":
    main()
