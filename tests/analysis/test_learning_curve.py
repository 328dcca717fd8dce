"""Extrapolation of learning curves: properties of all methods, recovered power laws, crossings, errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from benchmark_modules import load_benchmark

from plait.analysis.forecast import Forecast, foresee
from plait.analysis.learning_curve import CALIBRATION, WAYS, Calibration, extrapolate, pooled_noise, read_curves
from plait.core.errors import UserError

if TYPE_CHECKING:
    from plait.analysis.curve_library import Known

TRUTH = Path(__file__).parents[2] / "benchmarks/results/2026-11-16-h200-truth.json"
simulate_table = load_benchmark("simulated_curves").simulate_table
BUDGETS = [2.0**k * 1e6 for k in range(6)]
#: Slopes that last.
STEADY = {
    "slope_mean": -0.25,
    "slope_common": 0.15,
    "length_common": 4.0,
    "slope": 0.06,
    "length": 1.5,
    "tie": -0.3,
    "shrink": 0.1,
}
Runs = dict[str, dict[int, list[tuple[float, float]]]]


def power_law(
    offset: float, scale: float, alpha: float, until: int = 4, seeds: int = 1
) -> dict[int, list[tuple[float, float]]]:
    curve = [(t, offset + scale * (t / 1e6) ** -alpha) for t in BUDGETS[:until]]
    return dict.fromkeys(range(seeds), curve)


@pytest.fixture
def three() -> Runs:
    return {"low": power_law(0.5, 1.0, 0.5), "mid": power_law(0.6, 1.2, 0.5), "high": power_law(0.8, 1.5, 0.4)}


@pytest.mark.parametrize("way", WAYS)
class TestEveryWay:
    def test_draws_are_joint_and_repeatable(self, way: str, three: Runs) -> None:
        one, again = (extrapolate(three, BUDGETS[4:], way, draws=300, seed=7) for _ in range(2))
        assert one.loss_DBC.shape == (300, 2, 3)
        np.testing.assert_array_equal(one.loss_DBC, again.loss_DBC)
        other = extrapolate(three, BUDGETS[4:], way, draws=300, seed=8)
        assert not np.array_equal(one.loss_DBC, other.loss_DBC)

    def test_the_order_of_clear_curves_is_kept(self, way: str, three: Runs) -> None:
        seen = extrapolate(three, BUDGETS[-1:], way).at(BUDGETS[-1])
        assert seen.ranking == ["low", "mid", "high"]
        assert seen.pick == "low"
        assert sum(seen.p_best.values()) == pytest.approx(1)
        assert seen.p_best["low"] > 0.8
        assert seen.p_better("low", "high") > 0.9
        assert seen.regret["low"] < 0.02 < seen.regret["high"]

    def test_uncertainty_grows_with_the_distance(self, way: str, three: Runs) -> None:
        near, far = (extrapolate(three, [t], way, reach=100).at(t).interval("mid") for t in (1e7, 1e8))
        assert math.log(far[1] / far[0]) > 1.5 * math.log(near[1] / near[0])

    def test_names_in_any_order_give_the_same(self, way: str, three: Runs) -> None:
        turned = {name: three[name] for name in reversed(three)}
        one, other = (extrapolate(o, BUDGETS[-1:], way, draws=4000).at(BUDGETS[-1]).loss for o in (three, turned))
        assert one == pytest.approx({name: other[name] for name in one}, rel=0.02)

    def test_a_diverged_candidate_is_never_best(self, way: str, three: Runs) -> None:
        seen = extrapolate({**three, "gone": {0: [(1e6, 0.1), (2e6, math.nan)]}}, BUDGETS[-1:], way).at(BUDGETS[-1])
        assert seen.p_best["gone"] == 0
        assert seen.ranking[-1] == "gone"
        assert seen.interval("gone") == (math.inf, math.inf)
        assert seen.pick == "low"

    def test_one_candidate_with_one_point(self, way: str) -> None:
        seen = extrapolate({"only": {0: [(1e6, 2.0)]}}, [4e6], way).at(4e6)
        assert seen.p_best == {"only": 1.0}
        low, high = seen.interval("only")
        assert low < seen.loss["only"] < min(high, 2.1)

    def test_far_beyond_the_data_is_refused(self, way: str, three: Runs) -> None:
        with pytest.raises(UserError, match=r"longest has 8e\+06 tokens, which reaches to 1\.28e\+08 \(16 times\)"):
            extrapolate(three, [1e9], way, Calibration(reach=16))
        extrapolate(three, [1e9], way, reach=1000, draws=10)

    def test_a_second_seed_narrows(self, way: str, three: Runs) -> None:
        twice = {name: {0: runs[0], 1: runs[0]} for name, runs in three.items()}
        one, two = (extrapolate(o, [8e6], way, draws=4000).at(8e6).interval("mid", runs=None) for o in (three, twice))
        assert two[1] - two[0] < one[1] - one[0]


def test_the_parametric_fit_finds_a_power_law_again() -> None:
    """Where there are enough points and no noise, to a per cent, as far as eight times on."""
    tokens = [2.0**k * 1e6 for k in range(9)]
    truth = [0.7 + 1.4 * (t / 1e6) ** -0.35 for t in tokens]
    calm = Calibration(noise=1e-4, stray=0.0)
    seen = extrapolate({"a": {0: list(zip(tokens[:6], truth[:6], strict=True))}}, tokens[6:], "parametric", calm)
    found = [seen.at(t).loss["a"] for t in tokens[6:]]
    assert found == pytest.approx(truth[6:], rel=0.01)


def test_the_hierarchical_way_sees_who_catches_up() -> None:
    """One starts behind and falls faster: the last loss does not foresee it, the slope does."""
    x = np.log(np.array(BUDGETS) / BUDGETS[0])
    steady, chasing = 2.0 * np.exp(-0.25 * x), 2.3 * np.exp(-0.33 * x)  # cross after 5.75 M tokens
    runs: Runs = {
        "steady": {0: list(zip(BUDGETS[:3], steady[:3].tolist(), strict=True))},
        "chasing": {0: list(zip(BUDGETS[:3], chasing[:3].tolist(), strict=True))},
        "third": {0: [(t, 1.2 * loss) for t, loss in zip(BUDGETS[:3], steady[:3].tolist(), strict=True)]},
    }
    calm = Calibration(noise=0.002, noise_freedom=50, process=STEADY)
    by_slope, by_last = (extrapolate(runs, BUDGETS[-1:], way, calm).at(BUDGETS[-1]) for way in ("hierarchical", "last"))
    assert by_last.pick == "steady"
    assert by_slope.pick == "chasing"
    assert by_slope.p_best["third"] < 0.05


class Silent:
    """A library that speaks of none of the candidates."""

    def speaks_of(self, names: object) -> bool:
        return False


def test_forecasts_of_short_trainings_hold_what_came_out() -> None:
    """Real curves fall faster at first: with one slope for all budgets the intervals held 36 to 64 % of these."""
    table = json.loads(TRUTH.read_text())
    curves = {(run["architecture"], run["seed"]): run["annealed"] for run in table["runs"] if run["text"] == "stdlib"}
    names, rng = sorted({name for name, _ in curves}), np.random.default_rng(0)
    for seen, ahead in ((2, 1), (2, 2), (3, 1)):
        held = []
        for _ in range(8):
            chosen = rng.choice(names, 8, replace=False).tolist()
            observed: Runs = {name: {1: [(t, loss) for t, loss in curves[name, 1][:seen]]} for name in chosen}
            target = curves[chosen[0], 1][seen + ahead - 1][0]
            found = extrapolate(observed, [target], draws=400, known=cast("Known", Silent())).at(target)
            for name in chosen:
                low, high = found.interval(name, runs=2)
                held.append(low <= np.mean([curves[name, seed][seen + ahead - 1][1] for seed in (1, 2)]) <= high)
        assert np.mean(held) > 0.8, (seen, ahead)


def test_what_all_curves_lose_more_compares_nobody(three: Runs) -> None:
    early = {name: {s: [(t / 64, loss) for t, loss in run] for s, run in runs.items()} for name, runs in three.items()}
    known = cast("Known", Silent())
    target = BUDGETS[-1] / 64
    plain, moved = (
        extrapolate(early, [target], calibration=c, known=known).at(target)
        for c in (replace(CALIBRATION, decline=()), CALIBRATION)
    )
    assert plain.p_best == moved.p_best
    assert plain.regret == moved.regret
    assert plain.ranking == moved.ranking
    assert all(moved.loss[name] < plain.loss[name] for name in three)


def test_mean_curves_fall_as_the_table_says() -> None:
    made = Calibration(decline=((1e6, 0.3), (4e6, 0.1)))
    x = np.log([0.5e6, 1e6, 2e6, 4e6, 8e6])
    steps = np.diff(made.declined(x)) / np.log(2)
    assert steps == pytest.approx([0.3, 0.25, 0.15, 0.1])


def test_simulated_intervals_hold_the_truth() -> None:
    """Drawn by the process's own kind of curve: 90 % intervals hold 80 % at least, and are of use."""
    held, widths = [], []
    for draw in range(12):
        table = simulate_table(np.random.default_rng(draw), 8, 4, late=0.2)
        known = table.observations(dict.fromkeys(table.names, 5), [0])
        seen = extrapolate(known, table.budgets[-1:], calibration=Calibration(process=STEADY), draws=600).at(
            table.budgets[-1]
        )
        for name, truth in zip(table.names, table.truth.tolist(), strict=True):
            low, high = seen.interval(name, runs=2)
            held.append(low <= truth <= high)
            widths.append(math.log(high / low))
    assert np.mean(held) >= 0.8
    assert np.median(widths) < 0.8


def test_seed_noise_is_pooled_over_candidates() -> None:
    rng = np.random.default_rng(0)
    runs = {str(c): {s: [(t, math.exp(rng.normal(0, 0.03))) for t in BUDGETS] for s in range(3)} for c in range(20)}
    assert pooled_noise(read_curves(runs), Calibration(noise=0.001, noise_freedom=1)) == pytest.approx(0.03, rel=0.2)
    alone = {name: {0: by[0]} for name, by in runs.items()}
    assert pooled_noise(read_curves(alone), Calibration(noise=0.001, noise_freedom=1)) == pytest.approx(0.001)


class TestForesight:
    def crossing(self) -> Runs:
        """Cross after 16 M tokens, seen until 8 M."""
        x = np.log(np.array(BUDGETS[:4]) / 16e6)
        return {
            "early": {s: list(zip(BUDGETS[:4], np.exp(-0.15 * x).tolist(), strict=True)) for s in (0, 1)},
            "late": {s: list(zip(BUDGETS[:4], np.exp(-0.35 * x).tolist(), strict=True)) for s in (0, 1)},
        }

    def test_a_crossing_is_found_between_the_budgets_that_hold_it(self) -> None:
        budgets = np.geomspace(1e6, 1e8, 25).tolist()
        seen = foresee(
            extrapolate(
                self.crossing(), budgets, calibration=Calibration(noise=0.003, noise_freedom=50, process=STEADY)
            )
        )
        (found,) = seen.crossings
        assert (found.before, found.after) == ("early", "late")
        assert found.low is not None
        assert found.low < 16e6 < (found.high or math.inf)
        assert 10e6 < found.tokens < 60e6  # slopes fade: it may take longer than straight lines would
        assert seen.text.startswith("early is most likely best up to about ")
        assert "tokens, then late (crossing " in seen.text
        assert [row.best for row in seen.rows][:: len(seen.rows) - 1] == ["early", "late"]
        assert seen.rows[0].p_best["early"] > 0.95

    def test_crossings_follow_each_other(self) -> None:
        budgets = [1e6, 2e6, 4e6, 8e6]
        lead_B = np.array([0.01, -0.02, -0.02, 0.02])  # of "b" above "a": a is best, then b, then a again
        rng = np.random.default_rng(0)
        gap_DB = lead_B + 0.015 * rng.normal(size=(500, 4))
        loss_DBC = np.exp(np.stack([np.zeros_like(gap_DB), gap_DB], axis=2))
        one, other = foresee(Forecast(["a", "b"], budgets, loss_DBC, 0.01, 8e6, 8.0, "drawn")).crossings
        assert (one.before, one.after, other.before, other.after) == ("a", "b", "b", "a")
        assert 1e6 <= one.tokens <= 2e6
        assert 4e6 <= other.tokens <= 8e6

    def test_a_crossing_is_read_off_every_draw(self) -> None:
        """Straight lines in ln tokens that cross at known places: 2, 3, … 12 M."""
        budgets = [1e6, 4e6, 16e6]
        at = np.log(np.arange(2, 13) * 1e6)
        gap_DB = 0.1 * (at[:, None] - np.log(budgets))  # of "late", above 0 before the crossing
        loss_DBC = np.exp(np.stack([np.zeros_like(gap_DB), gap_DB], axis=2))
        (found,) = foresee(Forecast(["early", "late"], budgets, loss_DBC, 0.01, 4e6, 8.0, "drawn")).crossings
        assert found.tokens == pytest.approx(7e6)
        assert (found.low, found.high) == (pytest.approx(3e6), pytest.approx(11e6))

    def test_none_where_one_leads_throughout(self, three: Runs) -> None:
        seen = foresee(extrapolate(three, BUDGETS))
        assert not seen.crossings
        assert seen.text.startswith("low is most likely best at every budget from 1 M tokens on (P(best) ")
        assert seen.text.endswith("; no forecast beyond 128 M tokens")

    def test_where_nobody_leads_at_first_the_later_leader_is_not_called_best_there(self) -> None:
        """P(best) of "a" is 10 % after 1 M tokens, where the other two are equal, and 100 % after 4 M."""
        budgets = [1e6, 4e6]
        turn = np.arange(1000) % 10
        early_DC = np.stack(
            [np.where(turn == 0, 0.9, 1.1), np.where(turn % 2, 1.0, 1.05), np.where(turn % 2, 1.05, 1.0)], 1
        )
        late_DC = np.broadcast_to([0.5, 0.8, 0.8], (1000, 3))
        seen = foresee(Forecast(["a", "b", "c"], budgets, np.stack([early_DC, late_DC], 1), 0.01, 4e6, 8.0, "drawn"))
        assert not seen.crossings
        assert seen.text.startswith(
            "a is most likely best from about 4 M tokens on (P(best) > 99 % at 4 M tokens); "
            "before that none is clearly the best"
        )
        assert [row.best for row in seen.rows] == ["b", "a"]  # each row names its most probable one

    def test_a_lead_that_fades_is_not_claimed_beyond_its_end(self) -> None:
        """Best in all draws up to 4 M tokens, and in one of three after 16 M."""
        ahead_DC = np.broadcast_to([0.5, 0.8, 0.8], (999, 3))
        even_DC = np.stack([np.where(np.arange(999) % 3 == of, 0.9, 1.0) for of in range(3)], 1)
        loss_DBC = np.stack([ahead_DC, ahead_DC, even_DC], 1)
        seen = foresee(Forecast(["a", "b", "c"], [1e6, 4e6, 16e6], loss_DBC, 0.01, 4e6, 8.0, "drawn"))
        assert not seen.crossings
        assert seen.text == (
            "a is most likely best up to about 4 M tokens (P(best) > 99 % at 4 M tokens); "
            "beyond that none is clearly the best; "
            "no forecast beyond 32 M tokens"
        )

    def test_a_lead_after_a_crossing_is_not_claimed_beyond_its_end(self) -> None:
        """The late leader is ahead from 4 M tokens on; after 16 M both are even."""
        even_DC = np.stack([np.where(np.arange(1000) % 2 == of, 0.9, 1.0) for of in range(2)], 1)
        ahead_DBC = np.broadcast_to([[0.5, 0.8], [0.8, 0.5], [0.8, 0.5]], (1000, 3, 2))
        loss_DBC = np.concatenate([ahead_DBC, even_DC[:, None]], 1)
        seen = foresee(Forecast(["a", "b"], [1e6, 4e6, 8e6, 16e6], loss_DBC, 0.01, 4e6, 8.0, "drawn"))
        assert [(c.before, c.after) for c in seen.crossings] == [("a", "b")]
        assert "tokens, then b (crossing " in seen.text
        assert seen.text.endswith(
            "), clearly so up to about 8 M; beyond that none is clearly the best; no forecast beyond 32 M tokens"
        )

    def test_sixty_to_forty_is_a_lead(self) -> None:
        worse_D = np.where(np.arange(10) < 4, 0.9, 1.1)
        loss_DBC = np.stack([np.ones(10), worse_D], 1)[:, None]
        seen = foresee(Forecast(["a", "b"], [1e6], loss_DBC, 0.01, 1e6, 8.0, "drawn"))
        assert seen.text.startswith("a is most likely best at every budget from 1 M tokens on (P(best) 60 %")

    def test_budgets_must_rise(self, three: Runs) -> None:
        with pytest.raises(UserError, match="increasing order"):
            foresee(extrapolate(three, BUDGETS[::-1]))


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({}, "no candidate"),
        ({"a": {}}, "a has no observed loss"),
        ({"a": {0: [(0, 2.0)]}}, "0 tokens"),
        ({"a": {0: [(1e6, -2.0)]}}, "loss of 0 or less"),
    ],
)
def test_bad_observations(runs: Runs, message: str) -> None:
    with pytest.raises(UserError, match=message):
        extrapolate(runs, [1e6])


def test_unknown_ways_and_budgets() -> None:
    runs = {"a": {0: [(1e6, 2.0)]}}
    with pytest.raises(UserError, match="last, parametric, hierarchical, ensemble"):
        extrapolate(runs, [1e6], "magic")
    with pytest.raises(UserError, match="not forecast"):
        extrapolate(runs, [1e6]).at(2e6)
