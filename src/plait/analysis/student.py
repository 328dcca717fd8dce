"""The interval of a mean over few values, such as seeds, by Student's t: resampling three values says too little."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

#: The 97.5 % quantile of t with 1, 2, … degrees of freedom.
QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
#: The same of the normal distribution: standard deviations to either side of a 95 % interval.
NORMAL = 1.959964


def mean_interval(values: ArrayLike) -> tuple[float, float] | None:
    """95 % of the mean; None for a single value."""
    values_N = np.asarray(values, np.float64)
    if len(values_N) < 2:
        return None
    half = t_quantile(len(values_N) - 1) * float(values_N.std(ddof=1)) / float(np.sqrt(len(values_N)))
    mean = float(values_N.mean())
    return mean - half, mean + half


def t_quantile(freedom: int) -> float:
    """From the table; beyond it the normal quantile with the terms in 1/ν and 1/ν² (Abramowitz and Stegun 26.7.5)."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
