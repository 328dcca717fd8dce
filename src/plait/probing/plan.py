"""Which trials a probe runs: how many seeds and steps fit into a time budget.

The protocol sets the steps of each training, and the budget sets the seeds: as many for every task as finish in time at
the measured speed, then one more for one task after another, the most informative first. If not even one seed fits, all
trainings are shortened, that of the most informative task last: after half its steps, all architectures look the same
on it. Below a tenth of their steps trainings would be uninformative, so a smaller budget is refused. Remaining time
lengthens every training a little.

The plan is stored as a record, so that an interrupted probe does exactly the same work when it is resumed, even on a
busier machine.

`Scheduler` adjusts the plan while it runs, if the machine becomes slower or faster than measured. Tasks start one after
another. Before the next one, the total duration is predicted from the recent slowdown; if it would miss the budget,
seeds and steps of all remaining tasks are replanned. Every architecture gets the same seeds and steps on a task, so
comparisons stay fair. Each decision, including the one to change nothing, is stored as a record before any trial of the
task starts, so an interrupted probe resumes with exactly the same trials, and among several probes on one store the
first decides for all. Time is the sum of the trials' own seconds: interruptions do not count towards the budget, and
processes that share a store share the budget.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from plait.core.errors import UserError
from plait.probing.protocol import VERSION, Candidate, Protocol
from plait.probing.trial import FleetProgress, Speed, Trial
from plait.records import Record, Store, provenance_of, record_key

KIND = "probe-plan"
FORMAT = 2  # of the stored plan; raised by hand when its fields change
MOST_SEEDS = 20
FINISH_SECONDS = 2.0  # reserved for the last evaluation, the table and the verdict
SAFETY = 0.99  # below 1, yet safe: short timings overestimate by more than generating data and storing add
SHORTEST = 0.1  # smallest fraction of a training's steps
LONGEST = 1.25
SLACK = 1.05  # margin of the budget recommended in messages over what is needed
REPLAN_KIND = "probe-replan"
TOLERANCE = 0.03  # fraction of the budget by which the deadline may be missed
RECENT = 0.15  # fraction of the budget over which the recent slowdown is measured
ENOUGH = 0.02  # fraction of the budget that must be trained before a slowdown is estimated
SPARED = 0.4  # the other tasks' steps are cut to this fraction before the first task's are


class TooShort(UserError):
    """A budget into which not even the shortest trainings fit."""


@dataclass(frozen=True)
class Work:
    """Trials to run, and their expected duration on this machine."""

    candidates: tuple[Candidate, ...]
    protocol: Protocol
    trials: tuple[Trial, ...]
    expected_seconds: float | None = None
    scale: float = 1.0  # fraction of its steps left to the training that was cut most

    @property
    def runs(self) -> int:
        return sum(len(trial.seeds) * len(trial.training.grid) for trial in self.trials)

    @property
    def steps(self) -> int:
        return sum(len(trial.seeds) * trial.training.replica_steps for trial in self.trials)


def with_seeds(candidates: Sequence[Candidate], protocol: Protocol, seeds: Sequence[int], device: str) -> Work:
    """Every setting of the protocol, the i-th with `seeds[i]` seeds."""
    trials = [
        Trial.of(candidate, setting, tuple(range(number)), device)
        for setting, number in zip(protocol.settings, seeds, strict=True)
        for candidate in candidates
    ]
    return Work(tuple(candidates), protocol, tuple(trials))


class PlanConfig(TypedDict):
    """Everything a plan depends on except the machine's speed; its record's key is the hash of this."""

    format: int
    protocol: int
    name: str
    specs: list[str]
    mixers: list[str]
    settings: list[dict[str, object]]
    budget_seconds: float
    workers: int
    seeds: int | None  # None: as many as fit
    device: str


def plan_config(
    candidates: Sequence[Candidate], protocol: Protocol, budget: float, workers: int, seeds: int | None, device: str
) -> PlanConfig:
    return {
        "format": FORMAT,
        "protocol": VERSION,
        "name": protocol.name,
        "specs": [candidate.arch.text for candidate in candidates],
        "mixers": [candidate.source for candidate in candidates],
        "settings": [{**s.task.as_dict(), "training": s.training.as_dict()} for s in protocol.settings],
        "budget_seconds": budget,
        "workers": workers,
        "seeds": seeds,
        "device": device,
    }


@dataclass(frozen=True)
class Plan:
    """Seeds and steps of every setting, and what is needed to decide on them again."""

    key: str
    config: PlanConfig
    candidates: tuple[Candidate, ...]
    protocol: Protocol  # with unscaled steps
    seeds: tuple[int, ...]
    scales: tuple[float, ...]  # fraction of each setting's steps
    speed: Speed
    left: float  # seconds left of the budget when the plan was made
    expected_seconds: float  # the part of these that it should take
    made: str  # when

    @property
    def work(self) -> Work:
        work = with_seeds(self.candidates, _lasting(self.protocol, self.scales), self.seeds, self.config["device"])
        return replace(work, expected_seconds=self.expected_seconds, scale=min(self.scales))


def stored(store: Store, config: PlanConfig, candidates: Sequence[Candidate], protocol: Protocol) -> Plan | None:
    """The stored plan for the same config."""
    record = store.get(record_key(KIND, config))
    if record is None:
        return None
    result = record.result
    # Names are only for display and not part of the config, so the fitted lines are stored without them.
    speed = Speed(
        {candidate.name: (line[0], line[1]) for candidate, line in zip(candidates, result["lines"], strict=True)}
    )
    return Plan(
        record.key, config, tuple(candidates), protocol, tuple(result["seeds"]),
        tuple(_scales(result["scale"], len(protocol.settings))), speed, result["left"], result["expected_seconds"],
        record.provenance["started"],
    )  # fmt: skip


def fitting(
    store: Store,
    config: PlanConfig,
    candidates: Sequence[Candidate],
    protocol: Protocol,
    speed: Speed,
    left: float,
    *,
    overrun: bool = False,
) -> Plan:
    """As much as fits into `left` seconds, stored as the plan for this config.

    If not even the shortest trainings fit, a `UserError` states how much time they need, unless they may `overrun`.
    """
    started, number = time.time(), len(protocol.settings)
    room = left - FINISH_SECONDS

    def seconds(seeds: Sequence[int], scale: float) -> float:
        work = with_seeds(candidates, _lasting(protocol, _scales(scale, number)), seeds, config["device"])
        return SAFETY * makespan([speed.trial(trial) for trial in work.trials], config["workers"])

    one_each = [1] * number
    if not overrun and (shortest := seconds(one_each, SHORTEST)) > room:
        budget = config["budget_seconds"]
        raise TooShort(_too_short(budget, budget + shortest - room, len(candidates), number))
    seeds, scale = fit(seconds, room, one_each, config["seeds"])
    result = {
        "seeds": seeds,
        "scale": scale,
        "lines": [list(speed.lines[candidate.name]) for candidate in candidates],
        "left": left,
        "expected_seconds": seconds(seeds, scale),
    }
    store.put(Record.of(KIND, config, result, provenance_of(started, time.time() - started)))
    # Two probes may have planned at the same time; both use the first plan that was stored.
    plan = stored(store, config, candidates, protocol)
    assert plan is not None
    return plan


def fit(
    seconds: Callable[[Sequence[int], float], float], room: float, least: Sequence[int], limit: int | None
) -> tuple[list[int], float]:
    """Seeds for each setting, from `least` up to a `limit`, and the scale of their steps: the most that fits into
    `room` seconds, or the shortest allowed. `seconds(seeds, scale)` is the duration."""
    seeds, most = list(least), limit or MOST_SEEDS
    if seconds(seeds, 1.0) > room:
        return seeds, _largest(lambda scale: seconds(seeds, scale) <= room, SHORTEST, 1.0)
    while max(seeds) < most and seconds([n + 1 for n in seeds], 1.0) <= room:
        seeds = [n + 1 for n in seeds]
    for i in range(len(seeds)):
        more = [n + (i == j) for j, n in enumerate(seeds)]
        if max(more) <= most and seconds(more, 1.0) <= room:
            seeds = more
    return seeds, 1.0 if limit else _largest(lambda scale: seconds(seeds, scale) <= room, 1.0, LONGEST)


def _scales(scale: float, number: int) -> list[float]:
    """The fraction of each setting's steps: the first setting is not cut until the others are down to `SPARED`."""
    return [min(1.0, scale / SPARED) if scale < 1 else scale] + [scale] * (number - 1)


def _lasting(protocol: Protocol, scales: Sequence[float]) -> Protocol:
    """The protocol with every training scaled to a fraction of its steps."""
    return replace(
        protocol,
        settings=tuple(
            replace(s, training=replace(s.training, steps=max(1, round(s.training.steps * scale))))
            for s, scale in zip(protocol.settings, scales, strict=True)
        ),
    )


def _largest(fits: Callable[[float], bool], low: float, high: float) -> float:
    """The largest scale that fits, to within a thousandth; `low` if none does."""
    if fits(high):
        return high
    while high - low > 0.001:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _too_short(budget: float, needed: float, architectures: int, tasks: int) -> str:
    """The message for a budget that is too small; it recommends a little more than `needed`, since speed varies."""
    least = SLACK * needed
    asked, enough = f"{budget:g}s", f"{5 * math.ceil(least / 5)}s"
    if least > 90:
        enough = f"{math.ceil(least / 60)}m"
    many = f"{architectures} architectures do" if architectures > 1 else "one architecture does"
    fewer = [what for what, count in (("--tasks", tasks), ("architectures", architectures)) if count > 1]
    ways = f"--time {enough} or more" + (f", or fewer {' or '.join(fewer)}" if fewer else "")
    return f"{many} not fit into {asked} here, even with a tenth of the steps and one seed. Give {ways}."


def makespan(costs: Sequence[float], workers: int) -> float:
    """When the last worker is done if each takes the next item as soon as it is free."""
    free = [0.0] * workers
    for cost in costs:
        heapq.heappush(free, heapq.heappop(free) + cost)
    return max(free)


# ---- replanning during the run


@dataclass(frozen=True)
class Spent:
    """Seconds that a started trial has taken so far, and its expected total."""

    expected: float
    share: float  # fraction of its steps that are done
    seconds: float


class Decision(TypedDict):
    """What is stored before a task begins: seeds of each remaining setting, the scale of their steps."""

    seeds: list[int]
    scale: float
    slowdown: float


@dataclass(frozen=True)
class Replan:
    """A decision before a task."""

    first: int  # the first setting to which it applies
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
        while not self.all_begun and (record := store.get(record_key(REPLAN_KIND, self._next))):
            self._apply(record)

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
        before = self.begun

        def decided() -> Decision:
            return decide(self.plan, len(self.replans) + 1, self._spent(before, running))

        self._apply(self._store.computed(REPLAN_KIND, self._next, decided))
        return self.begun[len(before) :]

    @property
    def _next(self) -> dict[str, int | str]:
        return {"protocol": VERSION, "plan": self.plan.key, "first": len(self.replans) + 1}

    def _apply(self, record: Record) -> None:
        before, first = self.plan, record.config["first"]
        rest = len(before.seeds) - first
        self.plan = replace(
            before,
            seeds=(*before.seeds[:first], *record.result["seeds"]),
            scales=(*before.scales[:first], *[record.result["scale"]] * rest),
        )
        self.replans.append(Replan(first, record.result["slowdown"], before, self.plan))

    def _spent(self, trials: Sequence[Trial], running: Mapping[str, FleetProgress]) -> list[Spent]:
        spent = []
        for trial in trials:
            record, expected = self._store.get(trial.key), self.plan.speed.trial(trial)
            if record is None:
                now = running.get(trial.key)
                share, seconds = (now["step"] / trial.training.steps, now["seconds"]) if now else (0.0, 0.0)
                spent.append(Spent(expected, share, seconds))
            elif record.provenance["started"] >= self.plan.made:  # else another probe trained it, for free
                spent.append(Spent(expected, 1.0, record.provenance["seconds"]))
        return spent


def decide(plan: Plan, first: int, spent: Sequence[Spent]) -> Decision:
    """Seeds and scale of the settings from `first` on, given what the trials before them took so far."""
    workers, seeds, scale = plan.config["workers"], list(plan.seeds[first:]), plan.scales[first]
    room = plan.left - FINISH_SECONDS - sum(trial.seconds for trial in spent) / workers
    length = max(plan.left, plan.expected_seconds)  # a plan that may overrun can be made when no time is left
    slowdown = _slowdown(spent, length * workers)
    unfinished = [trial.expected * (1 - trial.share) for trial in spent if trial.share < 1]
    room = max(room, slowdown * makespan(unfinished, workers))  # trials in progress will take this long in any case

    def seconds(seeds: Sequence[int], scale: float) -> float:
        scales = (*plan.scales[:first], *[scale] * len(seeds))
        work = replace(plan, seeds=(*plan.seeds[:first], *seeds), scales=scales).work
        rest = [plan.speed.trial(trial) for trial in work.trials[first * len(plan.candidates) :]]
        return slowdown * makespan([*unfinished, *rest], workers)

    if abs(seconds(seeds, scale) - room) > TOLERANCE * length:
        # A requested number of seeds is kept: only the numbers of steps change.
        limit = plan.config["seeds"]
        seeds, scale = fit(seconds, room, seeds if limit else [1] * len(seeds), limit)
    return {"seeds": seeds, "scale": scale, "slowdown": slowdown}


def _slowdown(spent: Sequence[Spent], budget: float) -> float:
    """Actual over expected seconds of the most recent trials; 1 while too little time has passed or no step is done.

    `budget` is in seconds of all workers together.
    """
    taken = expected = 0.0
    for trial in reversed(spent):
        if taken < RECENT * budget:
            taken, expected = taken + trial.seconds, expected + trial.share * trial.expected
    return taken / expected if expected and taken >= ENOUGH * budget else 1.0
