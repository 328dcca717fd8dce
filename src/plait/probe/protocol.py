"""How an architecture is probed: which settings of the tasks, and how a model is trained on each.

`full` is the protocol of the paper (Poli et al. 2024, arXiv:2403.17844, App. B.2 and Table B.1): 66 settings, a grid of
six learning rates and weight decays on each, 200 epochs. `quick` is for a budget of minutes: one small setting a task
(the table `QUICK`), narrow models, as many seeds as the budget holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait import tasks
from plait.tasks import Task

#: Raised by hand when results change meaning; part of every result's key.
VERSION = 1


@dataclass(frozen=True)
class Training:
    """How a fleet is trained on one setting. Its members are the grid's points, all of one seed."""

    steps: int
    batch: int
    grid: tuple[tuple[float, float], ...]  # (learning rate, weight decay)
    evaluation: int  # sequences of the validation and of the test split
    eval_every: int
    solved: float | None  # a member with this validation accuracy stops; None: all train to the end

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "grid": [list(point) for point in self.grid]}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Training:
        return cls(**{**given, "grid": tuple((lr, decay) for lr, decay in given["grid"])})


@dataclass(frozen=True)
class Setting:
    """One setting of a task. `given` finds the task again in another process: its name or its file."""

    given: str
    task: Task
    training: Training


@dataclass(frozen=True)
class Protocol:
    """What bare mixer names stand for: their width, attention's head dimension, SwiGLU's inner width, the total fixed
    state of those that have one, and the standard deviation of initial weights; then the settings, the most telling
    task first."""

    name: str
    d: int
    head_dim: int
    inner: int
    state: int
    init: float
    settings: tuple[Setting, ...]

    @property
    def task_names(self) -> list[str]:
        return list(dict.fromkeys(setting.task.name for setting in self.settings))

    @property
    def runs(self) -> int:
        """Models trained for one architecture and seed."""
        return sum(len(setting.training.grid) for setting in self.settings)

    @property
    def steps(self) -> int:
        """Optimizer steps of all of them, at most."""
        return sum(len(setting.training.grid) * setting.training.steps for setting in self.settings)


# Table B.1
EPOCHS = 200
BATCH = 128
EVALUATION = 1280
LEARNING_RATES = (1e-4, 5e-4, 1e-3)
WEIGHT_DECAYS = (0.0, 0.1)


def full(given: Sequence[str] = (), variant: str = "seed") -> Protocol:
    """The paper's protocol on these tasks (all six, if none is named)."""
    grid = tuple((lr, decay) for lr in LEARNING_RATES for decay in WEIGHT_DECAYS)
    found = []
    for name in given or tasks.names():
        for task in _varied(tasks.load_task(name), variant).grid():
            an_epoch = -(-task.train_size // BATCH)
            training = Training(EPOCHS * an_epoch, BATCH, grid, EVALUATION, 10 * an_epoch, solved=0.999)
            found.append(Setting(name, task, training))
    return Protocol("full", 128, 8, 512, 4096, 0.02, tuple(found))


@dataclass(frozen=True)
class Quick:
    """One row of the quick protocol."""

    settings: dict[str, Any]
    steps: int
    batch: int = 32
    grid: tuple[tuple[float, float], ...] = ((1.5e-3, 0.0), (4e-3, 0.0))


#: What a budget of minutes is spent on, the most telling first. Why these: docs/probe.md.
QUICK: dict[str, Quick] = {
    "in-context-recall": Quick({"vocab": 8, "length": 32}, steps=600),
    "compression": Quick({"vocab": 16, "length": 16}, steps=300),
    "selective-copying": Quick({"vocab": 8, "length": 32, "to_copy": 6}, steps=300),
    "fuzzy-in-context-recall": Quick({"vocab": 6, "length": 32, "motif": 2}, steps=300),
    "noisy-in-context-recall": Quick({"vocab": 8, "length": 32, "noise_vocab": 4}, steps=300),
    "memorization": Quick({"vocab": 256, "length": 16}, steps=150),
}
QUICK_TRAIN_SIZE = 8192  # sequences; no epoch is repeated within the steps above
QUICK_EVALUATION = 256
QUICK_EVALUATIONS = 6  # of each run
OWN_TASK = Quick({}, steps=300)  # a user's task, at its own baseline


def quick(given: Sequence[str] = (), variant: str = "seed") -> Protocol:
    """The protocol for a budget on these tasks (all six, if none is named)."""
    found = []
    for name in given or QUICK:
        task = _varied(tasks.load_task(name), variant)
        row = QUICK.get(task.name, OWN_TASK)
        size = {"train_size": QUICK_TRAIN_SIZE} if task.name in QUICK and task.name != "memorization" else {}
        small = task.with_settings({key: str(value) for key, value in {**row.settings, **size}.items()})
        training = Training(
            row.steps, row.batch, row.grid, QUICK_EVALUATION, -(-row.steps // QUICK_EVALUATIONS), solved=None
        )
        found.append(Setting(name, small, training))
    return Protocol("quick", 32, 32, 112, 1024, 0.15, tuple(found))


def _varied(task: Task, variant: str) -> Task:
    return task.with_settings({"variant": variant})
