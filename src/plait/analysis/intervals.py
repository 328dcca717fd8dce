"""Confidence intervals and significance: all intervals that plait prints are computed here.

A mean over seeds (or sequences, or searches) has a Student's t interval, and a difference that of the paired values. A
single value has no interval. If all values agree, as scores at the ceiling or few seeds by chance do, Student's t would
claim that the mean is known exactly; then the spread is taken from the finite number of test items alone (`Share`;
exact, Clopper and Pearson 1934). The spread over seeds already includes that of the items, so both are never combined.

Multiple comparisons are corrected by Holm's method (1979), at a family-wise error rate of 5 %.

`benchmarks/intervals.py` simulates the coverage of each interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.distributions import CONFIDENCE, beta_quantile, binomial_cdf, student_cdf, t_quantile

#: The 97.5 % quantile of the standard normal distribution.
NORMAL = 1.959964
EQUAL = 1e-12  # tolerance for equal values


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval and its p-value against 0; None from a single seed."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def sign(self) -> int:
        """1 or −1 if the interval excludes 0, else 0. For one comparison; see `holm` for several."""
        return 0 if self.low is None or self.high is None else 1 if self.low > 0 else -1 if self.high < 0 else 0


@dataclass(frozen=True)
class Share:
    """A proportion (between 0 and 1) of a number of items, with its weight in a sum."""

    value: float
    items: float
    weight: float = 1.0


def mean_interval(values: ArrayLike, shares: Sequence[Share] = ()) -> tuple[float, float] | None:
    """The 95 % interval of the mean; None for a single value. `shares`: as in `estimate`."""
    return estimate(values, shares).interval


def estimate(values: ArrayLike, shares: Sequence[Share] = (), value: float | None = None) -> Estimate:
    """The mean of independent values with Student's t interval.

    `shares`: the proportions whose weighted sum is the mean, used if all values agree. `value`: a better estimate of
    the same mean, from these values and others, to centre the interval on.
    """
    values_N = np.asarray(values, np.float64)
    mean = float(values_N.mean()) if value is None else value
    if len(values_N) < 2:
        return Estimate(mean)
    freedom = len(values_N) - 1
    quantile = t_quantile(freedom)
    error = float(values_N.std(ddof=1)) / math.sqrt(len(values_N))
    if error > EQUAL * max(1.0, abs(mean)):
        down = up = quantile * error
    else:
        # The uncertainty from the items, widened as for a spread estimated from so few seeds.
        down, up = (quantile / NORMAL * half_width for half_width in _half_widths(shares))
        error = (down if mean > 0 else up) / quantile
    p = 2 * student_cdf(freedom, -abs(mean) / error) if error else float(mean == 0)
    return Estimate(mean, mean - down, mean + up, p)


def share_interval(value: float, items: float) -> tuple[float, float]:
    """The exact 95 % interval of a proportion of independent items (Clopper and Pearson 1934)."""
    right, tail = value * items, (1 - CONFIDENCE) / 2
    low = beta_quantile(right, items - right + 1, tail) if right > EQUAL else 0.0
    high = beta_quantile(right + 1, items - right, 1 - tail) if right < items * (1 - EQUAL) else 1.0
    return low, high


def group_share_interval(values: ArrayLike, items: float) -> tuple[float, float] | None:
    """The 95 % interval of a proportion, estimated as the mean of `values`, one per group of items.

    Near 0 or 1 the standard error depends on the true proportion, so it is Wilson's interval (1927) with the effective
    number of items that explains the spread between groups, and Student's t for the number of groups. If all groups
    agree, it is based on all `items` (`Share`).
    """
    values_N = np.asarray(values, np.float64)
    share = min(1.0, max(0.0, float(values_N.mean())))
    error = float(values_N.std(ddof=1)) / math.sqrt(len(values_N)) if len(values_N) > 1 else 0.0
    if error <= EQUAL or not EQUAL < share < 1 - EQUAL:
        interval = mean_interval(values_N, [Share(share, items)])
        return None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
    variance = share * (1 - share)
    q = (t_quantile(len(values_N) - 1) * error) ** 2 / variance
    middle, half_width = (share + q / 2) / (1 + q), math.sqrt(q * variance + q * q / 4) / (1 + q)
    return max(0.0, middle - half_width), min(1.0, middle + half_width)


def _half_widths(shares: Sequence[Share]) -> tuple[float, float]:
    """The lower and upper half-width of the interval of a weighted sum of proportions (Zou and Donner 2008: squared
    distances to the ends add up)."""
    down = up = 0.0
    for share in shares:
        low, high = share_interval(share.value, share.items)
        ends = share.weight * (share.value - low), share.weight * (high - share.value)
        down += ends[0 if share.weight > 0 else 1] ** 2
        up += ends[1 if share.weight > 0 else 0] ** 2
    return math.sqrt(down), math.sqrt(up)


def holm(chances: Sequence[float | None], level: float = 1 - CONFIDENCE) -> list[bool]:
    """Which of several p-values are significant by Holm's method (1979): the family-wise error rate is at most `level`,
    however the comparisons depend on each other. None is not significant, and not counted as a comparison."""
    tested = zip(chances, holm_levels(chances, level), strict=True)
    return [p is not None and at is not None and p <= at for p, at in tested]


def holm_levels(chances: Sequence[float | None], level: float = 1 - CONFIDENCE) -> list[float | None]:
    """The level at which Holm's method tests each p-value, and fails all from the first that it fails: an interval at
    that level excludes 0 exactly where the method finds a difference. None for None."""
    known = sorted((p, i) for i, p in enumerate(chances) if p is not None)
    levels: list[float | None] = [None] * len(chances)
    step, failed = level, False
    for rank, (p, i) in enumerate(known):
        step = step if failed else level / (len(known) - rank)
        failed = failed or p > step
        levels[i] = step
    return levels


def median_interval(values: ArrayLike) -> tuple[float, float] | None:
    """The 95 % interval of the median, interpolated between order statistics (Hettmansperger and Sheather 1986).

    With five values or fewer even the extremes cover the median too rarely, so the interval is widened by Student's t.
    None for a single value.
    """
    sorted_N = np.sort(np.asarray(values, np.float64))
    n = len(sorted_N)
    if n < 2:
        return None
    if n < 6:
        around = mean_interval(sorted_N) or (0.0, 0.0)
        return min(around[0], float(sorted_N[0])), max(around[1], float(sorted_N[-1]))

    def coverage(d: int) -> float:
        """The coverage of the interval between the d-th values from either end."""
        return 1 - 2 * binomial_cdf(d - 1, n, 0.5)

    d = max((d for d in range(1, (n + 1) // 2) if coverage(d) >= CONFIDENCE), default=1)
    share = (coverage(d) - CONFIDENCE) / (coverage(d) - coverage(d + 1))
    inward = (n - d) * share / (d + (n - 2 * d) * share)
    low = (1 - inward) * sorted_N[d - 1] + inward * sorted_N[d]
    high = (1 - inward) * sorted_N[n - d] + inward * sorted_N[n - d - 1]
    return float(low), float(high)
