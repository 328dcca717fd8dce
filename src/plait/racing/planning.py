"""How many tokens each contender of a comparison gets, decided from measured times and stored for resuming.

On a CPU all contenders train in stages (`train_in_stages`). Before each stage, all budgets are rescaled to the
remaining time. A stage that would finish far too late is abandoned, and the result is that of the previous stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from plait.core.errors import UserError
from plait.racing.budget import LEAST_STEPS, STAGES, Plan, Workload, further_shares, rungs, weights
from plait.racing.contenders import Contender
from plait.racing.leg import Course, Leg
from plait.racing.rates import FACTORS, RATE_STEPS, Search, rate_steps, stacks
from plait.racing.workers import Workers, seconds_of_all
from plait.records import Record, Store, record_key
from plait.training.track import Replica

PLAN = "compare-plan"
PROTOCOL = 4
TIMING = 0.05  # largest fraction of the time limit for timing the first steps
#: Called with the share of all training that is done, from 0 to 1.
OnShare = Callable[[float], object]
LATE = 1.1  # a stage that would end after this multiple of the time limit is abandoned


@dataclass(frozen=True)
class Terms:
    """The terms of a comparison. One of `tokens` (of the largest budget), `flops` and `seconds` (of the whole
    comparison) sets its length; `equal` names the quantity that is the same for all contenders. `lr`: the learning rate
    of all, or the middle of the search (None: the default for the width)."""

    seeds: int = 5
    search_rates: bool = True
    equal: str = "tokens"
    tokens: float | None = None
    flops: float | None = None
    seconds: float | None = None
    lr: float | None = None


@dataclass(frozen=True)
class Planner:
    contenders: Sequence[Contender]
    course: Course
    terms: Terms
    store: Store
    pool: Workers
    began: float  # a value of `time.perf_counter()`

    def first(self) -> dict[str, float]:
        """The budgets before anything is trained."""
        terms, course = self.terms, self.course
        if terms.seconds is None and terms.equal != "time":
            weight = weights(self.contenders, course, terms.equal, {})
            most = terms.tokens
            if most is None:
                assert terms.flops is not None
                most = terms.flops / min(c.flops_per_token(course.recipe.seq_len) for c in self.contenders)
            return {name: most * share for name, share in weight.items()}
        plan = self._kept({}, self._timed)
        by_name = plan["seconds_per_token"]
        self.pool.speeds.update({c.arch.text: by_name[c.name] for c in self.contenders})
        return dict(plan["tokens"])

    @property
    def searches(self) -> bool:
        """Whether learning rates are searched: if requested, and if there is enough time."""
        if self.terms.seconds is None:
            return self.terms.search_rates
        return bool(self._kept({}, self._timed)["search"])

    def search_share(self, budgets: Mapping[str, float]) -> float:
        """The fraction of all training that the rate search takes, with one rate beyond its range for each
        contender."""
        work, course = self._workload, self.course
        costs = [
            (work.search(rate_steps(tokens, course), course), work.training(tokens)) for tokens in budgets.values()
        ]
        searching = (len(FACTORS) + 1) * sum(search for search, _ in costs)
        return searching / (searching + self.terms.seeds * sum(training for _, training in costs))

    def after(self, search: Search) -> dict[str, float]:
        """The budgets after the rate search, from its measured speed; unchanged if they do not depend on time."""
        if self.terms.seconds is None:
            return self.first()
        return dict(self._kept({"steps": search.steps}, partial(self._searched, search))["tokens"])

    def scale(self, budgets: Mapping[str, float], so_far: Sequence[Stage], searching: float) -> float:
        """The factor for all budgets after some stages, from their durations. `searching`: seconds of the rate
        search."""
        reached = [stage.shares[-1] for stage in so_far]
        after = {"tokens": dict(budgets), "reached": reached}
        return float(self._kept(after, partial(self._rescaled, budgets, so_far, searching))["scale"])

    def gave_up(self, budgets: Mapping[str, float], so_far: Sequence[Stage], scale: float) -> None:
        """Record that the stage after these was abandoned at this scale, so these stages are the result."""
        self._kept(self._given_up(budgets, so_far, scale), lambda: {"given_up": True})

    def given_up(self, budgets: Mapping[str, float], so_far: Sequence[Stage], scale: float) -> bool:
        return self.store.get(self._key(self._given_up(budgets, so_far, scale))) is not None

    def is_late(self, stage_began: float, share: float) -> bool:
        """Whether a stage of which this fraction is done will end long after the time limit."""
        if self.terms.seconds is None or perf_counter() - self.began < self.terms.seconds:
            return False
        now = perf_counter()
        ends = now + (now - stage_began) * (1 - share) / share if share else math.inf
        return ends - self.began > LATE * self.terms.seconds

    def _timed(self) -> dict[str, Any]:
        course, terms = self.course, self.terms
        most = None if terms.seconds is None else TIMING * terms.seconds
        timed = self.pool.step_seconds([c.arch for c in self.contenders], most=most)
        speed = {c.name: took / course.tokens_per_step for c, took in zip(self.contenders, timed, strict=True)}
        spent = perf_counter() - self.began
        if terms.seconds is not None:
            budgets, search = self._affordable(speed, spent)
        else:
            search = terms.search_rates
            share = weights(self.contenders, course, terms.equal, speed)
            budgets = {name: (terms.tokens or 0.0) * weight for name, weight in share.items()}
        return {"tokens": budgets, "seconds_per_token": speed, "seconds": spent, "search": search}

    def _affordable(self, speed: Mapping[str, float], spent: float) -> tuple[dict[str, float], bool]:
        """Budgets that fit into the time, and whether rates are searched: only if every budget then still has enough
        steps to compare rates."""
        assert self.terms.seconds is not None
        plan = self._plan(speed)
        if self.terms.search_rates:
            with suppress(UserError):
                budgets = plan.budgets(self.terms.seconds, spent)
                if min(map(self.course.steps, budgets.values())) >= RATE_STEPS:
                    return budgets, True
        without = replace(plan, workload=replace(plan.workload, rates=1))
        return without.budgets(self.terms.seconds, spent), False

    def _searched(self, search: Search) -> dict[str, Any]:
        before = self._kept({}, self._timed)
        speed = {
            name: took / self._workload.search(search.steps[name], self.course) for name, took in search.each.items()
        }
        left = self._left(before["seconds"] + search.seconds)
        return {"tokens": self._plan(speed).budgets_after_search(left), "seconds_per_token": speed}

    def _rescaled(self, budgets: Mapping[str, float], so_far: Sequence[Stage], searching: float) -> dict[str, Any]:
        last, workers, timed = so_far[-1], self.pool.workers, self._kept({}, self._timed)
        before = so_far[-2].shares[-1] if len(so_far) > 1 else 0.0
        trained = {
            name: sum(took) / len(took) / self._workload.training(budgets[name], last.shares, before)
            for name, took in last.seconds.items()
        }
        speed = {**timed["seconds_per_token"], **trained}
        spent = timed["seconds"] + searching
        spent += sum(seconds_of_all(chain.from_iterable(stage.seconds.values()), workers) for stage in so_far)
        scale = self._plan(speed).scale(budgets, last.shares[-1], self._left(spent))
        return {"scale": scale, "seconds_per_token": speed, "seconds": spent}

    def _left(self, spent: float) -> float:
        """Seconds left, given the time that the trainings took: after an interruption the clock alone would undercount
        it."""
        assert self.terms.seconds is not None
        return self.terms.seconds - max(spent, perf_counter() - self.began)

    @property
    def _workload(self) -> Workload:
        rates = len(FACTORS) if self.terms.search_rates else 1
        return Workload(self.terms.seeds, rates, self.course.recipe.decay, self.course.held_out)

    def _plan(self, speed: Mapping[str, float]) -> Plan:
        return Plan(self.contenders, speed, self._workload, self.course, self.terms.equal, self.pool.workers)

    def _given_up(self, budgets: Mapping[str, float], so_far: Sequence[Stage], scale: float) -> dict[str, Any]:
        return {"tokens": dict(budgets), "reached": [stage.shares[-1] for stage in so_far], "given_up": scale}

    def _config(self, after: Mapping[str, Any]) -> dict[str, Any]:
        course = self.course.config(self.contenders[0].arch, Replica(self.course.recipe.lr, 0), None)
        return {
            "protocol": PROTOCOL,
            "architectures": [{"name": c.name, **c.arch.identity()} for c in self.contenders],
            "course": {**course, "spec": ""},
            "terms": {name: value for name, value in vars(self.terms).items() if value is not None},
            "workers": self.pool.workers,
            **after,
        }

    def _key(self, after: Mapping[str, Any]) -> str:
        return record_key(PLAN, self._config(after))

    def _kept(self, after: Mapping[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return self.store.computed(PLAN, self._config(after), find).result


@dataclass(frozen=True)
class Stage:
    """A stage in the training of all contenders: `shares` of the planned budgets at which curves were measured, and the
    seconds of every training of each contender."""

    shares: list[float]
    seconds: dict[str, list[float]]


class _TooLate(Exception):
    """A stage was abandoned."""


@dataclass(frozen=True)
class _StageProgress:
    """Reports the progress of a stage, from the fraction `begin` of all training to `end`; abandons a stage that is
    late, if it `may_stop`."""

    planner: Planner
    on_share: OnShare
    begin: float
    end: float
    may_stop: bool
    began: float

    def __call__(self, done: float, total: float) -> None:
        self.on_share(self.begin + (self.end - self.begin) * done / total)
        if self.may_stop and self.planner.is_late(self.began, done / total):
            raise _TooLate


def train_in_stages(
    planner: Planner, budgets: Mapping[str, float], rates: Mapping[str, float], searching: float, runs: Path,
    on_share: OnShare,
) -> dict[str, list[list[Record]]]:  # fmt: skip
    """Train all seeds of all contenders to their budgets, or as far as time allows; records by contender, budget and
    seed. `searching`: seconds of the rate search."""
    pool, course, seeds = planner.pool, planner.course, planner.terms.seeds
    # Not on a GPU or a cluster: every stage would restart and recompile all trainings, and speeds vary less there.
    local = course.device == "cpu" and not pool.place.cluster
    cuts = STAGES if planner.terms.seconds is not None and local else STAGES[-1:]
    records: dict[str, list[list[Record]]] = {c.name: [] for c in planner.contenders}
    ended = dict.fromkeys(records, 0)
    stages: list[Stage] = []
    scale, reached = 1.0, 0.0
    for cut in cuts:
        if stages:
            scale = planner.scale(budgets, stages, searching)
        shares = [share for share in further_shares(scale, reached) if share <= 1.001 * cut * scale]
        if not shares:
            continue
        if stages and planner.given_up(budgets, stages, scale):
            break
        steps = {name: rungs(tokens, course, shares, ended[name]) for name, tokens in budgets.items()}
        asked = [
            (c.name, Leg(course, c.arch, stack, tuple(steps[c.name]), runs, ended[c.name]))
            for c in planner.contenders
            if steps[c.name]
            for stack in stacks([Replica(rates[c.name], seed) for seed in range(seeds)], course)
        ]
        may_stop = bool(stages) and min(ended.values()) >= LEAST_STEPS
        report = _StageProgress(planner, on_share, reached / scale, shares[-1] / scale, may_stop, perf_counter())
        try:
            trained = pool.run([leg for _, leg in asked], report)
        except _TooLate:
            planner.gave_up(budgets, stages, scale)
            break
        seconds: dict[str, list[float]] = {}
        by_name: dict[str, list[list[list[Record]]]] = {}
        for (name, _), at_budgets in zip(asked, trained, strict=True):
            by_name.setdefault(name, []).append(at_budgets)
            seconds.setdefault(name, []).append(sum(float(r.result["seconds"]) for at in at_budgets for r in at))
        for name, stacked in by_name.items():
            records[name] += [[record for at in together for record in at] for together in zip(*stacked, strict=True)]
            ended[name] = steps[name][-1]
        stages.append(Stage(shares, seconds))
        reached = shares[-1]
    return records
