"""A trial: one architecture on one task setting, with one or more seeds; and a prediction of how long it takes.

Each seed has its own data set and a run for every point of the grid; the best of these by validation accuracy (ties:
lower validation loss) is scored on the test split. All runs of a trial are one fleet: at these sizes most of a step is
spent on launching operations, so three seeds cost little more than one.

A trial is plain data that can be sent to worker processes; its result is stored under its key.

A step of a fleet takes a fixed time (every operation is launched once, however many replicas it serves) plus a time for
each token of each replica. `Speed` fits these two numbers for every architecture to a few timed steps of different
sizes. A step of the paper's protocol would take a minute on a CPU, so smaller batches are timed there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from plait.model.architecture import Architecture, architecture
from plait.probing.protocol import VERSION, Candidate, Protocol, Setting, Training
from plait.records import record_key
from plait.tasks import Examples, Task, TaskData, chance, draw, load_task, macro_accuracy, make_data, metric

if TYPE_CHECKING:
    from plait.training.ensemble import Fleet, Split
    from plait.training.ensemble_plan import ReplicaRecord


KIND = "probe"


class FleetProgress(TypedDict):
    """The progress of a trial's fleet."""

    step: int
    seconds: float
    alive: int  # replicas still in training
    accuracy: float | None  # the best on the validation split; None before the first evaluation


class LongerScores(TypedDict, total=False):
    """Scores on longer sequences, by how many times as long they are."""

    chance: float
    lengths: dict[str, float]
    exact: dict[str, float]  # fraction of sequences without a mistake
    note: str


class SeedResult(LongerScores):
    """The stored result of one seed: the test scores of the selected run."""

    seed: int
    ceiling: float
    accuracy: float
    loss: float | None
    chosen: int | None  # the selected replica; None: all diverged


class ReplicaResult(TypedDict):
    """The stored result of one run of the grid: its curves, with null for non-finite numbers."""

    seed: int
    lr: float
    weight_decay: float
    steps: int
    stopped: str
    losses: list[list[float | None]]  # of [step, loss]
    validation: list[list[float | None]]  # of [step, accuracy, loss]
    test: list[float | None] | None  # [accuracy, loss]


class TrialResult(TypedDict):
    """The stored result of a trial."""

    accuracy: float
    seeds: list[SeedResult]
    replicas: list[ReplicaResult]


@dataclass(frozen=True)
class Trial:
    candidate: str  # the architecture's name, for display; not part of the result's identity
    spec: str
    source: str  # hashes of users' mixers, if there are any
    task_given: str
    settings: tuple[tuple[str, Any], ...]
    seeds: tuple[int, ...]
    training: Training
    device: str = "cpu"

    @classmethod
    def of(cls, candidate: Candidate, setting: Setting, seeds: tuple[int, ...], device: str = "cpu") -> Trial:
        """The architecture with the vocabulary and the kind of model that the task needs."""
        task = setting.task
        header = candidate.arch.header.replace({"vocab": task.model_vocab, "kind": task.model_kind})
        arch = Architecture(header, candidate.arch.layers)
        return cls(
            candidate.name, arch.text, candidate.source, setting.given, tuple(task.settings().items()), seeds,
            setting.training, device,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, object]:
        """Leave the cached task, whose class may come from a user's file, and its data out of the pickle."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @cached_property
    def task(self) -> Task:
        return load_task(self.task_given).with_settings({name: str(value) for name, value in self.settings})

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Everything that determines the result. fp32 and bf16 differ in the third digit, so the precision is
        included."""
        from plait.ops.paths import precision_on

        return {
            "protocol": VERSION,
            "spec": self.spec,
            "mixer": self.source,
            "task": self.task.as_dict(),
            "seeds": list(self.seeds),
            "training": self.training.as_dict(),
            "precision": precision_on(self.device),
        }

    @cached_property
    def key(self) -> str:
        return record_key(KIND, self.config)

    def fleet(self) -> Fleet:
        """The trial's fleet, untrained."""
        from plait.training.ensemble import Fleet
        from plait.training.ensemble_plan import Plan, Replica

        t = self.training
        replicas = [
            # Every run has its own initial weights: another initialisation is as likely to help as another learning
            # rate.
            Replica(lr, decay, seed * len(t.grid) + i, data)
            for data, seed in enumerate(self.seeds)
            for i, (lr, decay) in enumerate(t.grid)
        ]
        never = 2.0  # no accuracy reaches it
        solved = never if t.solved is None else t.solved
        plan = Plan(
            t.steps, t.batch, eval_at=t.evaluations, solved=solved, first_ends=t.first_ends, halving=t.halving,
            patience=t.patience, curriculum=t.curriculum,
        )  # fmt: skip
        splits = [_split(self.data, name) for name in ("train", "validation", "test")]
        accuracy = metric(self.task.variant)
        # The fleet counts correct tokens itself, on its device.
        return Fleet(
            architecture(self.spec), replicas, plan, *splits, device=self.device,
            metric=accuracy if accuracy is macro_accuracy else None, others=self.longer(),
        )  # fmt: skip

    def longer(self) -> dict[str, Split]:
        """Longer test sequences, by the factor as text."""
        t = self.training
        tasks = {str(factor): self.task.longer(factor) for factor in t.lengths}
        return {
            factor: _stacked([draw(task.seeded(seed), seed, "test", t.evaluation) for seed in self.seeds])
            for factor, task in tasks.items()
        }

    @cached_property
    def data(self) -> list[TaskData]:
        """One data set per seed."""
        return [make_data(self.task, seed, evaluation=self.training.evaluation) for seed in self.seeds]


def _split(data: Sequence[TaskData], name: str) -> Split:
    return _stacked([task_data.split(name) for task_data in data])


def _stacked(examples: Sequence[Examples]) -> Split:
    import torch

    from plait.training.ensemble import Split

    parts = _PARTS if examples[0].allowed_NTK is not None else _PARTS[:2]
    return Split(*(torch.from_numpy(np.stack([getattr(e, part) for e in examples])) for part in parts))


_PARTS = ("inputs_NT", "targets_NT", "allowed_NTK")


def result(trial: Trial, records: Sequence[ReplicaRecord]) -> TrialResult:
    """The result of a trained trial as plain JSON, with null for non-finite numbers."""
    seeds: list[SeedResult] = []
    for data, seed in enumerate(trial.seeds):
        mine = [i for i, record in enumerate(records) if record.replica.data == data]
        accuracy, loss, chosen = _selected(records, mine)
        seed_result: SeedResult = {
            "seed": seed,
            "ceiling": trial.data[data].ceiling,
            "accuracy": accuracy,
            "loss": loss,
            "chosen": chosen,
        }
        if chosen is None:
            seed_result["note"] = "every replica diverged"
        if trial.training.lengths:
            seed_result["chance"] = chance(trial.data[data].test)
            factors = [str(factor) for factor in trial.training.lengths]
            seed_result["lengths"] = {f: 0.0 if chosen is None else records[chosen].others[f] for f in factors}
            whole = {} if chosen is None else records[chosen].exact
            seed_result["exact"] = {f: whole.get("test" if f == "1" else f, 0.0) for f in ("1", *factors)}
        seeds.append(seed_result)
    return {
        "accuracy": sum(seed_result["accuracy"] for seed_result in seeds) / len(seeds),
        "seeds": seeds,
        "replicas": [_described(record, trial.seeds) for record in records],
    }


def _selected(records: Sequence[ReplicaRecord], replicas: Sequence[int]) -> tuple[float, float | None, int | None]:
    """Test accuracy and loss of the best of these replicas, and its index; None if all diverged. One that was stopped
    because it was behind is not the best, even if the best one was worse in the end than the other at its stop, unless
    all others diverged."""
    alive = [i for i in replicas if records[i].stopped != "diverged"]
    ahead = [i for i in alive if records[i].stopped != "behind"] or alive
    place = best([records[i].validation[-1][1:] if i in ahead else None for i in replicas])
    if place is None:
        return 0.0, None, None
    accuracy, loss = records[replicas[place]].test or (0.0, math.nan)
    return accuracy, _finite(loss), replicas[place]


def _described(record: ReplicaRecord, seeds: Sequence[int]) -> ReplicaResult:
    return {
        "seed": seeds[record.replica.data],
        "lr": record.replica.lr,
        "weight_decay": record.replica.weight_decay,
        "steps": record.steps,
        "stopped": record.stopped,
        "losses": [[step, _finite(loss)] for step, loss in record.losses],
        "validation": [[step, accuracy, _finite(loss)] for step, accuracy, loss in record.validation],
        "test": None if record.test is None else [record.test[0], _finite(record.test[1])],
    }


def best(validation: Sequence[tuple[float, float] | None]) -> int | None:
    """The index of the selected grid point: the highest validation accuracy, then the lowest loss; diverged ones are
    None."""
    alive = [
        (scores[0], -scores[1] if math.isfinite(scores[1]) else -math.inf, -i)  # NaN cannot be ordered
        for i, scores in enumerate(validation)
        if scores is not None
    ]
    return -max(alive)[2] if alive else None


def checkpoint_path(folder: Path, key: str) -> Path:
    return folder / key / "fleet.safetensors"


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


MANY_SEEDS = 3
MOST_TOKENS = 2**13  # most tokens in a timed step on a CPU


def to_time(candidates: Sequence[Candidate], protocol: Protocol, device: str) -> list[Trial]:
    """The trials to time: each architecture on its shortest sequences with one seed, and on its longest with one and
    with several."""
    timed = []
    for candidate in candidates:
        trials = [Trial.of(candidate, setting, (0,), device) for setting in protocol.settings]
        short, long = min(trials, key=tokens), max(trials, key=tokens)
        several = replace(long, seeds=tuple(range(MANY_SEEDS)))
        if tokens(several) <= MOST_TOKENS:
            timed += list(dict.fromkeys((short, long, several)))
        elif device == "cpu":
            timed += [_smaller(short, MOST_TOKENS // 4), _smaller(long, MOST_TOKENS)]
        else:
            timed += [short, long]
    return timed


def _smaller(trial: Trial, most: int) -> Trial:
    """The trial with smaller batches, so that a step has at most `most` tokens."""
    per_sequence = tokens(trial) // trial.training.batch
    batch = max(1, min(trial.training.batch, most // per_sequence))
    return replace(trial, training=replace(trial.training, batch=batch))


def tokens(trial: Trial) -> int:
    """Tokens per step of a trial, over all replicas."""
    return len(trial.training.grid) * len(trial.seeds) * trial.training.batch * trial.task.input_length


def all_tokens(trial: Trial) -> int:
    """Tokens of all its steps, if no replica stops early."""
    return tokens(trial) * trial.training.steps


@dataclass(frozen=True)
class Speed:
    """Predicts a trial's seconds from a linear model of its architecture: a fixed time per step plus a time per
    token."""

    lines: Mapping[str, tuple[float, float]]  # by the architecture's name

    @classmethod
    def measured(cls, timed: Sequence[Trial], seconds: Mapping[str, float]) -> Speed:
        """From the seconds of a step of each trial, by key."""
        lines = {}
        for name in dict.fromkeys(trial.candidate for trial in timed):
            mine = [trial for trial in timed if trial.candidate == name]
            lines[name] = _line([tokens(trial) for trial in mine], [seconds[trial.key] for trial in mine])
        return cls(lines)

    def step(self, trial: Trial) -> float:
        fixed, per_token = self.lines[trial.candidate]
        return fixed + per_token * tokens(trial)

    def trial(self, trial: Trial) -> float:
        """Seconds of all steps and evaluations; evaluating a sequence costs about a third of training on it."""
        t = trial.training
        evaluations = len(t.evaluations) + 1  # plus the test split's
        return self.step(trial) * (t.replica_steps / len(t.grid) + evaluations * t.evaluation / t.batch / 3)


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit a non-negative intercept and slope, minimising relative rather than absolute errors."""
    x, y = np.array(sizes, dtype=float), np.array(seconds)
    if len(set(sizes)) > 1:
        fixed, slope = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones_like(y), rcond=None)[0]
        if fixed >= 0 and slope >= 0:
            return float(fixed), float(slope)
        if slope < 0:
            return float(y.mean()), 0.0
    return 0.0, float((y / x).mean())
