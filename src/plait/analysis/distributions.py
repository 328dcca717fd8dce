"""Tails and quantiles of the beta, Student's t, F and binomial distributions, for single numbers.

All four are the regularized incomplete beta function I_x(a, b) (NIST Digital Library of Mathematical Functions,
section 8.17), computed by its continued fraction (8.17.22). scipy has the same functions, but plait would need nothing
else of its 35 MB. Tests compare with scipy to a relative error of 1e-9.
"""

from __future__ import annotations

import math
from functools import lru_cache

CONFIDENCE = 0.95  # of every interval that plait prints
SMALLEST = 1e-300  # replaces 0 as a divisor in the continued fraction
PRECISION = 1e-15
LARGE = 10.0  # from here on, ln Γ by Stirling's series
MAX_STEPS = 1_000_000


def binomial_cdf(k: float, n: float, p: float) -> float:
    """P(at most k of n), each with probability p."""
    return 1.0 if k >= n else 0.0 if k < 0 else _incomplete_beta(n - k, k + 1, 1 - p, p)


def f_tail(freedom: float, error_freedom: float, ratio: float) -> float:
    """P(F > ratio)."""
    if ratio <= 0:
        return 1.0
    total = error_freedom + freedom * ratio
    return _incomplete_beta(error_freedom / 2, freedom / 2, error_freedom / total, freedom * ratio / total)


def student_cdf(freedom: float, t: float) -> float:
    """P(T <= t)."""
    beyond = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t), t * t / (freedom + t * t)) / 2
    return beyond if t < 0 else 1 - beyond


@lru_cache(maxsize=4096)
def student_quantile(freedom: float, p: float) -> float:
    """The p quantile of Student's t."""
    if not freedom > 0:
        return math.nan
    if not 0 < p < 1:
        return math.copysign(math.inf, p - 0.5)
    freedom = min(freedom, 1e9)  # beyond that it is the normal distribution
    x, one_less_x = _beta_quantile(freedom / 2, 0.5, 2 * min(p, 1 - p))
    return math.copysign(math.sqrt(freedom * one_less_x / x), p - 0.5)


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The half-width of a two-sided t interval, in standard errors."""
    return student_quantile(freedom, (1 + confidence) / 2)


def beta_quantile(a: float, b: float, p: float) -> float:
    """The p quantile of the beta distribution."""
    return _beta_quantile(a, b, p)[0]


def _beta_quantile(a: float, b: float, p: float) -> tuple[float, float]:
    """x and 1 − x, so that neither loses digits near 0."""
    mean = a / (a + b)
    if p > _incomplete_beta(a, b, mean, b / (a + b)):
        other, x = _beta_quantile_below_mean(b, a, 1 - p)
        return x, other
    return _beta_quantile_below_mean(a, b, p)


def _beta_quantile_below_mean(a: float, b: float, p: float) -> tuple[float, float]:
    """Newton's method for ln I over ln x. The curve is concave and increasing, so that from the second step on every
    iterate is below the root and closer to it than the one before."""
    if p <= 0:
        return 0.0, 1.0
    x = a / (a + b)
    for _ in range(200):
        share = _incomplete_beta(a, b, x, 1 - x)
        slope = math.exp(a * math.log(x) + (b - 1) * math.log1p(-x) - _log_beta(a, b)) / max(share, SMALLEST)
        step = (math.log(p) - math.log(max(share, SMALLEST))) / slope
        x = min(x * math.exp(max(-700.0, step)), 1 - 1e-16)
        if abs(step) < 4e-16 or x < SMALLEST:
            break
    return x, 1 - x


def _incomplete_beta(a: float, b: float, x: float, one_less_x: float) -> float:
    """I_x(a, b). Both x and 1 − x are given, because a difference would lose the digits of the smaller one."""
    if x <= 0 or one_less_x <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(a * _log(x, one_less_x) + b * _log(one_less_x, x) - _log_beta(a, b))
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast; the other side by symmetry
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, one_less_x) / b


def _log(x: float, one_less_x: float) -> float:
    return math.log(x) if x < 0.5 else math.log1p(-one_less_x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """1 / (1 + d1 / (1 + d2 / ...)) by the modified Lentz method."""
    above, below = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = below
    for m in range(1, MAX_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            below = 1 / _nonzero(1 + coefficient * below)
            above = _nonzero(1 + coefficient / above)
            change = above * below
            value *= change
        if abs(change - 1) < PRECISION:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > SMALLEST else SMALLEST


def _log_beta(a: float, b: float) -> float:
    """ln B(a, b). For large arguments the leading terms of Stirling's series are combined, because the difference of
    three ln Γ suffers from cancellation."""
    small, large = min(a, b), max(a, b)
    if large < LARGE:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    rest = _stirling_rest(large) - _stirling_rest(a + b)
    from_large = (large - 0.5) * math.log1p(-small / (a + b))
    if small < LARGE:
        return math.lgamma(small) + rest + from_large + small - small * math.log(a + b)
    to_small = small * math.log(small / (a + b)) - 0.5 * math.log(small)
    return 0.5 * math.log(2 * math.pi) + rest + _stirling_rest(small) + from_large + to_small


def _stirling_rest(x: float) -> float:
    """ln Γ(x) minus ((x − ½) ln x − x + ½ ln 2π), for x ≥ 10."""
    square = 1 / (x * x)
    series = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
    return sum(c * square**k for k, c in enumerate(series)) / x
