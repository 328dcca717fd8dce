"""A simulated machine: trials take the time that a test sets, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plait.probing.plan import Plan, Scheduler
from plait.probing.trial import KIND, Trial
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
    trained: list[Trial] = field(default_factory=list)  # in the order in which they were finished
    idle: float = 0.0  # worker-seconds before the last trial was started
    #: Trials in training, by key; what is in here after a kill are their checkpoints.
    running: dict[str, dict[str, float]] = field(default_factory=dict)

    def follow(self, plan: Plan, store: Store, *, killed_at: float = float("inf")) -> Scheduler:
        """Train all of the plan, the way the pool does."""
        scheduler = Scheduler(plan, store)
        waiting = [trial for trial in scheduler.begun if store.get(trial.key) is None]
        hands: list[Trial | None] = [None] * self.workers
        while True:
            for i, worker in enumerate(hands):
                if worker is None and not waiting:
                    waiting += [c for c in scheduler.begin_next(self.running) if store.get(c.key) is None]
                if worker is None and waiting:
                    hands[i] = trial = waiting.pop(0)
                    self.running.setdefault(trial.key, {"step": 0, "seconds": 0.0})
            if not any(hands):
                return scheduler
            if self.now >= killed_at:
                raise Killed
            self.now += TICK
            for i, trial in enumerate(hands):
                if trial is None:
                    self.idle += TICK if waiting or not scheduler.all_begun else 0.0
                    continue
                mine = self.running[trial.key]
                mine["seconds"] += TICK
                mine["step"] += TICK / self.slowness(self.now) / plan.speed.trial(trial) * trial.training.steps
                if mine["step"] >= trial.training.steps:
                    about = {"started": plan.made, "seconds": mine["seconds"]}
                    store.put(Record.of(KIND, trial.config, {"accuracy": 0.5}, about))
                    self.trained.append(trial)
                    del self.running[trial.key]
                    hands[i] = None
