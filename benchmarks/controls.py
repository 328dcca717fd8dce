"""Which small model solves which task: a control for every task of the suites beside MAD's, on one core in minutes.

    python benchmarks/controls.py [NAME …] [--seeds 2] [--out FILE.jsonl]
    python benchmarks/controls.py page FILE.jsonl --out FILE.md

A score near chance says something about a mixer only if some model of that size solves the task. A case (`CASES`) is a
task at the smallest setting that still asks for what the task is about, and a model that should solve it there: AdamW
without weight decay, the rate falling to 0 along a cosine; where every prefix of a sequence is one of the task's, short
ones come first. A seed stops when 99 % of 256 validation sequences' answers are right (of `ceiling`, where a task has
one), and is scored on 256 other sequences. Neither occurs in training. Solved: a mean over seeds of 0.95 or more of the
ceiling. `plait list tasks` names the controls that solve (`plait.tasks.controls`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tracking import split

from plait.model.architecture import architecture
from plait.model.cost import decoder_params
from plait.probing.protocol import curriculum
from plait.records import provenance_of
from plait.tasks import baseline, chance, make_data
from plait.training.ensemble import Fleet
from plait.training.ensemble_plan import Plan, Replica

SOLVED, STOP = 0.95, 0.99
EVALUATION, LOOKS = 256, 100  # sequences, and steps between two evaluations
#: Causal convolutions of width 4 before the mixer and inside it let one layer see the token before.
LOOKING = "d=64 vocab={vocab} init=0.1 embed_scale=true | (attn[heads=2,canon=ab] swiglu[inner=128])x2"
DEEP = "d=64 vocab={vocab} init=0.1 embed_scale=true | (attn[heads=4] swiglu[inner=128])x4"
WIDE = "d=128 vocab={vocab} init=0.05 embed_scale=true | (attn[heads=4] swiglu[inner=256])x2"


@dataclasses.dataclass(frozen=True)
class Case:
    task: str
    settings: dict[str, str]
    spec: str
    steps: int = 3000
    batch: int = 32
    lr: float = 3e-3


CASES: dict[str, Case] = {
    "copy": Case("copy", {"vocab": "8", "length": "24"}, LOOKING),
    "stack": Case("stack", {"vocab": "8", "length": "48", "stacks": "4"}, LOOKING),
    "phonebook": Case("phonebook", {"vocab": "64", "length": "32", "digits": "3"}, LOOKING),
    "markov": Case("markov", {"vocab": "5", "length": "64"}, LOOKING),
    "modular-arithmetic": Case("modular-arithmetic", {"vocab": "3", "length": "12"}, DEEP, 3000, 128, 2e-3),
    "brackets": Case("modular-arithmetic", {"vocab": "3", "length": "14", "brackets": "1"}, DEEP, 4000, 128, 2e-3),
    "mano": Case("mano", {"vocab": "2", "length": "10", "train_size": "40000"}, DEEP, 3000, 128, 2e-3),
    "mano-3": Case("mano", {"vocab": "3", "length": "8", "train_size": "40000"}, DEEP, 4000, 128, 2e-3),
    "A5": Case("word-problem", {"length": "4", "group": "A5", "train_size": "100000"}, WIDE, 4000, 256, 1e-3),
    "S5": Case("word-problem", {"length": "4", "group": "S5", "train_size": "200000"}, WIDE, 5000, 256, 1e-3),
}


def run(name: str, case: Case, seeds: int) -> dict[str, Any]:
    task = baseline(case.task).with_settings(case.settings)
    began, worked = time.perf_counter(), time.process_time()
    data = [make_data(task, seed, evaluation=EVALUATION) for seed in range(seeds)]
    arch = architecture(case.spec.format(vocab=task.model_vocab))
    ceiling = float(np.mean([one.ceiling for one in data]))
    fleet = Fleet(
        arch,
        [Replica(case.lr, 0.0, seed, seed) for seed in range(seeds)],
        Plan(case.steps, case.batch, LOOKS, solved=STOP * ceiling, curriculum=curriculum(task)),
        *(split([one.split(part) for one in data]) for part in ("train", "validation", "test")),
    )
    shown = 0
    while fleet.step < case.steps and fleet.alive:
        fleet.run(until=min(case.steps, fleet.step + LOOKS))
        if fleet.step >= shown + 500 or not fleet.alive:
            shown = fleet.step
            last = " ".join(f"{record.validation[-1][1]:.3f}" for record in fleet.records)
            print(f"{name} {shown} {last} {time.process_time() - worked:.0f} CPU s", flush=True)
    return {
        "name": name,
        "task": case.task,
        "settings": case.settings,
        "spec": arch.text,
        "params": decoder_params(arch),
        "steps": [record.steps for record in fleet.records],
        "of": case.steps,
        "batch": case.batch,
        "lr": case.lr,
        "accuracy": [record.test[0] if record.test else 0.0 for record in fleet.records],
        "chance": chance(data[0].test),
        "ceiling": ceiling,
        "cpu_seconds": round(time.process_time() - worked, 1),
        "provenance": provenance_of(time.time(), time.perf_counter() - began),
    }


def page(rows: list[dict[str, Any]]) -> str:
    first = rows[0]["provenance"]
    lines = [
        "# Which small model solves which task",
        "",
        f"`python benchmarks/controls.py`, one core of {first['cpu']}, torch {first['torch']}, plait {first['plait']}.",
        "",
        *str(__doc__).split("\n\n")[2].strip().splitlines(),
        "",
        "| task | setting | control | steps | batch | lr | accuracy, by seed | chance | ceiling | CPU s | solved |",
        "|---|---|---|---|---:|---:|---|---:|---:|---:|---|",
    ]
    for row in rows:
        setting = " ".join(f"{key}={value}" for key, value in row["settings"].items())
        accuracy = ", ".join(f"{one:.3f}" for one in row["accuracy"])
        steps, spec = ", ".join(map(str, row["steps"])), row["spec"].replace("|", r"\|")
        lines.append(
            f"| {row['task']} | {setting} | `{spec}` | {steps} | {row['batch']} | {row['lr']:g} | {accuracy} "
            f"| {row['chance']:.2f} | {row['ceiling']:.2f} | {row['cpu_seconds']:.0f} "
            f"| {'yes' if solved(row) else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def solved(row: dict[str, Any]) -> bool:
    return bool(np.mean(row["accuracy"]) >= SOLVED * row["ceiling"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.names[:1] == ["page"]:
        lines = Path(given.names[1]).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line]
        given.out.write_text(page(rows), encoding="utf-8")
        return
    torch.set_num_threads(1)
    for name in given.names or CASES:
        row = run(name, CASES[name], given.seeds)
        print(json.dumps({key: value for key, value in row.items() if key != "provenance"}), flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
