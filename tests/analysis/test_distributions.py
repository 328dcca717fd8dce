"""Against scipy's functions, over the sizes that occur: seeds and windows, probe items by the hundred thousand."""

from __future__ import annotations

import math

import pytest
from scipy import special, stats

from plait.analysis.distributions import beta_quantile, binomial_cdf, f_tail, student_cdf, student_quantile

FREEDOM = (0.7, 1, 2, 3.37, 9, 40, 1e3, 1e6)
P = (1e-12, 1e-4, 0.025, 0.5, 0.975, 1 - 1e-6)


@pytest.mark.parametrize("freedom", FREEDOM)
def test_student(freedom: float) -> None:
    for t in (-80.0, -6.0, -1.96, -0.3, -1e-9, 0.0, 0.5, 7.0):
        assert student_cdf(freedom, t) == pytest.approx(special.stdtr(freedom, t), rel=1e-9, abs=1e-300)
    for p in P:
        assert student_quantile(freedom, p) == pytest.approx(special.stdtrit(freedom, p), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("freedom", FREEDOM)
@pytest.mark.parametrize("error_freedom", FREEDOM)
def test_f(freedom: float, error_freedom: float) -> None:
    for ratio in (0.0, 1e-6, 0.2, 1.0, 1.3, 4.0, 300.0):
        expected = special.fdtrc(freedom, error_freedom, ratio)
        if expected > 1e-280:  # scipy's own digits end there
            assert f_tail(freedom, error_freedom, ratio) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("n", [1, 2, 7, 60, 1500, 200_000])
def test_binomial_and_exact_shares(n: int) -> None:
    for k in sorted({0, n // 7, n // 2, n - 1, n}):
        assert binomial_cdf(k, n, 0.5) == pytest.approx(special.bdtr(k, n, 0.5), rel=1e-9, abs=1e-280)
        for tail in (0.025, 0.975):
            if k < n:
                expected = special.betaincinv(k + 1, n - k, tail)
                assert beta_quantile(k + 1, n - k, tail) == pytest.approx(expected, rel=1e-9)


def test_a_share_of_less_than_one_item() -> None:
    """Means of shares are shares of items that are no whole number."""
    for right in (0.05, 0.4, 3.7):
        assert beta_quantile(right, 65 - right, 0.025) == pytest.approx(
            special.betaincinv(right, 65 - right, 0.025), rel=1e-9
        )


def test_what_cannot_happen_and_what_must() -> None:
    assert (binomial_cdf(-1, 5, 0.5), binomial_cdf(5, 5, 0.5)) == (0.0, 1.0)
    assert f_tail(3, 400, 1e300) < 1e-280


@pytest.mark.parametrize(("freedom", "p"), [(0, 0.9), (-1, 0.9), (5, 0.0), (5, 1.0), (1e15, 0.975), (math.inf, 0.975)])
def test_ends_of_students_quantiles(freedom: float, p: float) -> None:
    assert student_quantile(freedom, p) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-6, nan_ok=True)
