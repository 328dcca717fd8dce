"""Intervals over few values, against an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest

from plait.analysis.student import mean_interval, t_quantile


@pytest.mark.parametrize("freedom", [*range(1, 13), 30, 1000])
def test_quantiles(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-3)


def test_the_interval_holds_the_mean_95_times_in_100() -> None:
    drawn = np.random.default_rng(0).normal(7, 2, (4000, 3))
    held = [low <= 7 <= high for low, high in (mean_interval(row) or (0, 0) for row in drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)


def test_one_value_has_no_interval() -> None:
    assert mean_interval([3.0]) is None
    assert mean_interval([3.0, 3.0]) == (3, 3)
