"""Constants fitted on complete curves: found again where they are known, and worth having."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmark_modules import load_benchmark

from plait.analysis.curve_library import library
from plait.analysis.curve_table import simulate_table
from plait.analysis.forecast import sharpened
from plait.analysis.learning_curve import CALIBRATION, Calibration, extrapolate
from plait.core.errors import UserError

curve_calibration = load_benchmark("curve_calibration")
calibrate, cases = curve_calibration.calibrate, curve_calibration.cases
fit_sharpness, learn_sharpness = curve_calibration.fit_sharpness, curve_calibration.learn_sharpness


def test_noise_and_drift_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_calibration, "EVALUATIONS", 20)
    table = simulate_table(np.random.default_rng(0), 10, 4, seeds=4, noise=0.02)
    found = calibrate([table])
    assert found.noise == pytest.approx(0.02, rel=0.2)
    late = np.log(table.loss_ASB[:, :, -1] / table.loss_ASB[:, :, -3]) / np.log(4)
    assert -found.last_drift == pytest.approx(float(late.mean()), rel=0.3)
    assert found.process["level"] == pytest.approx(float(np.log(table.loss_ASB[:, :, 0]).mean(1).std(ddof=1)))


def test_cases_observe_nothing_of_what_came_out() -> None:
    table = simulate_table(np.random.default_rng(0), 5, 2)
    played = list(cases([table]))
    assert len(played) == 3 * 3 - 1  # ends and gaps; one would begin with two budgets
    assert {tuple(case.curves.seeds[0]) for case in played} == {(0,), (1,)}
    for case in played:
        assert case.curves.last.max() < case.target
        assert all(len(runs[0]) >= 3 for runs in case.curves.points)


def test_fitted_constants_forecast_better_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged on curves that were not fitted: intervals as narrow as they may be, that hold as much."""
    monkeypatch.setattr(curve_calibration, "EVALUATIONS", 60)
    fitted = calibrate([simulate_table(np.random.default_rng(10 + text), 8, 4, late=0.0) for text in range(4)])
    wild = replace(CALIBRATION, process={"slope": 0.5, "slope_common": 0.5})
    held, widths = {}, {}
    for name, constants in (("fitted", fitted), ("wild", wild)):
        ends = []
        for draw in range(6):
            table = simulate_table(np.random.default_rng(draw), 8, 4, late=0.0)
            seen = extrapolate(
                table.observations(dict.fromkeys(table.names, 5), [0]),
                table.budgets[-1:],
                calibration=constants,
                draws=400,
            ).at(table.budgets[-1])
            ends += [(*seen.interval(n, runs=2), t) for n, t in zip(table.names, table.truth.tolist(), strict=True)]
        held[name] = np.mean([low <= truth <= high for low, high, truth in ends])
        widths[name] = np.median([high / low for low, high, _ in ends])
    assert held["fitted"] >= 0.8
    assert widths["fitted"] < 0.5 * widths["wild"]


def test_short_curves_are_refused() -> None:
    with pytest.raises(UserError, match="5 budgets or more"):
        calibrate([simulate_table(np.random.default_rng(0), 4, 2, budgets=(1e6, 2e6, 4e6))])


def test_chances_that_are_too_modest_are_sharpened() -> None:
    """Winners are drawn with probabilities p; told are their square roots, to sum 1."""
    rng = np.random.default_rng(0)
    true_NC = rng.dirichlet(np.full(6, 0.7), 400) + 1e-4
    true_NC /= true_NC.sum(1, keepdims=True)
    winners = [int(rng.choice(6, p=p_C)) for p_C in true_NC]
    told_NC = np.sqrt(true_NC)
    told_NC /= told_NC.sum(1, keepdims=True)
    assert fit_sharpness(list(told_NC), winners) == pytest.approx(2, rel=0.15)
    assert fit_sharpness(list(true_NC), winners) == pytest.approx(1, rel=0.12)
    np.testing.assert_allclose(sharpened(told_NC[0], 2.0), true_NC[0])
    assert fit_sharpness([], []) == pytest.approx(1, abs=1e-3)  # what the prior says


def test_sharpness_is_learnt_from_candidates_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table = simulate_table(np.random.default_rng(0), 12)
    traits = {name: [float(family[6:])] for name, family in zip(table.names, table.families, strict=True)}
    asked: list[tuple[set[str], set[str], float]] = []

    def watch(seen: Any, budgets: Any, way: str, *rest: Any) -> Any:
        asked.append((set(seen), set(rest[-1].library.names), max(b for by in seen.values() for b, _ in by[min(by)])))
        return extrapolate(seen, budgets, way, *rest)

    monkeypatch.setattr(curve_calibration, "extrapolate", watch)
    assert 0.2 < learn_sharpness([table], library([table], traits), traits, Calibration(), sets=3) < 5
    assert [table.budgets[-1] / last for _, _, last in asked] == pytest.approx([4, 8, 16])
    assert all(len(left_out) == 4 and len(rest) == 8 and not left_out & rest for left_out, rest, _ in asked)
