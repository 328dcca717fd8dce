"""Every interval that plait prints, and what may be called different: one place, so that one simulation holds for all.

A mean over seeds, or over sequences or searches, has Student's t interval; a difference is that of the paired values.
Two values are the least: one says nothing about its spread, so it has no interval. Where all values agree, which a
score at its ceiling does by nature and few seeds do by luck, Student's t would claim to know the mean exactly. Then the
spread is taken to be what the finite number of test items alone would give (`Share`; exact, Clopper and Pearson 1934).
The spread over seeds holds the items' already: one or the other counts, never both.

Many comparisons are Holm's (1979): at most one verdict in twenty says something that is not so.

`benchmarks/intervals.py` simulates how often each holds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.distributions import beta_quantile, binomial_cdf, student_cdf, student_quantile

CONFIDENCE = 0.95
#: Standard deviations of a normal distribution to either side that hold 95 %.
NORMAL = 1.959964
EQUAL = 1e-12  # values nearer than that are the same number


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, and the probability of such a difference from 0 by chance; None from one seed."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def sign(self) -> int:
        """1 or −1 where the interval does not hold 0, else 0: of this one comparison, see `holm` for several."""
        return 0 if self.low is None or self.high is None else 1 if self.low > 0 else -1 if self.high < 0 else 0


@dataclass(frozen=True)
class Share:
    """A share of 1 in a sum: of so many items, with this weight."""

    value: float
    items: float
    weight: float = 1.0


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Standard errors to either side."""
    return student_quantile(freedom, (1 + confidence) / 2)


def mean_interval(values: ArrayLike, shares: Sequence[Share] = ()) -> tuple[float, float] | None:
    """95 % of the mean; None for a single value. `shares`: as in `estimate`."""
    return estimate(values, shares).interval


def estimate(values: ArrayLike, shares: Sequence[Share] = (), value: float | None = None) -> Estimate:
    """The mean of independent values by Student's t.

    `shares` are what the mean is the weighted sum of, for where the values agree. `value`, if given, is a better
    estimate of the same mean (from these values and others), around which the interval lies.
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
        # As far as the items leave open, with the doubt that so few seeds leave about any spread.
        down, up = (quantile / NORMAL * reach for reach in _reaches(shares))
        error = (down if mean > 0 else up) / quantile
    p = 2 * student_cdf(freedom, -abs(mean) / error) if error else float(mean == 0)
    return Estimate(mean, mean - down, mean + up, p)


def share_interval(value: float, items: float) -> tuple[float, float]:
    """95 % of a share of so many independent items, exact: it covers at least that (Clopper and Pearson 1934)."""
    right, tail = value * items, (1 - CONFIDENCE) / 2
    low = beta_quantile(right, items - right + 1, tail) if right > EQUAL else 0.0
    high = beta_quantile(right + 1, items - right, 1 - tail) if right < items * (1 - EQUAL) else 1.0
    return low, high


def group_share_interval(values: ArrayLike, items: float) -> tuple[float, float] | None:
    """95 % of a share between 0 and 1 that groups of items have in common, where `values` average to it, one per group.

    Near 0 or 1 a share's error depends on where it truly lies: Wilson (1927), with as many items as would spread the
    share as the groups do, and Student's t for their number. Where groups agree, all `items` count (`Share`).
    """
    values_N = np.asarray(values, np.float64)
    share = min(1.0, max(0.0, float(values_N.mean())))
    error = float(values_N.std(ddof=1)) / math.sqrt(len(values_N)) if len(values_N) > 1 else 0.0
    if error <= EQUAL or not EQUAL < share < 1 - EQUAL:
        found = mean_interval(values_N, [Share(share, items)])
        return None if found is None else (max(0.0, found[0]), min(1.0, found[1]))
    variance = share * (1 - share)
    q = (t_quantile(len(values_N) - 1) * error) ** 2 / variance
    middle, reach = (share + q / 2) / (1 + q), math.sqrt(q * variance + q * q / 4) / (1 + q)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def _reaches(shares: Sequence[Share]) -> tuple[float, float]:
    """How far a weighted sum of shares may lie below and above its value (Zou and Donner 2008: squares of the ends'
    distances add up)."""
    down = up = 0.0
    for share in shares:
        low, high = share_interval(share.value, share.items)
        ends = share.weight * (share.value - low), share.weight * (high - share.value)
        down += ends[0 if share.weight > 0 else 1] ** 2
        up += ends[1 if share.weight > 0 else 0] ** 2
    return math.sqrt(down), math.sqrt(up)


def holm(chances: Sequence[float | None], level: float = 1 - CONFIDENCE) -> list[bool]:
    """Which of several differences are told (Holm 1979): the probability that any of those told is none is at most
    `level`, however they depend on each other. None is not told, and not counted."""
    known = sorted((p, i) for i, p in enumerate(chances) if p is not None)
    told = [False] * len(chances)
    for place, (p, i) in enumerate(known):
        if p > level / (len(known) - place):
            break
        told[i] = True
    return told


def median_interval(values: ArrayLike) -> tuple[float, float] | None:
    """95 % of the median, from order statistics, between which it interpolates (Hettmansperger and Sheather 1986).

    Even the extremes of 5 or fewer hold the median too seldom: they are stretched by Student's t. None for one value.
    """
    sorted_N = np.sort(np.asarray(values, np.float64))
    n = len(sorted_N)
    if n < 2:
        return None
    if n < 6:
        around = mean_interval(sorted_N) or (0.0, 0.0)
        return min(around[0], float(sorted_N[0])), max(around[1], float(sorted_N[-1]))

    def held(d: int) -> float:
        """How often the d-th from either end hold it between them."""
        return 1 - 2 * binomial_cdf(d - 1, n, 0.5)

    d = max((d for d in range(1, (n + 1) // 2) if held(d) >= CONFIDENCE), default=1)
    share = (held(d) - CONFIDENCE) / (held(d) - held(d + 1))
    inward = (n - d) * share / (d + (n - 2 * d) * share)
    low = (1 - inward) * sorted_N[d - 1] + inward * sorted_N[d]
    high = (1 - inward) * sorted_N[n - d] + inward * sorted_N[n - d - 1]
    return float(low), float(high)
