"""Which of several proxies ranks models best, given that the best of many looks good by chance.

Of 14 proxies that know nothing about 40 models, the best one has a 95 % interval that excludes 0 in a fifth of the
studies (`benchmarks/intervals.py`). So two questions are asked of all at once, each at a family-wise error rate of 5 %:
whether the best is related to the truth at all (Holm's method over the p-values of all), and which others could be the
best (a comparison of each with the one that came out best, by Bonferroni; Hsu 1981).

The difference of two proxies is judged on the scale on which a correlation is about normal (`rank.z_left_out`), by
leaving out one model, or one group of them, in turn. Both proxies are judged on the same models, so only what they do
not share counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.distributions import CONFIDENCE, student_cdf
from plait.analysis.intervals import EQUAL, holm
from plait.analysis.rank import FEWEST, jackknife_error, spearman, z_left_out


@dataclass(frozen=True)
class BestProxy:
    """Indices into the proxies. `related`: whether the best is related to the truth beyond what the best of so many
    is by chance. `tied`: the others that are not distinguishable from it."""

    best: int
    related: bool
    tied: tuple[int, ...]


def best_proxy(proxies: Sequence[ArrayLike], truth: ArrayLike) -> BestProxy | None:
    """The proxy with the highest rank correlation; more is better in all. None for fewer than four models, or if all
    proxies are constant. Constant proxies are never the best nor tied with it."""
    correlations = [spearman(proxy, truth) for proxy in proxies]
    varying = [at for at, src in enumerate(correlations) if not np.isnan(src)]
    models = np.size(truth)
    if models < FEWEST or not varying:
        return None
    best = max(varying, key=lambda at: correlations[at])
    related = (
        holm([_chance(correlations[at], models) for at in varying])[varying.index(best)] and correlations[best] > 0
    )
    others = [at for at in varying if at != best]
    level = (1 - CONFIDENCE) / max(1, len(others))
    tied = [at for at in others if _difference_chance(proxies[best], proxies[at], truth) > level]
    return BestProxy(best, related, tuple(tied))


def _chance(src: float, models: int) -> float:
    """The p-value of a correlation against none, by Student's t. A perfect order of few models is no certainty, so it
    counts as half a step below 1."""
    freedom, most = models - 2, 1 - 6 / (models**3 - models)
    size = min(abs(src), most)
    return 2 * student_cdf(freedom, -size * float(np.sqrt(freedom / (1 - size**2))))


def _difference_chance(proxy: ArrayLike, other: ArrayLike, truth: ArrayLike) -> float:
    """The p-value of two proxies ranking equally well."""
    (z, left_out_G), (z_other, other_left_out_G) = (z_left_out(values, truth) for values in (proxy, other))
    error = jackknife_error(left_out_G - other_left_out_G)
    if error <= EQUAL:
        return float(abs(z - z_other) <= EQUAL)
    return 2 * student_cdf(len(left_out_G) - 1, -abs(z - z_other) / error)
