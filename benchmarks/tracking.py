"""State tracking and recall at equal state: which mixers keep a parity, follow a group and recall pairs.

    python benchmarks/tracking.py SET [--only MIXER] [--steps 800] [--seeds 3] [--lrs 1e-3/3e-3] [--out FILE.jsonl]
    python benchmarks/tracking.py page FILE.jsonl … --out FILE.md

A set is a task, its sizes, the mixers that run on it and their training (`tracking_sets.py`). Where every prefix of a
sequence is one of the task's, an eighth of the length comes first, then a quarter, then half
(`plait.probing.protocol.CURRICULUM`). Scored are new sequences 1, 2, 4 and 8 times as long as in training.

With several learning rates every seed is trained with each, and the one whose mean over the seeds is the best on the
validation split is told. On a GPU `--path` says how a step is run (`captured`: as one graph, not compiled) and
`--until` (seconds since 1970) when to be done: a few steps are timed, and as many taken as there is time for. The sets
called `learn-…` show whether some small model learns every task of the suites.

What is expected: Grazzi et al. 2024, arXiv:2411.12537 (parity needs a negative eigenvalue); Siems et al. 2025,
arXiv:2502.10297 (S3 in one layer needs two steps); Arora et al. 2023, arXiv:2312.04927 (recall grows with the state).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tracking_page import page
from tracking_sets import SETS

from plait.model.architecture import architecture
from plait.model.cost import decoder_params, total_state
from plait.ops.paths import plain_ops
from plait.probing.protocol import curriculum
from plait.records import provenance_of
from plait.tasks import Examples, Task, TaskData, baseline, chance, draw, make_data
from plait.tasks.data import BLOCK, unseen
from plait.tasks.task import stream
from plait.training import ensemble, ensemble_step
from plait.training.ensemble import Fleet, Split
from plait.training.ensemble_plan import Plan, Replica, ReplicaRecord
from plait.training.ensemble_step import Stepper

FIT, SCORING = 40, 10.0  # timed steps; seconds kept for the scores at the end
REFIT = 15.0  # seconds between two looks at how many steps there is time for
CHECKED = 25  # steps between looks at the clock
EVALUATIONS = 20  # of a training, on the validation split
SELECTION = "4, validation"
HIDDEN = ("provenance", "replicas", "spec", "task")  # in the file, not on the screen


def split(examples: list[Examples]) -> Split:
    several = examples[0].allowed_NTK is not None
    parts = ("inputs_NT", "targets_NT", *(["allowed_NTK"] if several else []))
    return Split(*(torch.from_numpy(np.stack([getattr(e, part) for e in examples])) for part in parts))


def block(task: Task, seed: int, number: int) -> Examples:
    return task.generate(stream(task.as_dict(), seed, "train", number), BLOCK, training=True)


def drawn(task: Task, seed: int, evaluation: int, processes: int) -> TaskData:
    """What `make_data` draws, its training sequences by several processes."""
    if processes == 1:
        return make_data(task, seed, evaluation=evaluation)
    task = task.seeded(seed)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        blocks = pool.starmap(block, [(task, seed, number) for number in range(-(-task.train_size // BLOCK))])
    parts = ("inputs_NT", "targets_NT")
    train = Examples(*(np.concatenate([getattr(one, part) for one in blocks])[: task.train_size] for part in parts))
    validation = unseen(task, seed, "validation", evaluation, [train])
    test = unseen(task, seed, "test", evaluation, [train, validation])
    return TaskData(task, seed, train, validation, test, task.ceiling(train, test))


class Compiled(Fleet):
    """The product's own path; replicas that have stopped stay in the graph, since another would be compiled anew."""

    def _compact(self) -> None:
        pass


class Eager(Fleet):
    """Step by step, without a compiled graph, for what cannot be captured."""

    def _make_stepper(self) -> Stepper:
        made = super()._make_stepper()
        made.captured = False
        return made


class Captured(Fleet):
    """One graph of our kernels and torch's operations, all replicas at once: no compiler to wait for."""

    def _make_stepper(self) -> Stepper:
        made = super()._make_stepper()
        made._compiled = False
        return made


class Plain(Captured):
    """The same of plain operations: torch's fused attention goes through stacked replicas one by one."""

    def advance(self, steps: int) -> torch.Tensor:
        with plain_ops():
            return super().advance(steps)


class OneByOne(Fleet):
    """The same, replicas one after the other."""

    def _make_stepper(self) -> Stepper:
        super()._make_stepper()
        return Stepper(self, compiled=False)


PATHS: dict[str, type[Fleet]] = {
    "compiled": Compiled,
    "captured": Captured,
    "plain": Plain,
    "one-by-one": OneByOne,
    "eager": Eager,
}


def run(
    name: str, mixer: str, given: argparse.Namespace, kind: type[Fleet], until: float | None, deadline: float | None
) -> dict[str, Any]:
    """Accuracies by length, one per seed, at the best learning rate and weight decay. `until`: train for fewer steps
    than the set's if that is what the time is enough for. `deadline`: what is not done then is scored as it is."""
    chosen = SETS[name]
    task = baseline(chosen.task).with_settings(chosen.settings)
    seeds, steps = range(given.first_seed, given.first_seed + given.seeds), given.steps or chosen.steps
    points = [(lr, decay) for lr in given.lrs or chosen.lrs or (chosen.lr,) for decay in given.decays or chosen.decays]
    data = [drawn(task, seed, chosen.evaluation, given.processes) for seed in seeds]
    longer = {
        str(n): split([draw(task.longer(n), seed, "test", chosen.evaluation) for seed in seeds]) for n in chosen.lengths
    }
    # Rates are chosen on other sequences than the ones reported, at the length that is asked about.
    selection = {SELECTION: split([draw(task.longer(4), seed, "validation", chosen.evaluation) for seed in seeds])}
    others = longer | (selection if 4 in chosen.lengths and task.prefixes else {})
    arch = architecture(chosen.spec.format(vocab=task.model_vocab, mixer=mixer))
    stages = curriculum(task) if chosen.short_first else ()
    plan = Plan(steps, chosen.batch, -(-steps // EVALUATIONS), solved=chosen.solved or 2.0, curriculum=stages)
    began, worked = time.perf_counter(), time.process_time()
    fleet = kind(
        arch,
        [Replica(lr, decay, seed, data) for lr, decay in points for data, seed in enumerate(seeds)],
        plan,
        *(split([one.split(part) for one in data]) for part in ("train", "validation", "test")),
        device=given.device,
        others=others,
    )
    if until and steps > 4 * FIT:
        fit_steps(fleet, until, steps)
        print(f"{name} {mixer}: {fleet.plan.steps} steps from {time.perf_counter() - began:.0f} s on", flush=True)
    records = trained(fleet, deadline, (until, steps) if until else None)
    by_point = {
        point: [record for record in records if (record.replica.lr, record.replica.weight_decay) == point]
        for point in points
    }
    means = {point: float(np.mean([selected_by(record) for record in some])) for point, some in by_point.items()}
    best = max(means, key=lambda point: means[point])
    records = by_point[best]
    found = {"1": [record.test[0] if record.test else 0.0 for record in records]}
    return {
        "set": name,
        "task": {"task": chosen.task, **chosen.settings},
        "mixer": mixer,
        "seeds": list(seeds),
        "steps": fleet.step,
        "of": fleet.plan.steps,
        "batch": chosen.batch,
        "lr": best[0],
        "weight_decay": best[1],
        "validation by point": [[*point, mean] for point, mean in means.items()],
        "replicas": [
            {
                "lr": record.replica.lr,
                "weight_decay": record.replica.weight_decay,
                "seed": record.replica.seed,
                "steps": record.steps,
                "solved after": next((step for step, right, _ in record.validation if right >= plan.solved), None),
                "training loss": record.losses[-1][1] if record.losses else None,
                "validation": [[step, round(accuracy, 4)] for step, accuracy, _ in record.validation],
                "accuracy": {"1": record.test[0] if record.test else 0.0, **record.others},
            }
            for some in by_point.values()
            for record in some
        ],
        "spec": chosen.spec,
        "exact": {n: [record.exact[n] for record in records] for n in ("test", *longer)},
        "params": decoder_params(arch),
        "state": total_state(arch),
        "accuracy": {**found, **{n: [record.others[n] for record in records] for n in longer}},
        "chance": chance(data[0].test),
        "ceiling": {n: task.longer(int(n)).ceiling(data[0].train, data[0].test) for n in ("1", *longer)},
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - worked, 1),
        "path": next(path for path, one in PATHS.items() if one is kind) if fleet.device.type == "cuda" else "eager",
        "provenance": provenance_of(time.time(), time.perf_counter() - began),
    }


def selected_by(record: ReplicaRecord) -> float:
    """Validation accuracy: at four times the length of training where that is what a set asks about."""
    return record.others.get(SELECTION, record.validation[-1][1])


def trained(fleet: Fleet, deadline: float | None, fit: tuple[float, int] | None = None) -> list[ReplicaRecord]:
    """To the end of the plan, or scored as it is when the time is up: a process that is killed in the middle of a
    kernel takes all others that share the GPU with it. `fit`: when the plan should end, and the most steps it may have;
    others come and go on a shared GPU, so that its length is found out on the way."""
    looked, taken = time.time(), fleet.step
    while fleet.step < fleet.plan.steps and any(record.stopped == "running" for record in fleet.records):
        if deadline and time.time() > deadline:
            fleet._evaluate(torch.zeros(len(fleet.alive)))
            fleet._finish(range(len(fleet.alive)), "out of time")
            return fleet.records
        fleet.run(until=fleet.step + CHECKED)
        if fleet.device.type == "cuda":
            torch.cuda.synchronize()
        if fit and time.time() > looked + REFIT and fleet.step < fleet.plan.steps:
            each = (time.time() - looked) / (fleet.step - taken)
            looked, taken = time.time(), fleet.step
            plan_steps(fleet, fleet.step + int((fit[0] - looked - SCORING) / each), fit[1])
    return fleet.records


def fit_steps(fleet: Fleet, until: float, most: int) -> None:
    """Set the plan's steps to what there is time for, `most` at most."""
    fleet.advance(FIT)
    float(fleet.params[next(iter(fleet.params))].sum())
    began = time.perf_counter()
    fleet.advance(FIT)
    float(fleet.params[next(iter(fleet.params))].sum())
    each = (time.perf_counter() - began) / FIT
    plan_steps(fleet, fleet.step + int((until - time.time() - SCORING) / each), most)
    fleet.plan = dataclasses.replace(fleet.plan, eval_at=(), eval_every=-(-fleet.plan.steps // EVALUATIONS))


def plan_steps(fleet: Fleet, steps: int, most: int) -> None:
    """Let the learning rate fall to 0 at this step, `most` at most; it goes on where it is."""
    steps = min(most, max(fleet.step + FIT, steps))
    fleet.plan = dataclasses.replace(fleet.plan, steps=steps)
    fleet._steps.fill_(float(steps))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("sets", nargs="+", metavar="SET", help=f"page FILE …, or of {', '.join(SETS)}")
    asked.add_argument("--only", action="append")
    asked.add_argument("--steps", type=int)
    asked.add_argument("--lrs", type=lambda text: tuple(float(one) for one in text.split("/")))
    asked.add_argument("--decays", type=lambda text: tuple(float(one) for one in text.split("/")))
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--until", type=float, help="seconds since 1970: trainings are as long as there is time for")
    asked.add_argument("--deadline", type=float, help="seconds since 1970: what is not done then is scored as it is")
    asked.add_argument(
        "--precision", choices=("fp32", "tf32", "bf16"), default="fp32", help="of matrix products on a GPU"
    )
    asked.add_argument("--path", choices=list(PATHS), default="compiled", help="on a GPU")
    asked.add_argument("--processes", type=int, default=1, help="that draw the training sequences")
    asked.add_argument("--where", default="")
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    if given.sets[0] == "page":
        lines = [
            line for file in given.sets[1:] for line in Path(file).read_text(encoding="utf-8").splitlines() if line
        ]
        text = page([json.loads(line) for line in lines])
        given.out.write_text(text, encoding="utf-8") if given.out else print(text)
        return
    torch.set_num_threads(1)
    # No bf16 by default: of an angle that it rounds, 64 turns are off by most of a radian.
    torch.set_float32_matmul_precision("highest" if given.precision == "fp32" else "high")
    if given.precision != "bf16":
        ensemble.precision = ensemble_step.precision = lambda device: torch.autocast(device.type, enabled=False)
    trainings = [(name, mixer) for name in given.sets for mixer in given.only or SETS[name].mixers]
    for i, (name, mixer) in enumerate(trainings):
        if given.deadline and time.time() > given.deadline - 2 * SCORING:
            print(f"no time left for {name} {mixer}", flush=True)
            continue
        until, deadline = (_share(end, len(trainings) - i) for end in (given.until, given.deadline))
        row = run(name, mixer, given, PATHS[given.path], until, deadline)
        row["where"] = given.where
        print(json.dumps({key: value for key, value in row.items() if key not in HIDDEN}), flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _share(end: float | None, trainings: int) -> float | None:
    """When the first of several trainings has to be done that share the time up to `end`."""
    return time.time() + (end - time.time()) / trainings if end else None


if __name__ == "__main__":
    main()
