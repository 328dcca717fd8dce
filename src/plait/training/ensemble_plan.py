"""How a fleet is trained: its replicas, the plan, what is recorded of each replica, and when one of them stops.

A replica stops when it has solved its data set, or when going on could hardly change which replica is the best on that
data set, or how good it is. Every rule looks at the validation accuracies recorded so far and at nothing else, so a
training that was interrupted stops its replicas where an uninterrupted one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import torch

from plait.training.ensemble_step import AdamW

COMPILED_STEPS = 1000  # trainings of at least this many steps are compiled, which takes half a minute or more
RUNNING = "running"
#: Before this fraction of the steps patience stops nothing: models learn late. Fuzzy recall over 1,024 tokens stands
#: still for an eighth of its steps before it reaches 0.99.
STANDSTILL = 0.3


@dataclass(frozen=True)
class Replica:
    """One model of the fleet. `data` is the index of its data set."""

    lr: float
    weight_decay: float
    seed: int
    data: int = 0


class SavedRecord(TypedDict):
    """A `ReplicaRecord` in a checkpoint: tuples are lists, and older checkpoints lack the last two fields."""

    steps: int
    stopped: str
    losses: list[tuple[int, float]]
    validation: list[tuple[int, float, float]]
    test: tuple[float, float] | None
    others: dict[str, float]
    exact: dict[str, float]


@dataclass
class ReplicaRecord:
    """The outcome of one replica. `stopped`: "running", then "done" or the reason (`Plan.stops`)."""

    replica: Replica
    steps: int = 0
    stopped: str = RUNNING
    losses: list[tuple[int, float]] = field(default_factory=list)  # training loss at evaluations
    validation: list[tuple[int, float, float]] = field(default_factory=list)  # step, accuracy, loss
    test: tuple[float, float] | None = None  # accuracy, loss
    others: dict[str, float] = field(default_factory=dict)  # accuracy on every additional split
    exact: dict[str, float] = field(default_factory=dict)  # sequences without a mistake, on these and the test split

    def add(self, step: int, train_loss: float, accuracy: float, loss: float) -> None:
        """Record an evaluation on the validation split."""
        self.steps = step
        self.losses.append((step, train_loss))
        self.validation.append((step, accuracy, loss))

    @property
    def accuracy(self) -> float:
        return self.validation[-1][1]

    @property
    def diverged(self) -> bool:
        return not math.isfinite(self.losses[-1][1])

    @property
    def steps_without_gain(self) -> int:
        """Steps since the validation accuracy was last higher than ever before."""
        best = max(accuracy for _, accuracy, _ in self.validation)
        return self.steps - next(step for step, accuracy, _ in self.validation if accuracy == best)

    def saved(self) -> SavedRecord:
        return {
            "steps": self.steps,
            "stopped": self.stopped,
            "losses": self.losses,
            "validation": self.validation,
            "test": self.test,
            "others": self.others,
            "exact": self.exact,
        }

    def restore(self, saved: SavedRecord) -> None:
        self.steps, self.stopped = saved["steps"], saved["stopped"]
        self.losses = [(step, loss) for step, loss in saved["losses"]]
        self.validation = [(step, accuracy, loss) for step, accuracy, loss in saved["validation"]]
        self.test = None if saved["test"] is None else (saved["test"][0], saved["test"][1])
        self.others, self.exact = dict(saved.get("others", {})), dict(saved.get("exact", {}))


@dataclass(frozen=True)
class Plan:
    """How a fleet is trained.

    steps       optimizer steps; the learning rate falls to zero along a cosine over them
    eval_every  steps between evaluations on the validation split
    eval_at     the steps after which replicas are evaluated, if not at regular intervals; the last step always is
    solved      a replica whose validation accuracy reaches this stops
    first_ends  the first replica to solve its data set stops the others on it: if only the best one counts, the others
                could improve on it by at most 1 − solved
    halving     (fraction of the steps, replicas): from that fraction on, a replica stops if the validation accuracy of
                so many others on its data set is higher, or as high with a lower loss
    patience    a replica stops whose validation accuracy has not risen above its highest for so many steps, but not in
                the first 30 % of all steps (0: never)
    curriculum  (fraction of the steps, tokens): up to that fraction, only the first tokens of a sequence are scored
    """

    steps: int
    batch: int = 128
    eval_every: int = 100
    eval_at: tuple[int, ...] = ()
    solved: float = 0.999
    first_ends: bool = False
    halving: tuple[tuple[float, int], ...] = ()
    patience: int = 0
    curriculum: tuple[tuple[float, int], ...] = ()
    optimizer: AdamW = field(default_factory=AdamW)

    def next_evaluation(self, step: int) -> int:
        """The step of the first evaluation after this step."""
        regular = step - step % self.eval_every + self.eval_every
        after = next((at for at in self.eval_at if at > step), self.steps) if self.eval_at else regular
        return min(after, self.steps)

    def tokens_at(self, step: int) -> int | None:
        """How many tokens of a sequence are scored at a step; None: all of them."""
        return next((tokens for share, tokens in self.curriculum if step < share * self.steps), None)

    def compiles_on(self, device: torch.device) -> bool:
        """Whether all replicas form one vectorised step: always on a CPU, where nothing is compiled."""
        return device.type != "cuda" or self.steps >= COMPILED_STEPS

    def stops(self, records: Sequence[ReplicaRecord]) -> dict[int, str]:
        """The running replicas that stop after an evaluation, by their index, and why: "diverged", "solved", "outdone"
        (another replica solved their data set), "behind" or "stalled". The first reason counts."""
        running = [i for i, record in enumerate(records) if record.stopped == RUNNING]
        reasons = {i: "diverged" for i in running if records[i].diverged}
        reasons |= {i: "solved" for i in running if i not in reasons and records[i].accuracy >= self.solved}
        later: list[tuple[str, Iterable[int]]] = []
        if self.first_ends:
            ended = {records[i].replica.data for i, reason in reasons.items() if reason == "solved"}
            later.append(("outdone", (i for i in running if records[i].replica.data in ended)))
        if self.halving:
            later.append(("behind", self._behind(records, running)))
        if self.patience:
            late = (i for i in running if records[i].steps >= STANDSTILL * self.steps)
            later.append(("stalled", (i for i in late if records[i].steps_without_gain >= self.patience)))
        for reason, stopping in later:
            for i in stopping:
                reasons.setdefault(i, reason)
        return reasons

    def _behind(self, records: Sequence[ReplicaRecord], running: Sequence[int]) -> Iterator[int]:
        """The running replicas behind as many others on their data set as go on. Those may have stalled, but not have
        diverged: the accuracy may still be that of the weights before a step that was too large."""
        ranks = {
            i: (record.accuracy, -loss if math.isfinite(loss := record.validation[-1][2]) else -math.inf, -i)
            for i, record in enumerate(records)
            if record.stopped in (RUNNING, "stalled") and not record.diverged
        }
        for i in running:
            go_on = min([len(records), *(n for share, n in self.halving if records[i].steps >= share * self.steps)])
            rivals = [rank for j, rank in ranks.items() if records[j].replica.data == records[i].replica.data]
            if i in ranks and sum(rank > ranks[i] for rank in rivals) >= go_on:
                yield i
