"""Intervals over few values: coverage, and comparison with independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from plait.analysis.distributions import t_quantile
from plait.analysis.intervals import Share, estimate, holm, mean_interval, median_interval, share_interval
from plait.analysis.rank import spearman_interval


def test_student() -> None:
    for freedom in (1, 2, 7.5, 1000):
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom))
    values = [0.31, 0.42, 0.37, 0.55]
    expected = stats.ttest_1samp(values, 0.0)
    assert mean_interval(values) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert estimate(values).p == pytest.approx(expected.pvalue)


def test_one_value_has_no_interval() -> None:
    assert mean_interval([3.0]) is None
    assert mean_interval([3.0, 3.0]) == (3, 3)


@pytest.mark.parametrize(("right", "items"), [(0, 20), (1, 20), (10, 20), (20, 20), (256, 256)])
def test_shares_are_exact(right: int, items: int) -> None:
    expected = stats.binomtest(right, items).proportion_ci(0.95, "exact")
    assert share_interval(right / items, items) == pytest.approx((expected.low, expected.high))


def test_values_that_agree_have_the_spread_of_their_items() -> None:
    """A difference of shares: squares of both ends' distances add up."""
    low, high = mean_interval([0.5, 0.5], [Share(1.0, 100), Share(0.5, 100, -1.0)]) or (0, 0)
    (one, _), (_, other) = share_interval(1.0, 100), share_interval(0.5, 100)
    wider = t_quantile(1) / stats.norm.ppf(0.975)
    assert low == pytest.approx(0.5 - wider * np.hypot(1 - one, other - 0.5), rel=1e-5)
    assert high == pytest.approx(0.5 + wider * (other - 0.5), rel=1e-5)


def test_a_difference_of_shares_has_the_other_end_of_what_is_subtracted() -> None:
    """0.9 of 100 items may lie further down than up, so 1 − 0.9 may lie further up than down; and the other way
    round."""
    ahead = estimate([0.1] * 4, [Share(1.0, 100), Share(0.9, 100, -1.0)])
    behind = estimate([-0.1] * 4, [Share(0.9, 100), Share(1.0, 100, -1.0)])
    assert (ahead.low, ahead.high) == pytest.approx((-behind.high, -behind.low))
    low, high = share_interval(0.9, 100)
    least = share_interval(1.0, 100)[0]
    stretch = t_quantile(3) / 1.959964
    assert ahead.high == pytest.approx(0.1 + stretch * (0.9 - low))
    assert ahead.low == pytest.approx(0.1 - stretch * np.hypot(1 - least, high - 0.9))


def test_holm() -> None:
    """By hand: 0.05/4, /3, /2, /1; the first that fails ends it. What has no probability is not counted."""
    assert holm([0.012, 0.4, 0.016, 0.024]) == [True, False, True, True]
    assert holm([0.012, 0.4, 0.018, 0.024]) == [True, False, False, False]
    assert holm([0.024, None, 0.4]) == [True, False, False]
    assert holm([]) == []


@pytest.mark.parametrize("values", [2, 5, 6, 11, 40])
def test_the_median_is_held_95_times_in_100(values: int) -> None:
    drawn = np.random.default_rng(0).exponential(size=(1000, values))
    held = [low <= np.log(2) <= high for low, high in (median_interval(row) or (0, 0) for row in drawn)]
    assert 0.92 <= np.mean(held) <= 0.98
    assert median_interval([1.0]) is None


@pytest.mark.parametrize("models", [6, 30])
def test_rank_correlations_near_one_are_held(models: int) -> None:
    """A percentile bootstrap holds them in 74 to 87 of 100 cases."""
    stream, rho = np.random.default_rng(0), 0.98
    held = []
    for _ in range(150):
        x = stream.normal(size=models)
        low, high = spearman_interval(x, rho * x + np.sqrt(1 - rho**2) * stream.normal(size=models)) or (1, 0)
        held.append(low <= 6 / np.pi * np.arcsin(rho / 2) <= high)
    assert np.mean(held) >= 0.91


def test_rank_intervals_where_there_is_little_to_say() -> None:
    assert spearman_interval([1, 2, 3], [1, 2, 3]) is None
    assert spearman_interval([1, 1, 1, 1], [1, 2, 3, 4]) is None
    low, high = spearman_interval(range(6), range(6)) or (0, 0)
    assert high == 1
    assert low < 0.8
    low, high = spearman_interval([1, 1, 2, 2, 3, 3], [1, 2, 3, 4, 5, 6]) or (0, 0)
    assert low < stats.spearmanr([1, 1, 2, 2, 3, 3], [1, 2, 3, 4, 5, 6]).statistic <= high + 1e-12
