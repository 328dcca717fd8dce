"""Budgets: what is equal for all, and comparisons in a given time that end in it, simulated with made-up speeds."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.model.architecture import Architecture
from plait.racing import comparison, planning
from plait.racing.budget import SHARES, Plan, Workload, rungs, weights
from plait.racing.comparison import compare
from plait.racing.contenders import Contender, read_contenders
from plait.racing.leg import KIND, Course, Leg
from plait.racing.planning import Terms
from plait.racing.rates import best_rate, rate_steps
from plait.racing.workers import seconds_of_all
from plait.records import Record, Store, provenance_of
from plait.training.recipe import decay_steps
from plait.workers.pool import Place

NAMES = ("attn", "gla", "mamba2")


@pytest.fixture(scope="module")
def contenders() -> list[Contender]:
    return read_contenders(NAMES, 32)


def test_workers_take_the_longest_first() -> None:
    assert seconds_of_all([1.0] * 9, 2) == 5.0
    assert seconds_of_all([2, 3, 2, 3, 2], 2) == 7.0
    assert seconds_of_all([3, 3, 2, 2, 2], 1) == 12.0
    assert seconds_of_all([], 2) == 0.0


def test_what_is_equal(contenders: list[Contender], course: Course) -> None:
    seconds = {"attn": 1.0, "gla": 2.0, "mamba2": 4.0}
    assert weights(contenders, course, "tokens", {}) == dict.fromkeys(NAMES, 1.0)
    assert weights(contenders, course, "time", seconds) == {"attn": 1.0, "gla": 0.5, "mamba2": 0.25}
    by_flops = weights(contenders, course, "flops", {})
    spent = {c.name: by_flops[c.name] * c.flops_per_token(course.recipe.seq_len) for c in contenders}
    assert max(spent.values()) == pytest.approx(min(spent.values()))
    with pytest.raises(UserError, match=r"--at flop: must be one of tokens, flops, time. Did you mean 'flops'"):
        weights(contenders, course, "flop", {})


def test_rungs_and_rates(course: Course) -> None:
    tokens = 1600 * course.tokens_per_step
    assert rungs(tokens, course) == [100, 200, 400, 800, 1600]
    assert rate_steps(tokens, course) == 200
    assert rate_steps(400 * course.tokens_per_step, course) == 96  # in fewer, no rate can be judged
    assert rate_steps(64 * course.tokens_per_step, course) == 64
    assert rungs(1, course) == [4]


def test_of_equally_good_rates_the_smaller_is_taken() -> None:
    """The larger is nearer to divergence, whichever was tried first."""
    assert best_rate({0.4: 2.5, 0.2: 2.0, 0.1: 2.0}, math.nan) == 0.1
    assert best_rate({0.1: math.inf, 0.2: 3.0}, math.nan) == 0.2
    assert best_rate({}, 0.3) == 0.3


def test_a_search_of_rates_has_time_for_one_beyond_its_range(course: Course, contenders: list[Contender]) -> None:
    """Three rates and one further for each of three architectures; nothing where no rates are searched."""
    budgets = dict.fromkeys(NAMES, 1600.0 * course.tokens_per_step)
    one = 200 * course.tokens_per_step + 96 / 3  # 200 steps, and 96 tokens scored at a third of the cost of training
    plan = Plan(contenders, dict.fromkeys(NAMES, 1e-3), Workload(3, 3, 0.2, 96), course)
    assert plan.searching(budgets) == pytest.approx(3 * (3 + 1) * 1e-3 * one)
    assert replace(plan, workload=Workload(3, 1, 0.2, 96)).searching(budgets) == 0


def test_a_time_that_is_too_short_is_refused_with_the_least(
    contenders: list[Contender], course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(contenders, dict.fromkeys(NAMES, 1e-2), Workload(3, 3, 0.2, 96), course)
    with pytest.raises(
        UserError, match=r"30 s are too short for 3 architectures of 3 seeds: .* about \d+ m \d+ s here"
    ) as told:
        plan.budgets(30.0, spent=5.0)
    assert "--seeds" in str(told.value)
    for load, busy in ((0.5, False), (99.0, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        with pytest.raises(UserError) as told:
            plan.budgets(30.0)
        assert ("or wait: other work keeps this machine busy (load 99 on " in str(told.value)) == busy
    assert min(plan.budgets(600.0).values()) > 64 * course.tokens_per_step


class MadeUpMachine:
    """In place of `Workers`: nothing is trained; a clock says how long it would have taken. `timing` and `scoring` are
    how wrong the timed steps are, and what a scored token takes of a trained one. `load`: from which second on
    everything takes how many times as long."""

    clock = 0.0
    load = (math.inf, 1.0)
    true: dict[str, float]
    timing = 1.0
    scoring = 0.4
    start = 4.0
    seed = 0

    def __init__(self, course: Course, store: Store, place: Place, mixers: object = (), log: object = ()) -> None:
        self.course, self.store, self.workers, self.speeds, self.where = course, store, place.workers or 1, {}, ""
        self.place = place
        self._trunks: dict[tuple[str, object], int] = {}

    def __enter__(self) -> MadeUpMachine:
        return self

    def __exit__(self, *_: object) -> None:
        type(self).clock += 1.0

    def step_seconds(self, archs: Sequence[Architecture], most: float | None = None) -> list[float]:
        per_step = [self.true[arch.text] * self.course.tokens_per_step for arch in archs]
        type(self).clock += self.start + seconds_of_all([4 * each for each in per_step] * 2, self.workers)
        return [self.timing * each for each in per_step]

    def run(self, legs: Iterable[Leg], on_tokens: Callable[[float, float], object]) -> list[list[list[Record]]]:
        legs = list(legs)
        order = sorted(legs, key=lambda leg: -leg.tokens * self.speeds.get(leg.arch.text, 1.0))
        free, began, total = [0.0] * self.workers, type(self).clock, float(sum(leg.tokens for leg in legs))
        found, ended = {}, []
        for place, leg in sorted(enumerate(legs), key=lambda each: order.index(each[1])):
            at = int(np.argmin(free))
            seconds = self._seconds(leg, began + free[at])
            found[place] = self._records(leg, seconds)
            free[at] += 0.2 + sum(seconds)
            ended.append((began + free[at], float(leg.tokens)))
        done = 0.0
        for now, tokens in sorted(ended):
            type(self).clock, done = now, done + tokens
            on_tokens(done, total)
        return [found[place] for place in range(len(legs))]

    def _seconds(self, leg: Leg, now: float) -> list[float]:
        """Of every budget: the trunk from where it stands up to its decay, the decay, the scoring."""
        found: list[float] = []
        at = self._trunks.get((leg.arch.text, leg.replicas), 0)
        for steps in leg.budgets:
            trunk = steps - decay_steps(self.course.recipe, steps)
            tokens = (max(0, trunk - at) + steps - trunk) * self.course.tokens_per_step
            slower = self.load[1] if now + sum(found) >= self.load[0] else 1.0
            found.append(slower * self.true[leg.arch.text] * (tokens + self.scoring * self.course.held_out))
            at = max(at, trunk)
        self._trunks[leg.arch.text, leg.replicas] = at
        return found

    def _records(self, leg: Leg, seconds: Sequence[float]) -> list[list[Record]]:
        """The best rate is somewhere between an eighth and eight times the recipe's: searches go on beyond the edge."""
        found = []
        rng = np.random.default_rng([self.seed, len(leg.arch.text)])
        best = self.course.recipe.lr * 2 ** rng.uniform(-3, 3)
        for steps, took in zip(leg.budgets, seconds, strict=True):
            rows = []
            for replica in leg.replicas:
                loss = 1 + 10 / steps + 0.1 * abs(np.log2(replica.lr / best)) + 0.001 * replica.seed
                result = {"loss": loss, "windows": [loss], "tokens": steps * self.course.tokens_per_step}
                config = self.course.config(leg.arch, replica, steps)
                rows.append(Record.of(KIND, config, {**result, "seconds": took}, provenance_of(0, took)))
            found.append(rows)
        return found


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("equal", ["tokens", "time"])
@pytest.mark.parametrize("seconds", [180.0, 1200.0])
def test_a_comparison_ends_in_its_time(
    contenders: list[Contender],
    store: Store,
    monkeypatch: Any,
    course: Course,
    workers: int,
    equal: str,
    seconds: float,
) -> None:
    """Whatever the speeds, the steps timed up to 8 % wrong, and however many rates are asked for."""
    monkeypatch.setattr(comparison, "Workers", MadeUpMachine)
    for draw in range(6):
        rng = np.random.default_rng(draw)
        MadeUpMachine.clock, MadeUpMachine.seed = 0.0, draw
        MadeUpMachine.true = {c.arch.text: 1e-4 * rng.uniform(0.5, 4) for c in contenders}
        MadeUpMachine.timing = rng.uniform(0.92, 1.08)
        machine_start = MadeUpMachine.start + 4 * sum(MadeUpMachine.true.values()) * course.tokens_per_step
        terms = Terms(seeds=3, equal=equal, seconds=seconds + draw)  # another plan each time
        started = comparison.time.perf_counter() - machine_start
        found = compare(contenders, course, terms, store, Path(), place=Place(workers=workers), started=started)
        assert 0.8 * seconds < MadeUpMachine.clock < 1.1 * terms.seconds, (draw, MadeUpMachine.clock)
        assert len({row.tokens for row in found.rows}) == (1 if equal == "tokens" else 3)


@pytest.mark.parametrize(("load", "longest"), [((40.0, 3.0), 1.1), ((90.0, 3.0), 1.15), ((0.0, 0.4), 1.0)])
def test_a_comparison_follows_the_speed_of_the_machine(
    contenders: list[Contender],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    course: Course,
    load: tuple[float, float],
    longest: float,
) -> None:
    """Other work that begins on the way and takes two thirds of the cores, or that ended as soon as steps were timed:
    budgets are scaled to the time that is left, alike for all."""
    monkeypatch.setattr(comparison, "Workers", MadeUpMachine)
    monkeypatch.setattr(planning, "perf_counter", lambda: MadeUpMachine.clock)
    monkeypatch.setattr(MadeUpMachine, "load", load)
    MadeUpMachine.clock, MadeUpMachine.timing = 0.0, 1.0
    MadeUpMachine.true = {c.arch.text: 1e-4 * each for c, each in zip(contenders, (1.0, 2.0, 3.0), strict=True)}
    terms = Terms(seeds=3, seconds=180.0, search_rates=False)
    found = compare(contenders, course, terms, store, Path(), place=Place(workers=2), started=0.0)
    assert 0.85 * 180 < MadeUpMachine.clock < longest * 180, MadeUpMachine.clock
    assert len({row.tokens for row in found.rows}) == 1
    for row in found.rows:
        tokens = [tokens for tokens, _ in row.curve]
        assert tokens == sorted(set(tokens))
        assert len(tokens) >= 3
        assert all(later >= 1.2 * earlier for earlier, later in itertools.pairwise(tokens))
        assert all(len(at) == 3 for at in row.records)
    MadeUpMachine.clock, MadeUpMachine.timing = 0.0, 2.0
    again = compare(contenders, course, terms, store, Path(), place=Place(workers=2), started=0.0)
    assert [row.tokens for row in again.rows] == [row.tokens for row in found.rows]  # what was decided once holds


def test_a_plan_is_kept(contenders: list[Contender], store: Store, monkeypatch: Any, course: Course) -> None:
    """Interrupted and gone on with on a machine that is now slower: the same budgets."""
    monkeypatch.setattr(comparison, "Workers", MadeUpMachine)
    budgets = []
    for slower in (1.0, 3.0):
        MadeUpMachine.true = {c.arch.text: slower * 1e-4 for c in contenders}
        MadeUpMachine.timing = 1.0
        found = compare(contenders, course, Terms(seconds=300.0), store, Path(), place=Place(workers=2))
        budgets.append([row.tokens for row in found.rows])
    assert budgets[0] == budgets[1]


def test_a_curve_costs_what_its_legs_cost(course: Course) -> None:
    """Tokens counted from the steps that a leg takes, one by one."""
    steps, at, taken = 1600, 0, 0
    for share in SHARES:
        budget = round(share * steps)
        trunk = budget - decay_steps(course.recipe, budget)
        taken += max(0, trunk - at) + budget - trunk
        at = max(at, trunk)
    workload = Workload(1, 1, course.recipe.decay, held_out=0)
    assert workload.training(steps) == pytest.approx(taken, rel=1e-3)


def test_too_short_a_time_for_rates_has_none_searched(
    contenders: list[Contender], store: Store, monkeypatch: Any, course: Course
) -> None:
    """Attention, GLA and Mamba-2 on two cores of a laptop in three minutes, with a step's true seconds."""
    monkeypatch.setattr(comparison, "Workers", MadeUpMachine)
    MadeUpMachine.clock, MadeUpMachine.timing = 0.0, 1.0
    large = replace(course, recipe=replace(course.recipe, batch=8, seq_len=256), held_out=2**15)
    MadeUpMachine.true = {c.arch.text: s / 2048 for c, s in zip(contenders, (0.17, 0.16, 0.25), strict=True)}
    found = compare(contenders, large, Terms(seconds=180.0), store, Path(), place=Place(workers=2))
    assert [row.rates for row in found.rows] == [{}, {}, {}]
    assert MadeUpMachine.clock < 1.1 * 180
    longer = compare(contenders, large, Terms(seconds=900.0), store, Path(), place=Place(workers=2))
    assert all(len(row.rates) >= 3 for row in longer.rows)
    assert min(row.tokens for row in longer.rows) > 2 * min(row.tokens for row in found.rows)
