"""Constants fitted to complete curves: known ones are recovered, and they improve forecasts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmark_modules import load_benchmark

from plait.analysis.curve_library import library
from plait.analysis.curve_posterior import posterior
from plait.analysis.learning_curve import CALIBRATION, Calibration, extrapolate
from plait.core.errors import UserError

curve_calibration = load_benchmark("curve_calibration")
simulate_table = load_benchmark("simulated_curves").simulate_table
calibrate, cases = curve_calibration.calibrate, curve_calibration.cases
learn_width = curve_calibration.learn_width


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


def test_the_width_is_learnt_from_candidates_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table = simulate_table(np.random.default_rng(0), 12)
    traits = {name: [float(family[6:])] for name, family in zip(table.names, table.families, strict=True)}
    asked: list[tuple[set[str], set[str], float]] = []

    def watch(curves: Any, budgets_B: Any, noise: float, known: Any) -> Any:
        asked.append((set(curves.names), set(known.library.names), float(np.exp(curves.last.max()))))
        return posterior(curves, budgets_B, noise, known)

    monkeypatch.setattr(curve_calibration, "posterior", watch)
    assert 0.5 <= learn_width([table], library([table], traits), traits, Calibration(), sets=3) <= 2
    assert [table.budgets[-1] / last for _, _, last in asked] == pytest.approx([4, 8, 16])
    assert all(len(left_out) == 4 and len(rest) == 8 and not left_out & rest for left_out, rest, _ in asked)


def test_forecasts_that_are_too_narrow_are_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are drawn with 1.4 times the standard deviation that is said: the factor is found again."""
    table = simulate_table(np.random.default_rng(0), 24)
    traits = {name: [0.0] for name in table.names}
    rng = np.random.default_rng(1)

    def told(curves: Any, budgets_B: Any, noise: float, known: Any) -> Any:
        truth_C = np.log([float(table.truth[table.names.index(name)]) for name in curves.names])
        return truth_C + rng.normal(0, 1.4 * 0.3, len(truth_C)), 0.3**2 * np.eye(len(truth_C)), 1e6

    monkeypatch.setattr(curve_calibration, "posterior", told)
    found = learn_width([table], library([table], traits), traits, Calibration(noise=1e-6), sets=200)
    assert found == pytest.approx(1.4, rel=0.07)
