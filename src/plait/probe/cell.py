"""A cell: one architecture on one task setting with one seed. A fleet of the grid's points is trained; the best by
validation accuracy (ties: lower validation loss) is scored on the test split.

A cell is plain data, so that it travels to worker processes, and its key finds its result in the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.arch import Architecture, architecture
from plait.probe.candidates import Candidate
from plait.probe.protocol import VERSION, Setting, Training
from plait.records import record_key
from plait.tasks import Task, TaskData, load_task, make_data

if TYPE_CHECKING:
    from plait.train.fleet import Fleet, MemberRecord, Split

KIND = "probe"
Report = Callable[["Fleet"], None]


@dataclass(frozen=True)
class Cell:
    candidate: str  # the architecture's name, for display; not part of the result's identity
    spec: str
    source: str  # hash of the user's mixer, if there is one
    task_given: str
    settings: tuple[tuple[str, Any], ...]
    seed: int
    training: Training
    device: str = "cpu"

    @classmethod
    def of(cls, candidate: Candidate, setting: Setting, seed: int, device: str = "cpu") -> Cell:
        """The architecture with the vocabulary and the kind of model that the task needs."""
        task = setting.task
        header = candidate.arch.header.replace({"vocab": task.model_vocab, "kind": task.model_kind})
        arch = Architecture(header, candidate.arch.layers)
        return cls(
            candidate.name, arch.text, candidate.source, setting.given, tuple(task.settings().items()), seed,
            setting.training, device,
        )  # fmt: skip

    @cached_property
    def task(self) -> Task:
        return load_task(self.task_given).with_settings({name: str(value) for name, value in self.settings})

    @cached_property
    def config(self) -> dict[str, Any]:
        """Everything that decides the result. fp32 and bf16 differ in the third digit, so the precision is in."""
        return {
            "protocol": VERSION,
            "spec": self.spec,
            "mixer": self.source,
            "task": self.task.as_dict(),
            "seed": self.seed,
            "training": self.training.as_dict(),
            "precision": "fp32" if self.device == "cpu" else "bf16",
        }

    @cached_property
    def key(self) -> str:
        return record_key(KIND, self.config)

    def fleet(self) -> Fleet:
        """The cell's fleet, untrained."""
        from plait.train.fleet import Fleet, Member, Plan

        t = self.training
        data = make_data(self.task, self.seed, evaluation=t.evaluation)
        members = [Member(lr, decay, self.seed) for lr, decay in t.grid]
        never = 2.0  # no accuracy reaches it
        plan = Plan(t.steps, t.batch, t.eval_every, solved=never if t.solved is None else t.solved)
        splits = [_split(data, name) for name in ("train", "validation", "test")]
        return Fleet(architecture(self.spec), members, plan, *splits, device=self.device)

    @cached_property
    def ceiling(self) -> float:
        if self.task.always_answerable:
            return 1.0
        return make_data(self.task, self.seed, evaluation=self.training.evaluation).ceiling


def _split(data: TaskData, name: str) -> Split:
    import torch

    from plait.train.fleet import Split

    examples = data.split(name)
    return Split(torch.from_numpy(examples.inputs_NT)[None], torch.from_numpy(examples.targets_NT)[None])


def result(cell: Cell, records: Sequence[MemberRecord]) -> dict[str, Any]:
    """What is stored of a trained cell: plain JSON, in which a number that is not finite is null."""
    alive = [i for i, record in enumerate(records) if record.stopped != "diverged"]
    found: dict[str, Any] = {"accuracy": 0.0, "loss": None, "chosen": None, "ceiling": cell.ceiling}
    if alive:
        best = max(alive, key=lambda i: (records[i].validation[-1][1], -records[i].validation[-1][2]))
        accuracy, loss = records[best].test or (0.0, math.nan)
        found |= {"accuracy": accuracy, "loss": _finite(loss), "chosen": best}
    else:
        found["note"] = "every member diverged"
    found["members"] = [
        {
            "lr": record.member.lr,
            "weight_decay": record.member.weight_decay,
            "steps": record.steps,
            "stopped": record.stopped,
            "losses": [[step, _finite(loss)] for step, loss in record.losses],
            "validation": [[step, accuracy, _finite(loss)] for step, accuracy, loss in record.validation],
            "test": None if record.test is None else [record.test[0], _finite(record.test[1])],
        }
        for record in records
    ]
    return found


def checkpoint_path(folder: Path, key: str) -> Path:
    return folder / key / "fleet.safetensors"


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
