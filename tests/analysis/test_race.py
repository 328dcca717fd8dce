"""Races on known curves: costs, stopping, what each policy trains next, and replays compared with the truth."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_modules import load_benchmark

from plait.analysis.curve_table import CurveTable
from plait.analysis.forecast import Forecast, Row, _crossing
from plait.analysis.learning_curve import Calibration
from plait.analysis.race_policy import POLICIES, RaceState, _gain, decide, replay
from plait.core.errors import UserError

read_tables = load_benchmark("truth_tables").read_tables

simulate_table = load_benchmark("simulated_curves").simulate_table
RUNGS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]


def spread(gap: float = 0.3, names: str = "abcdefgh") -> CurveTable:
    """Parallel curves, `gap` apart in ln loss: a is best, at every budget."""
    loss_B = 2.0 * np.array(RUNGS) ** -0.2
    loss_AB = np.exp(gap * np.arange(len(names)))[:, None] * loss_B
    cost = np.ones(len(names))
    return CurveTable("made", list(names), list(names), RUNGS, np.stack([loss_AB, loss_AB], axis=1), cost, {})


class TestCosts:
    state = RaceState(RUNGS, {"a": 0, "b": 2}, {"a": 1.0, "b": 3.0}, limit=0.1, decay=0.25)

    def test_a_branch_costs_its_share_and_the_trunk_goes_on(self) -> None:
        """To 4 with branches at 1, 2 and 4: a trunk of 3, and a quarter of each."""
        assert self.state.cost_until("a", 3) == pytest.approx(3 + 0.25 * (1 + 2 + 4))
        assert self.state.cost_of("b") == pytest.approx(3 * ((3 + 0.25 * 7) - (1.5 + 0.25 * 3)))
        assert self.state.cost_until("a", 0) == 0

    def test_the_whole_is_all_to_the_target_and_the_rest_is_left(self) -> None:
        assert self.state.whole == pytest.approx(4 * 128)
        assert self.state.spent == pytest.approx(3 * (1.5 + 0.25 * 3))
        assert self.state.left == pytest.approx(51.2 - self.state.spent)

    def test_all_start_as_far_as_a_share_of_the_limit_lets(self) -> None:
        """Half of the limit is 25.6 of 512; to 4 tokens all cost 4 · 4.75 = 19, to 8 they cost 39."""
        assert self.state.common(0.5) == 3
        assert self.state.common(0.001) == 1


@pytest.mark.parametrize("policy", POLICIES)
class TestEveryPolicy:
    def test_what_is_clear_is_found_within_the_limit(self, policy: str) -> None:
        played = replay(spread(), policy, "hierarchical")
        assert played.pick == played.best == "a"
        assert played.regret == 0
        assert played.cost <= 0.1
        assert played.spearman == 1

    @pytest.mark.parametrize("limit", [0.03, 0.1, 0.3])
    def test_the_limit_holds(self, policy: str, limit: float) -> None:
        for draw in range(4):
            table = simulate_table(np.random.default_rng(draw), 6, 3)
            assert 0 < replay(table, policy, "last", limit, seed=draw).cost <= limit * (1 + 1e-9)

    def test_everybody_starts_rung_by_rung(self, policy: str) -> None:
        table = spread()
        state = RaceState(RUNGS, dict.fromkeys(table.names, 0), dict.fromkeys(table.names, 1.0), 0.1)
        first = decide(state, {}, policy, "last")
        assert first.train == table.names
        assert first.forecast is None

    def test_who_diverges_stops(self, policy: str) -> None:
        """And is not trained on, however well it stood."""
        table = spread(0.02)
        state = RaceState(RUNGS, dict.fromkeys(table.names, 4), dict.fromkeys(table.names, 1.0), 0.1)
        seen = table.observations(state.reached, [0])
        seen["a"] = {0: [*seen["a"][0][:-1], (8.0, math.nan)]}
        decision = decide(state, seen, policy, "hierarchical")
        assert decision.stopped["a"] == 0
        assert "a" not in decision.train
        assert decision.prediction is not None
        assert decision.prediction.pick != "a"

    def test_the_hopeless_stop_and_get_nothing(self, policy: str) -> None:
        table = spread(0.005)
        table.loss_ASB[-1] *= 10
        state = RaceState(RUNGS, dict.fromkeys(table.names, 4), dict.fromkeys(table.names, 1.0), 0.1)
        decision = decide(state, table.observations(state.reached, [0]), policy, "hierarchical")
        assert "h" in decision.stopped
        assert decision.train
        assert "h" not in decision.train

    def test_the_same_observations_give_the_same_decision(self, policy: str) -> None:
        """A race that was killed goes on as it would have."""
        table = simulate_table(np.random.default_rng(1), 6, 3)
        cost = dict.fromkeys(table.names, 1.0)
        state = RaceState(table.budgets, dict.fromkeys(table.names, 4), cost, 0.1, batch=2)
        seen = table.observations(state.reached, [0])
        one, other = (decide(state, seen, policy, "hierarchical", seed=3) for _ in range(2))
        assert (one.train, one.stopped) == (other.train, other.stopped)


def test_nobody_stops_before_three_rungs() -> None:
    """However clear two losses look: first losses tell little of the last ones."""
    table = spread(1.0)
    for reached in (2, 3):
        state = RaceState(RUNGS, dict.fromkeys(table.names, reached), dict.fromkeys(table.names, 1.0), 0.5)
        losses = {
            name: {0: [(RUNGS[b], float(table.loss_ASB[a, 0, b])) for b in range(reached)]}
            for a, name in enumerate(table.names)
        }
        decision = decide(state, losses, "knowledge-gradient", "last")
        assert (decision.train == table.names) == (reached == 2)
        assert (decision.forecast is None) == (reached == 2)
        assert bool(decision.stopped) == (reached == 3)


def test_a_curve_that_crosses_twice_is_crossed_for_good_the_last_time() -> None:
    """b is ahead at the second budget, falls behind at the third and leads at the fourth: half-way in ln tokens."""
    loss_B = np.array([2.0, 1.5, 1.2, 1.0])
    gap_B = np.exp([0.1, -0.1, 0.1, -0.1])
    loss_DBC = np.stack([np.stack([loss_B, loss_B * gap_B], axis=1)] * 5)
    forecast = Forecast(["a", "b"], [1.0, 4.0, 16.0, 64.0], loss_DBC, 0.01, 64.0, 4.0, "made")
    led = {"a": 1.0, "b": 0.0}
    rows = [Row(tokens, "a", led, "a") for tokens in (1.0, 4.0, 16.0)] + [Row(64.0, "b", {"a": 0.0, "b": 1.0}, "b")]
    found = _crossing(forecast, rows, 0, 3, 4)
    assert (found.before, found.after) == ("a", "b")
    assert (found.tokens, found.low, found.high) == pytest.approx((32.0, 32.0, 32.0))


def test_only_of_what_lies_ahead_a_blind_forecast_says_nothing() -> None:
    """What was observed is told: 7 of 10 draws are 70 %. Ahead all are equally probable."""
    loss_DBC = np.ones((10, 2, 2))
    loss_DBC[:7, :, 0], loss_DBC[7:, :, 1] = 0.9, 0.9
    forecast = Forecast(["a", "b"], [1.0, 4.0], loss_DBC, 0.01, 1.0, 4.0, "made", blind=True)
    assert forecast.at(1.0).p_best == pytest.approx({"a": 0.7, "b": 0.3})
    assert forecast.at(4.0).p_best == pytest.approx({"a": 0.5, "b": 0.5})


def test_halving_halves() -> None:
    """8 at the start, then 4 and 2, by the last loss; the start is the highest that fits: 8·4 + 4·4 + 2·8 of 102."""
    table = spread(0.001)
    state = RaceState(RUNGS, dict.fromkeys(table.names, 0), dict.fromkeys(table.names, 1.0), 0.1, decay=0.0)
    sizes = []
    while train := decide(
        state, table.observations({n: c for n, c in state.reached.items() if c}, [0]), "halving", "last"
    ).train:
        sizes.append(len(train))
        state = replace(state, reached={n: c + (n in train) for n, c in state.reached.items()})
    assert sizes == [8, 8, 8, 4, 2]
    assert {n for n, c in state.reached.items() if c == 5} == {"a", "b"}


def test_the_knowledge_gradient_prefers_the_undecided_to_the_cheap_and_clear() -> None:
    """What is seen of b can change the pick; c is cheap, and no better whatever it shows."""
    rng = np.random.default_rng(0)
    final_DC = np.array([1.0, 1.01, 1.5]) + rng.normal(0, [0.001, 0.05, 0.05], (4000, 3))
    normal = np.linspace(-2, 2, 15)
    gains = [_gain(final_DC, final_DC[:, c], normal) for c in range(3)]
    assert gains[1] > 10 * max(gains[0], gains[2])
    loss_DBC = np.stack([final_DC, final_DC], axis=1)
    forecast = Forecast(["a", "b", "c"], [1.0, 2.0], loss_DBC, 0.001, 1.0, 8.0, "drawn")
    state = RaceState([1.0, 2.0], {"a": 1, "b": 1, "c": 1}, {"a": 1.0, "b": 1.0, "c": 0.5}, 5.0)
    assert POLICIES["knowledge-gradient"](state, ["a", "b", "c"], forecast, rng) == ["b"]


def test_the_gain_is_that_of_two_normals() -> None:
    """E max(0, Z) for two equal candidates of which one will be known: σ / √(2π)."""
    rng = np.random.default_rng(0)
    final_DC = np.stack([np.zeros(20_000), rng.normal(0, 0.3, 20_000)], axis=1)
    final_DC[:, 1] -= final_DC[:, 1].mean()
    from scipy.special import ndtri

    points = ndtri((np.arange(200) + 0.5) / 200)
    assert _gain(final_DC, final_DC[:, 1], points) == pytest.approx(0.3 / math.sqrt(2 * math.pi), rel=0.02)


def test_top_two_trains_the_less_trained_of_two_rivals() -> None:
    rng = np.random.default_rng(0)
    loss_DBC = np.exp(rng.normal(0, [0.1, 0.1, 0.0001], (2000, 1, 3))) + np.array([0, 0, 5])
    forecast = Forecast(["a", "b", "c"], [2.0], loss_DBC, 0.01, 1.0, 8.0, "drawn")
    state = RaceState([0.5, 1.0, 2.0], {"a": 2, "b": 1, "c": 1}, {"a": 1.0, "b": 1.0, "c": 1.0}, 5.0)
    chosen = [POLICIES["top-two"](state, ["a", "b", "c"], forecast, np.random.default_rng(i)) for i in range(20)]
    assert set(map(tuple, chosen)) == {("b",)}


def test_a_replay_is_judged_by_the_mean_over_seeds() -> None:
    table = spread(0.05, "ab")
    table.loss_ASB[1, :, -1] = [0.5, 0.7]  # b turns out better, and nothing before says so
    played = replay(table, "halving", "last", calibration=Calibration(noise=0.001, last_own=0.001))
    assert (played.pick, played.best) == ("a", "b")
    assert played.regret == pytest.approx(table.loss_ASB[0, 0, -1] - 0.6)
    assert played.regret_share == pytest.approx(played.regret / 0.6)
    assert played.regret_noise == pytest.approx(played.regret / math.sqrt(0.02 / 2))
    assert played.spearman == -1
    assert sorted(told for _, told in played.p_best) == [False, True]


def test_more_cost_costs_less_regret() -> None:
    """On curves that cross: the whole backtest can tell a good race from a poor one."""
    tables = [simulate_table(np.random.default_rng(draw), 8, 5) for draw in range(16)]
    little, much = (
        np.mean(
            [replay(t, "halving", "hierarchical", limit, seed=i, draws=400).regret_share for i, t in enumerate(tables)]
        )
        for limit in (0.03, 0.5)
    )
    assert much < 0.5 * little


def test_truth_files_are_read(tmp_path: Path) -> None:
    def run(name: str, text: str, seed: int, losses: list[float | None]) -> dict[str, object]:
        pairs = [[t, loss] for t, loss in zip([10, 20], losses, strict=False)]
        return {"architecture": name, "text": text, "seed": seed, "lr": 1e-3, "trunk": [], "annealed": pairs}

    document = {
        "provenance": {"device": "H200"},
        "texts": {"stdlib": {}, "language": {}},
        "architectures": [{"name": n, "family": f, "flops_per_token": c} for n, f, c in (("a", "x", 2), ("b", "y", 3))],
        "runs": [
            *(run(name, "stdlib", seed, [2.0 + seed, 1.0]) for name in "ab" for seed in (0, 1)),
            *(run("a", "language", seed, [3.0, 2.0]) for seed in (0, 1)),
            run("b", "language", 0, [3.0, float("nan")]),
        ],
        "rates": [],
    }
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(document))
    one, two = read_tables(path)
    assert (one.text, one.names, one.families, one.budgets) == ("stdlib", ["a", "b"], ["x", "y"], [10, 20])
    assert one.loss_ASB.shape == (2, 2, 2)
    assert one.loss_ASB[1, 1].tolist() == [3.0, 1.0]
    assert one.cost.tolist() == [2, 3]
    assert two.names == ["a"]
    assert two.provenance == {"device": "H200", "left_out": ["b"]}
    assert one.subset([1]).names == ["b"]
    assert one.until(10).loss_ASB.shape == (2, 2, 1)


def test_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(UserError, match="not a truth table"):
        read_tables(path)
    with pytest.raises(UserError, match="halving, top-two, knowledge-gradient"):
        decide(RaceState(RUNGS, {"a": 0}, {"a": 1.0}, 0.1), {}, "luck", "last")
