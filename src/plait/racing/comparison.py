"""Compare architectures by training them: same text, same batches, same held-out windows, several seeds, each at a
learning rate that suits it.

1. The rate: one seed at a few rates around the usual one, for an eighth of the budget (`rates`).
2. The training: every seed to the full budget; annealed branches on the way give the learning curve.
3. The verdict: paired differences over seeds and windows (`analysis.paired`), and who would be best at other budgets
   (`analysis.foresight`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from plait.analysis.foresight import Foresight, foresee
from plait.analysis.learning_curve import CALIBRATION, extrapolate
from plait.analysis.paired import Compared, compare_losses
from plait.core.errors import UserError
from plait.model.reference_curves import reference_known
from plait.racing.budget import Plan, Workload, rungs, weights
from plait.racing.contenders import Contender
from plait.racing.leg import Course, Leg, loss_of, windows_of
from plait.racing.rates import (
    FACTORS,
    RATE_SHARE,
    RATE_STEPS,
    Search,
    best_rate,
    rate_steps,
    search_rates,
    stacks,
    usual_rate,
)
from plait.racing.workers import Workers
from plait.records import Record, Store, provenance_of, record_key
from plait.training.track import Replica
from plait.workers.pool import Place

PLAN = "compare-plan"
PROTOCOL = 3
REACH = 8.0  # how far foresight goes, in multiples of the longest training

#: Called with the name of the stage and the share of the work that is done, from 0 to 1.
OnStage = Callable[[str, float], object]


@dataclass(frozen=True)
class Terms:
    """The terms of a comparison. One of `tokens` (of the largest budget), `flops` and `seconds` (of the whole
    comparison) sets its length; `equal` says which quantity is the same for all contenders. `lr`: the learning rate of
    all, or the middle of the search (None: the usual one for the width)."""

    seeds: int = 5
    search_rates: bool = True
    equal: str = "tokens"
    tokens: float | None = None
    flops: float | None = None
    seconds: float | None = None
    lr: float | None = None


@dataclass(frozen=True)
class Row:
    contender: Contender
    lr: float
    tokens: int
    records: list[list[Record]]  # by budget and seed
    rates: dict[float, float]  # the search: rate → loss

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The learning curve: (tokens, mean loss of the seeds that did not diverge)."""
        found = []
        for at_budget in self.records:
            losses = [loss for loss in map(loss_of, at_budget) if math.isfinite(loss)]
            found.append((int(at_budget[0].result["tokens"]), sum(losses) / len(losses) if losses else math.inf))
        return found


@dataclass(frozen=True)
class Comparison:
    course: Course
    terms: Terms
    rows: list[Row]
    seconds: float  # of this call
    trained_seconds: float  # of all trainings, when they were done

    @cached_property
    def compared(self) -> Compared:
        last = {row.contender.name: row.records[-1] for row in self.rows}
        count = max(1, *(len(record.result["windows"]) for records in last.values() for record in records))
        return compare_losses(
            {
                name: {seed: windows_of(record, count) for seed, record in enumerate(records)}
                for name, records in last.items()
            }
        )

    @cached_property
    def foresight(self) -> Foresight | None:
        """Who is best, from the shortest observed budget to `REACH` times the longest. None if budgets are not equal in
        tokens, or fewer than two contenders have a finite loss."""
        observations = {
            row.contender.name: {
                seed: [(at[seed].result["tokens"], loss_of(at[seed])) for at in row.records]
                for seed in range(self.terms.seeds)
            }
            for row in self.rows
            if all(math.isfinite(loss) for _, loss in row.curve)
        }
        if len(observations) < 2 or self.terms.equal != "tokens":
            return None
        budgets = [float(tokens) for tokens, _ in self.rows[0].curve]
        longest = budgets[-1]
        budgets += [longest * 2**k for k in range(1, int(math.log2(min(REACH, CALIBRATION.reach))) + 1)]
        archs = {row.contender.name: row.contender.arch for row in self.rows if row.contender.name in observations}
        return foresee(extrapolate(observations, budgets, known=reference_known(archs)))


def compare(
    contenders: Sequence[Contender],
    course: Course,
    terms: Terms,
    store: Store,
    runs: Path,
    *,
    place: Place = Place(),  # noqa: B008 (a frozen value)
    log: tuple[str, ...] = (),
    on_stage: OnStage = lambda stage, share: None,
    started: float | None = None,
) -> Comparison:
    """Train what the store lacks, and compare. `started`: when `terms.seconds` began, as `time.perf_counter` counts."""
    began = time.perf_counter() if started is None else started
    sources = {s.hash: s for c in contenders for s in c.arch.mixer_sources.values()}
    with Workers(course, store, place, tuple(sources.values()), log) as pool:
        on_stage("timing", 0.0)
        plan = _Planner(contenders, course, terms, store, pool, began)
        budgets = plan.first()
        rates: dict[str, dict[float, float]] = {c.name: {} for c in contenders}
        usual = {c.name: terms.lr or usual_rate(c, course) for c in contenders}
        share = 0.0
        if plan.searches:
            share = RATE_SHARE * len(FACTORS) / (RATE_SHARE * len(FACTORS) + terms.seeds)
            steps = {c.name: rate_steps(budgets[c.name], course) for c in contenders}

            def searching(done: float) -> None:
                on_stage(_stage_name("learning rates", pool), share * done)

            search = search_rates(contenders, steps, usual, pool, runs, on_share=searching)
            rates, budgets = search.losses, plan.after(search)
        chosen = {c.name: best_rate(rates[c.name], usual[c.name]) for c in contenders}
        legs = [
            Leg(course, c.arch, stack, tuple(rungs(budgets[c.name], course)), runs)
            for c in contenders
            for stack in stacks([Replica(chosen[c.name], seed) for seed in range(terms.seeds)], course)
        ]
        found = pool.run(
            legs, lambda done, total: on_stage(_stage_name("training", pool), share + (1 - share) * done / total)
        )
    by_name: dict[str, list[list[Record]]] = {}
    names = [c.name for c in contenders for _ in stacks([Replica(1.0, s) for s in range(terms.seeds)], course)]
    for name, at_budgets in zip(names, found, strict=True):
        before = by_name.setdefault(name, [[] for _ in at_budgets])
        by_name[name] = [[*old, *new] for old, new in zip(before, at_budgets, strict=True)]
    rows = [
        Row(c, chosen[c.name], int(by_name[c.name][-1][0].result["tokens"]), by_name[c.name], rates[c.name])
        for c in contenders
    ]
    trained = sum(float(r.result["seconds"]) for row in rows for at in row.records for r in at)
    return Comparison(course, terms, rows, time.perf_counter() - began, trained)


def _stage_name(stage: str, pool: Workers) -> str:
    return f"{stage} ({pool.where})" if pool.where else stage


@dataclass(frozen=True)
class _Planner:
    """Decides how many tokens each contender gets. Plans made from measured times are stored for resuming."""

    contenders: Sequence[Contender]
    course: Course
    terms: Terms
    store: Store
    pool: Workers
    began: float

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
        found = self._kept({}, self._timed)
        by_name = found["seconds_per_token"]
        self.pool.speeds.update({c.arch.text: by_name[c.name] for c in self.contenders})
        return dict(found["tokens"])

    def after(self, search: Search) -> dict[str, float]:
        """The budgets after the search of rates, from its measured speed; those that do not depend on time stay."""
        if self.terms.seconds is None:
            return self.first()
        return dict(self._kept({"steps": search.steps}, partial(self._trained, search))["tokens"])

    def _timed(self) -> dict[str, Any]:
        course, terms = self.course, self.terms
        timed = self.pool.step_seconds([c.arch for c in self.contenders])
        speed = {c.name: took / course.tokens_per_step for c, took in zip(self.contenders, timed, strict=True)}
        spent = time.perf_counter() - self.began
        if terms.seconds is not None:
            budgets, search = self._affordable(speed, spent)
        else:
            search = terms.search_rates
            share = weights(self.contenders, course, terms.equal, speed)
            budgets = {name: (terms.tokens or 0.0) * each for name, each in share.items()}
        return {"tokens": budgets, "seconds_per_token": speed, "seconds": spent, "search": search}

    def _affordable(self, speed: Mapping[str, float], spent: float) -> tuple[dict[str, float], bool]:
        """Budgets that fit into the time, and whether rates are searched: only if every budget still has the steps
        needed to compare rates."""
        assert self.terms.seconds is not None
        plan = self._plan(speed)
        if self.terms.search_rates:
            with suppress(UserError):
                budgets = plan.budgets(self.terms.seconds, spent)
                if min(map(self.course.steps, budgets.values())) >= RATE_STEPS:
                    return budgets, True
        without = replace(plan, workload=replace(plan.workload, rates=1))
        return without.budgets(self.terms.seconds, spent), False

    @property
    def searches(self) -> bool:
        """Whether rates are searched: if asked for, and if the time allows it."""
        if self.terms.seconds is None:
            return self.terms.search_rates
        return bool(self._kept({}, self._timed)["search"])

    def _trained(self, search: Search) -> dict[str, Any]:
        assert self.terms.seconds is not None
        before, workload = self._kept({}, self._timed), self._workload
        speed = {name: took / workload.search(search.steps[name], self.course) for name, took in search.each.items()}
        left = self.terms.seconds - before["seconds"] - search.seconds
        return {"tokens": self._plan(speed).budgets_after_search(left), "seconds_per_token": speed}

    @property
    def _workload(self) -> Workload:
        rates = len(FACTORS) if self.terms.search_rates else 1
        return Workload(self.terms.seeds, rates, self.course.recipe.decay, self.course.held_out)

    def _plan(self, speed: Mapping[str, float]) -> Plan:
        return Plan(self.contenders, speed, self._workload, self.course, self.terms.equal, self.pool.workers)

    def _kept(self, after: Mapping[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        course = self.course.config(self.contenders[0].arch, Replica(self.course.recipe.lr, 0), None)
        config = {
            "protocol": PROTOCOL,
            "architectures": [{"name": c.name, **c.arch.identity()} for c in self.contenders],
            "course": {**course, "spec": ""},
            "terms": {name: value for name, value in vars(self.terms).items() if value is not None},
            "workers": self.pool.workers,
            **after,
        }
        known = self.store.get(record_key(PLAN, config))
        if known is None:
            begun = time.time()
            known = Record.of(PLAN, config, find(), provenance_of(begun, time.time() - begun))
            self.store.put(known)
        return known.result
