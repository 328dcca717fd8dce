"""A machine that is not there: cells take as long as we say, on a clock of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plait.probing.plan import Plan
from plait.probing.replan import Course
from plait.probing.trial import KIND, Cell
from plait.records import Record, Store

TICK = 0.25
Slowness = Callable[[float], float]  # by the time since the training began; 1 is the speed that was measured


class Killed(Exception):
    """kill -9."""


@dataclass
class Machine:
    slowness: Slowness
    workers: int = 2
    now: float = 0.0
    trained: list[Cell] = field(default_factory=list)  # in the order in which they were finished
    idle: float = 0.0  # worker-seconds before the last cell was started
    #: Cells in training, by key; what is in here after a kill are their checkpoints.
    running: dict[str, dict[str, float]] = field(default_factory=dict)

    def follow(self, plan: Plan, store: Store, *, killed_at: float = float("inf")) -> Course:
        """Train all of the plan, the way the crew does."""
        course = Course(plan, store)
        waiting = [cell for cell in course.begun if store.get(cell.key) is None]
        hands: list[Cell | None] = [None] * self.workers
        while True:
            for i, hand in enumerate(hands):
                if hand is None and not waiting:
                    waiting += [c for c in course.begin_next(self.running) if store.get(c.key) is None]
                if hand is None and waiting:
                    hands[i] = cell = waiting.pop(0)
                    self.running.setdefault(cell.key, {"step": 0, "seconds": 0.0})
            if not any(hands):
                return course
            if self.now >= killed_at:
                raise Killed
            self.now += TICK
            for i, cell in enumerate(hands):
                if cell is None:
                    self.idle += TICK if waiting or not course.all_begun else 0.0
                    continue
                mine = self.running[cell.key]
                mine["seconds"] += TICK
                mine["step"] += TICK / self.slowness(self.now) / plan.speed.cell(cell) * cell.training.steps
                if mine["step"] >= cell.training.steps:
                    about = {"started": plan.made, "seconds": mine["seconds"]}
                    store.put(Record.of(KIND, cell.config, {"accuracy": 0.5}, about))
                    self.trained.append(cell)
                    del self.running[cell.key]
                    hands[i] = None
