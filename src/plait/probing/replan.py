"""Adjust a plan while it runs, where the machine becomes slower or faster than measured.

Tasks are begun one after the other. Before the next one begins, the end is predicted from the recent slowdown; if it
would miss the budget, seeds and steps of all remaining tasks are planned again, as in `plan`. Every architecture gets
the same seeds and steps on a task, so comparisons stay fair.

Each decision, also the one to change nothing, is stored as a record before any trial of the task starts. An interrupted
probe therefore resumes with the very same trials, and of several probes on one store the first decides for all. Time is
the sum of the trials' own seconds: an interruption costs nothing of the budget, and processes that share a store share
the budget.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from plait.probing.plan import FINISH_SECONDS, Plan, fit, makespan
from plait.probing.protocol import VERSION
from plait.probing.trial import FleetProgress, Trial
from plait.records import Record, Store, provenance_of, record_key

KIND = "probe-replan"
TOLERANCE = 0.03  # of the budget, by which the end may be missed
RECENT = 0.15  # of the budget: the slowdown is measured over the trials trained in it
ENOUGH = 0.02  # of the budget: from less training no slowdown is estimated


@dataclass(frozen=True)
class Spent:
    """What a begun trial has taken so far, and what was expected of it in all."""

    expected: float
    share: float  # of its steps that are done
    seconds: float


class Decision(TypedDict):
    """What is stored before a task begins: seeds of each remaining setting, the scale of their steps."""

    seeds: list[int]
    scale: float
    slowdown: float


@dataclass(frozen=True)
class Replan:
    """A decision before a task."""

    first: int  # the setting from which on it applies
    slowdown: float  # recent seconds per second expected at the start
    before: Plan
    after: Plan

    @property
    def changed(self) -> bool:
        return (self.before.seeds, self.before.scales) != (self.after.seeds, self.after.scales)


class Scheduler:
    """Follows one plan through the store."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan = plan  # with all decisions so far
        self.replans: list[Replan] = []
        self._store = store
        while not self.all_begun and (found := store.get(record_key(KIND, self._next))):
            self._apply(found)

    @property
    def all_begun(self) -> bool:
        return len(self.replans) + 1 == len(self.plan.protocol.settings)

    @property
    def begun(self) -> tuple[Trial, ...]:
        """The trials of the tasks whose seeds and steps are final."""
        return self.plan.work.trials[: (len(self.replans) + 1) * len(self.plan.candidates)]

    def begin_next(self, running: Mapping[str, FleetProgress]) -> tuple[Trial, ...]:
        """The trials of the next task. Their seeds and steps are decided now, unless another probe has decided them."""
        if self.all_begun:
            return ()
        before, started = self.begun, time.time()
        found = self._store.get(record_key(KIND, self._next))
        if found is None:
            result = decide(self.plan, len(self.replans) + 1, self._spent(before, running))
            self._store.put(Record.of(KIND, self._next, result, provenance_of(started, time.time() - started)))
            found = self._store.get(record_key(KIND, self._next))  # another probe's, if that was first
            assert found is not None
        self._apply(found)
        return self.begun[len(before) :]

    @property
    def _next(self) -> dict[str, int | str]:
        return {"protocol": VERSION, "plan": self.plan.key, "first": len(self.replans) + 1}

    def _apply(self, found: Record) -> None:
        before, first = self.plan, found.config["first"]
        rest = len(before.seeds) - first
        self.plan = replace(
            before,
            seeds=(*before.seeds[:first], *found.result["seeds"]),
            scales=(*before.scales[:first], *[found.result["scale"]] * rest),
        )
        self.replans.append(Replan(first, found.result["slowdown"], before, self.plan))

    def _spent(self, trials: Sequence[Trial], running: Mapping[str, FleetProgress]) -> list[Spent]:
        found = []
        for trial in trials:
            record, expected = self._store.get(trial.key), self.plan.speed.trial(trial)
            if record is None:
                now = running.get(trial.key)
                share, seconds = (now["step"] / trial.training.steps, now["seconds"]) if now else (0.0, 0.0)
                found.append(Spent(expected, share, seconds))
            elif record.provenance["started"] >= self.plan.made:  # else another probe's: it cost us nothing
                found.append(Spent(expected, 1.0, record.provenance["seconds"]))
        return found


def decide(plan: Plan, first: int, spent: Sequence[Spent]) -> Decision:
    """Seeds and scale of the settings from `first` on, given what the trials before them took so far."""
    workers, seeds, scale = plan.config["workers"], list(plan.seeds[first:]), plan.scales[first]
    room = plan.left - FINISH_SECONDS - sum(one.seconds for one in spent) / workers
    length = max(plan.left, plan.expected_seconds)  # a plan that may overrun can be made when nothing is left
    slowdown = _slowdown(spent, length * workers)
    unfinished = [one.expected * (1 - one.share) for one in spent if one.share < 1]
    room = max(room, slowdown * makespan(unfinished, workers))  # what is in training will take this long in any case

    def seconds(seeds: Sequence[int], scale: float) -> float:
        scales = (*plan.scales[:first], *[scale] * len(seeds))
        work = replace(plan, seeds=(*plan.seeds[:first], *seeds), scales=scales).work
        rest = [plan.speed.trial(trial) for trial in work.trials[first * len(plan.candidates) :]]
        return slowdown * makespan([*unfinished, *rest], workers)

    if abs(seconds(seeds, scale) - room) > TOLERANCE * length:
        # Seeds that were asked for are kept: only lengths change.
        limit = plan.config["seeds"]
        seeds, scale = fit(seconds, room, seeds if limit else [1] * len(seeds), limit)
    return {"seeds": seeds, "scale": scale, "slowdown": slowdown}


def _slowdown(spent: Sequence[Spent], budget: float) -> float:
    """Seconds per expected second of the trials begun last; 1 while too little time has passed or no step is done.

    `budget` is the seconds of all workers together.
    """
    taken = expected = 0.0
    for one in reversed(spent):
        if taken < RECENT * budget:
            taken, expected = taken + one.seconds, expected + one.share * one.expected
    return taken / expected if expected and taken >= ENOUGH * budget else 1.0
