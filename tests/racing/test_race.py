"""Races on synthetic learning curves, and one on real ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.analysis.forecast import Prediction
from plait.core.errors import UserError
from plait.data import open_corpus
from plait.model.architecture import architecture
from plait.racing.contenders import Contender
from plait.racing.document import _against, _verdict, race_result
from plait.racing.leg import KIND, Course, Leg
from plait.racing.race import race, rungs_to, speeds
from plait.racing.rates import RATE_STEPS
from plait.racing.workers import Workers
from plait.records import Record, open_store
from plait.records.comparison import RaceResult
from plait.training.recipe import Recipe
from plait.training.track import track_recipe

COURSE = Course("text", None, "print", track_recipe(Recipe(batch=4, seq_len=32), 4), held_out=64)
#: Loss = floor + height × (tokens / 1000)^−power: slow and steady is behind at first and wins in the end.
CURVES = {"fast": (2.0, 1.0, 0.5), "steady": (1.5, 1.7, 0.35), "poor": (2.6, 1.0, 0.4), "bad": (3.0, 1.0, 0.3)}
SPECS = {name: f"d=16 vocab=32 | attn[heads=2] swiglu[inner={16 * (n + 1)}]" for n, name in enumerate(CURVES)}


class Pool:
    """Trains by formula; remembers what it was asked for."""

    course, workers = COURSE, 2

    def __init__(self, diverging: str = "", best: float = 2.0) -> None:
        """`best`: the best rate, in doublings of the recipe's. The usual one at this width is 1, so that 0, 1 and 2 are
        tried first."""
        self.legs: list[tuple[str, int, float]] = []
        self.diverging, self.best = diverging, best

    def run(self, legs: list[Leg], on_tokens: Any = None) -> list[list[list[Record]]]:
        names = {architecture(spec).text: name for name, spec in SPECS.items()}
        found = []
        for leg in legs:
            name = names[leg.arch.text]
            (replica,), (steps,) = leg.replicas, leg.budgets
            self.legs.append((name, steps, replica.lr))
            floor, height, power = CURVES[name]
            tokens = steps * COURSE.tokens_per_step
            detuned = 0.02 * abs(math.log2(replica.lr / COURSE.recipe.lr) - self.best)
            loss = None if name == self.diverging else floor + height * (tokens / 1000) ** -power + detuned
            result = {"loss": loss, "windows": [], "tokens": tokens, "tokens_trained": tokens, "seconds": 1.0}
            found.append([[Record.of(KIND, COURSE.config(leg.arch, replica, steps), result, {})]])
        return found


def contenders(*names: str) -> list[Contender]:
    return [Contender(name, architecture(SPECS[name])) for name in names or CURVES]


def held(pool: Pool, target: float, *names: str, limit: float = 0.4) -> Any:
    those = contenders(*names)
    return race(those, target, pool, Path("nowhere"), speed=dict.fromkeys(CURVES, 1e-5), limit=limit)  # type: ignore[arg-type]


def loss_at(name: str, tokens: float) -> float:
    floor, height, power = CURVES[name]
    return floor + height * (tokens / 1000) ** -power


def test_the_winner_depends_on_the_budget() -> None:
    """Curves cross at about 6,500 tokens."""
    for target in (3e3, 1e6):
        best = min(CURVES, key=lambda name: loss_at(name, target))
        found = held(Pool(), target)
        prediction = found.prediction_at(dict.fromkeys(CURVES, found.target))
        assert prediction.pick == best
    assert {min(CURVES, key=lambda name: loss_at(name, target)) for target in (3e3, 1e6)} == {"fast", "steady"}


def test_it_costs_what_it_may_and_stops_those_that_cannot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival of the best keeps the race going after the others are out of it."""
    monkeypatch.setitem(CURVES, "rival", (1.5, 1.71, 0.35))
    monkeypatch.setitem(SPECS, "rival", "d=16 vocab=32 | attn[heads=2] swiglu[inner=80]")
    pool = Pool()
    found = held(pool, 1e6)
    assert found.cost <= 0.4
    assert "bad" in found.decision.stopped
    most = {name: max(steps for n, steps, _ in pool.legs if n == name) for name in CURVES}
    assert most["bad"] < most["steady"]


def test_a_race_in_a_given_time_ends_earlier_where_trainings_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seconds in the records, so that a race that was killed goes on alike."""
    speed = 1e-5
    monkeypatch.setattr("plait.racing.race.RATES_AT_MOST", 0.0)  # no search of rates
    run, trained = Pool.run, dict[float, int]()

    def slowed(slowdown: float) -> Any:
        def at(self: Pool, legs: list[Leg], on_tokens: Any = None) -> list[list[list[Record]]]:
            found = run(self, legs, on_tokens)
            for ((record,),) in found:
                record.result["seconds"] = slowdown * speed * (record.result["tokens"] + COURSE.held_out)
            return found

        return at

    for slowdown in (1.0, 4.0):
        monkeypatch.setattr(Pool, "run", slowed(slowdown))
        pool, those = Pool(), contenders()
        found = race(those, 1e6, pool, Path("nowhere"), speed=dict.fromkeys(CURVES, speed), seconds=8.0)  # type: ignore[arg-type]
        trained[slowdown] = sum(steps for _, steps, _ in pool.legs)
        assert found.slowdown == pytest.approx(slowdown, rel=0.2)
        assert found.slowed == (slowdown > 1)
    assert trained[4.0] < 0.6 * trained[1.0]


def test_what_the_search_of_rates_trained_counts_where_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that becomes busy during the search, candidates were judged by a first rung of a few steps, while
    every one of them had been trained for eight times as many."""
    run, speed = Pool.run, 1e-5

    def slow(self: Pool, legs: list[Leg], on_tokens: Any = None) -> list[list[list[Record]]]:
        found = run(self, legs, on_tokens)
        for ((record,),) in found:
            record.result["seconds"] = 20 * speed * (record.result["tokens"] + COURSE.held_out)
        return found

    monkeypatch.setattr(Pool, "run", slow)
    pool = Pool()
    found = race(contenders(), 1e6, pool, Path("nowhere"), speed=dict.fromkeys(CURVES, speed), seconds=8.0)  # type: ignore[arg-type]
    assert found.searched
    assert found.slowed
    judged = min(steps for steps in found.rungs if steps >= RATE_STEPS)
    assert max(steps for _, steps, _ in pool.legs) == judged  # nothing more was trained
    assert found.longest == judged * COURSE.tokens_per_step
    assert not found.starved
    for name in set(CURVES) - set(found.decision.stopped):
        assert found.records[name][-1][0].result["loss"] == pytest.approx(loss_at(name, found.longest), abs=0.01)


def test_progress_is_told_during_a_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run, told = Pool.run, []

    def telling(self: Pool, legs: list[Leg], on_tokens: Any = None) -> list[list[list[Record]]]:
        for done in (0.0, 0.5, 1.0):
            on_tokens(done, 1.0)
        return run(self, legs, on_tokens)

    monkeypatch.setattr(Pool, "run", telling)
    race(
        contenders(), 3e3, Pool(), Path("nowhere"), speed=dict.fromkeys(CURVES, 1e-5), limit=0.9,  # type: ignore[arg-type]
        on_stage=lambda stage, share: told.append(share),
    )  # fmt: skip
    assert told == sorted(told)
    assert len(set(told[:3])) == 3  # in the first round


def test_a_target_of_few_steps_is_said_to_be_one() -> None:
    """The warm-up of these takes 4 steps of 128 tokens each."""
    for target, said in ((3e3, True), (1e6, False)):
        found = held(Pool(), target)
        tokens = dict.fromkeys(CURVES, float(found.target))
        notes = race_result(found, found.prediction_at(tokens), tokens).notes
        assert [("4 of them warm-up" in note) for note in notes] == [True] * said
        assert "has 4 steps, no more than the 4 of its warm-up:" in COURSE.few_steps(1.0, "")
        assert not any("--batch" in note for note in notes)  # of a design, that is what models are measured with


def test_rates_are_chosen_early_and_gone_on_with() -> None:
    pool = Pool()
    found = held(pool, 1e6)
    assert found.searched
    assert set(found.rates.values()) == {4 * COURSE.recipe.lr}
    judged = min(steps for _, steps, lr in pool.legs if lr == COURSE.recipe.lr)
    assert judged == min(steps for steps in found.rungs if steps >= RATE_STEPS)
    later = {lr for _, steps, lr in pool.legs if steps > judged}
    assert later == {4 * COURSE.recipe.lr}
    poor = held(Pool(), 1e6, limit=0.02)  # a search would take too much of so little
    assert not poor.searched
    assert set(poor.rates.values()) == {2 * COURSE.recipe.lr}


@pytest.mark.parametrize("best", [-1, 3])
def test_a_best_rate_outside_of_the_range_is_found_and_paid_for(best: int) -> None:
    """Without it all would be judged at twice, or half, their best rate."""
    pool = Pool(best=best)
    found = held(pool, 1e6, limit=0.3)
    assert set(found.rates.values()) == {2.0**best * COURSE.recipe.lr}
    judged = min(steps for steps in found.rungs if steps >= RATE_STEPS)
    tried = {(name, lr) for name, steps, lr in pool.legs if steps == judged and lr != found.rates[name]}
    others = len(tried) * judged / (len(CURVES) * found.rungs[-1])
    raced = sum(0.2 * steps for name, steps, lr in pool.legs if lr == found.rates[name])
    assert found.cost > others + raced / (len(CURVES) * found.rungs[-1])
    assert found.cost <= 0.3


def test_a_race_within_the_warm_up_calls_nobody_better() -> None:
    """At most eight steps, four of them warm-up: whoever is ahead there, all that did not diverge may be the best."""
    for diverging, chances in (("", {0.25}), ("poor", {0.0, 1 / 3})):
        found = held(Pool(diverging), 4e3, limit=0.3)
        assert found.starved
        assert found.foresight is not None
        assert set(found.foresight.rows[-1].p_best.values()) == chances
        tokens = dict.fromkeys(CURVES, float(found.target))
        prediction = found.prediction_at(tokens)
        assert set(prediction.p_best.values()) == chances
        result = race_result(found, prediction, tokens)
        told = {pair.b: pair.verdict for pair in result.paired}
        assert {told.pop(name) for name in CURVES if name == diverging} <= {result.paired[0].a}
        assert set(told.values()) == {"not distinguishable"}
        assert result.verdict.startswith("not distinguishable after so few steps; ")
        assert result.notes
        assert {row.interval for row in (*result.architectures, *result.paired)} == {None}, "known to be too narrow"
    longer = held(Pool(), 1e5, limit=1.0)
    assert not longer.starved
    tokens = dict.fromkeys(CURVES, float(longer.target))
    result = race_result(longer, longer.prediction_at(tokens), tokens)
    assert None not in {row.interval for row in (*result.architectures, *result.paired)}
    assert max(longer.foresight.rows[-1].p_best.values()) > 0.5


def test_rates_that_are_given_are_kept() -> None:
    given = dict.fromkeys(CURVES, 1e-4)
    found = race(contenders(), 1e6, Pool(), Path("nowhere"), speed=dict.fromkeys(CURVES, 1e-5), limit=0.4, rates=given)  # type: ignore[arg-type]
    assert found.rates == given


def test_the_same_again() -> None:
    one, other = Pool(), Pool()
    assert held(one, 1e6).decision.train == held(other, 1e6).decision.train
    assert one.legs == other.legs


def test_a_diverged_candidate_stops_and_loses() -> None:
    pool = Pool(diverging="steady")
    found = held(pool, 1e6)
    tokens = dict.fromkeys(CURVES, found.target)
    prediction = found.prediction_at(tokens)
    assert prediction.pick == "fast"
    assert prediction.p_best["steady"] == 0.0
    result = race_result(found, prediction, tokens)
    rows = {row.name: row for row in result.architectures}
    assert rows["steady"].loss is None
    assert rows["steady"].interval is None
    assert RaceResult.from_dict(json.loads(json.dumps(result.as_dict(), allow_nan=False))) == result
    assert len({leg[1] for leg in pool.legs if leg[0] == "steady"}) <= 2  # where rates are chosen, and the first rung


@pytest.mark.parametrize(("apart", "told"), [(0.005, "not distinguishable"), (0.02, "low")])
def test_no_difference_below_the_noise_is_called_one(apart: float, told: str) -> None:
    """However sure the forecasts are: 1 % of the loss is what seeds make."""
    rng = np.random.default_rng(0)
    loss_DC = np.stack([np.ones(500), np.full(500, 1 + apart)], 1) * np.exp(1e-4 * rng.normal(size=(500, 2)))
    prediction = Prediction(["low", "high"], 1e6, loss_DC, noise=0.01)
    assert prediction.p_better("low", "high") > 0.99
    assert _against(prediction, "low", "high").verdict == told
    assert _verdict(prediction, "low") == (
        "low is best (P(best) > 99 %)"
        if told == "low"
        else "low is the best choice (P(best) > 99 %); not ruled out: high"
    )


def test_many_that_are_each_unlikely_are_not_ruled_out_together() -> None:
    """Each of ten others is worse with a probability of about 96 %, but one of them is better in a third of the draws:
    the pick was called the best, better than every other."""
    rng = np.random.default_rng(0)
    loss_DC = np.exp(rng.normal([0.0, *[0.06] * 10], [1e-6, *[0.06 / 1.75] * 10], (4000, 11)))
    names = ["pick", *(f"other{number}" for number in range(10))]
    prediction = Prediction(names, 1e6, loss_DC, noise=1e-4)
    assert all(prediction.p_better("pick", other) > 0.95 for other in names[1:])
    assert 0.6 < prediction.p_best["pick"] < 0.7
    ruled_out = [other for other in names[1:] if _against(prediction, "pick", other).verdict == "pick"]
    assert sum(prediction.p_best[other] for other in ruled_out) <= 0.05
    assert _verdict(prediction, "pick").startswith("pick is the best choice (P(best) 6")
    assert not any(other in _verdict(prediction, "pick").split(": ")[1].split(", ") for other in ruled_out)


@pytest.mark.parametrize("blind", [False, True])
def test_if_all_others_diverge_one_is_the_best_however_short_the_race(blind: bool) -> None:
    """Of a race of a few steps, "not distinguishable" was said, and a diverged candidate was listed as undecided."""
    prediction = Prediction(["a", "b"], 1e6, np.array([[1.0, np.inf]] * 8), noise=0.01, blind=blind)
    assert _against(prediction, "a", "b").verdict == "a"
    assert _verdict(prediction, "a").startswith("a is best")


@pytest.mark.parametrize("blind", [False, True])
def test_if_all_diverge_none_is_the_best(blind: bool) -> None:
    prediction = Prediction(["a", "b"], 1e6, np.full((8, 2), np.inf), noise=0.01, blind=blind)
    assert prediction.p_best == {"a": 0.0, "b": 0.0}
    assert _against(prediction, prediction.pick, "b").verdict == "not distinguishable"
    assert _verdict(prediction, prediction.pick) == "all diverged"


def test_one_candidate_alone_and_none() -> None:
    found = held(Pool(), 1e5, "fast")
    tokens = {"fast": float(found.target)}
    result = race_result(found, found.prediction_at(tokens), tokens)
    assert result.verdict == "fast alone"
    assert result.paired == ()
    with pytest.raises(UserError, match="needs a candidate"):
        race([], 1e5, Pool(), Path("nowhere"), speed={})  # type: ignore[arg-type]


def test_every_candidate_at_its_own_budget() -> None:
    """Equal time is more tokens to one that is quick."""
    found = held(Pool(), 1e6, "fast", "steady", limit=1.0)
    plenty = {"fast": float(found.target), "steady": found.target / 100}
    assert loss_at("fast", plenty["fast"]) < loss_at("steady", plenty["steady"])
    assert found.prediction_at(plenty).pick == "fast"
    assert found.prediction_at(dict.fromkeys(plenty, float(found.target))).pick == "steady"


def test_nothing_is_said_far_beyond_what_was_trained() -> None:
    found = held(Pool(), 1e6)
    assert all(row.tokens <= found.reach for row in found.foresight.rows)
    with pytest.raises(UserError, match="beyond what these curves can speak about"):
        found.prediction_at(dict.fromkeys(CURVES, 3 * found.reach))


def test_foresight_reaches_four_times_the_target() -> None:
    found = held(Pool(), 3e3, limit=1.0)
    rungs = [steps * COURSE.tokens_per_step for steps in found.rungs]
    assert found.reach >= 4 * found.target
    assert found.forecast.budgets == [*rungs, 2 * found.target, 4 * found.target]


def test_scoring_at_every_rung_is_part_of_the_time() -> None:
    """At 1 ms per token, and a third of it per scored token; two workers, with a margin of a quarter."""
    pools = [Pool() for _ in range(3)]
    for pool in pools:
        pool.course = replace(COURSE, held_out=6000)
    those, speed = contenders("fast", "steady"), {"fast": 1e-3, "steady": 1e-3}
    rungs = rungs_to(3e4, COURSE)
    scoring = len(rungs) * 2 * 6000 * 1e-3 / 3
    whole = 2 * 1e-3 * rungs[-1] * COURSE.tokens_per_step
    race(those, 3e4, pools[0], Path("nowhere"), speed=speed, seconds=20.0)  # type: ignore[arg-type]
    for pool, spent in ((pools[1], scoring), (pools[2], scoring / len(rungs))):
        limit = (20.0 * 2 / 1.25 - spent) / whole
        race(those, 3e4, pool, Path("nowhere"), speed=speed, limit=limit)  # type: ignore[arg-type]
    assert pools[0].legs == pools[1].legs
    assert len(pools[0].legs) < len(pools[2].legs)  # scored once, there would be time for more


def test_rungs_double_up_to_the_target() -> None:
    assert rungs_to(128 * 4096, COURSE) == [32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert rungs_to(128 * 100, COURSE) == [25, 50, 100]
    assert rungs_to(1, COURSE) == [4]


def test_a_real_one_is_found_again(tmp_path: Path) -> None:
    corpus = open_corpus("builtin:language")
    recipe = track_recipe(Recipe(batch=2, seq_len=16, lr=5e-3), 4)
    course = Course("builtin:language", None, corpus.fingerprint, recipe, held_out=64)
    small = [
        Contender("attn", architecture("d=16 vocab=32 | attn[heads=2] swiglu[inner=16]")),
        Contender("gla", architecture("d=16 vocab=32 | gla[heads=2] swiglu[inner=16]")),
    ]
    found = []
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store, Workers(course, store) as pool:
        speed = speeds(small, pool)
        assert speeds(small, pool) == speed
        for _ in range(2):
            raced = race(small, 32 * 64, pool, tmp_path, speed=speed, limit=0.8)
            found.append(raced.observations)
    assert found[0] == found[1]
    assert all(math.isfinite(loss) for runs in found[0].values() for run in runs.values() for _, loss in run)
