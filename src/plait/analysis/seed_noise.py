"""The noise between seeds of several architectures: how far the mean loss of one, or the difference of two, is known.

- two architectures: the variances of each one's own runs, by Welch's test (1947). Shared batches can only make the true
  difference less variable than this.
- three or more with the same seeds: the residual after subtracting the mean of every architecture and every seed,
  (A − 1)(k − 1) degrees of freedom, so that a seed whose batches are hard for all has no effect.
- three or more of which some seeds are missing: the pooled variance of all runs about the mean of their architecture.

A variance from two to five seeds is unreliable, so it is pooled. An architecture that is noisier than the rest (F test,
5 % divided by their number) is removed from the pool: its differences are judged by their own variance over the seeds.
With two or three seeds it is often not recognised, and its differences are then called significant too often.

Letters: A architectures, S or k seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plait.analysis.distributions import f_tail
from plait.analysis.pareto import Floats

WILD = 0.05  # the level at which any architecture is called noisier than the rest


@dataclass(frozen=True)
class Variance:
    """An estimated variance and its degrees of freedom."""

    value: float
    freedom: float

    def __add__(self, other: Variance) -> Variance:
        """The sum of independent estimates (Welch 1947, Satterthwaite 1946)."""
        value = self.value + other.value
        parts = self.value**2 / self.freedom + other.value**2 / other.freedom
        return Variance(value, value**2 / parts if parts else self.freedom + other.freedom)

    def over(self, runs: float) -> Variance:
        """That of a mean over so many runs."""
        return Variance(self.value / runs, self.freedom)


def seed_noise(losses: Iterable[Sequence[float]]) -> float | None:
    """The pooled standard deviation between seeds, from one list of losses per model; None if no model has several.
    Diverged trainings are left out."""
    runs = [np.array([loss for loss in seeds if math.isfinite(loss)], np.float64) for seeds in losses]
    pooled = _pooled([run_S for run_S in runs if len(run_S)])
    return None if pooled is None else math.sqrt(pooled.value)


@dataclass(frozen=True)
class SeedNoise:
    """`means`: the losses of every architecture, one per seed. `paired`: all have the same seeds, in the same order."""

    means: Mapping[str, Floats]
    paired: bool

    @cached_property
    def pooled(self) -> Variance | None:
        """Of one run, over all architectures but noisier ones; None if none has two seeds."""
        return _pooled([self.means[name] for name in self._calm])

    def of_mean(self, name: str) -> Variance | None:
        """Of an architecture's mean over its seeds."""
        own = _pooled([self.means[name]]) if name not in self._calm else self._common
        return None if own is None else own.over(len(self.means[name]))

    def of_own_part(self, name: str) -> Variance | None:
        """The same without what all architectures have in common at a seed."""
        if self._residual is None:
            own = self._own(name) or self.pooled
        elif name in self._calm:
            own = self._residual
        else:
            own = _pooled([self.means[name] - np.mean(list(self._calm.values()), axis=0)])
        return None if own is None else own.over(len(self.means[name]))

    def of_difference(self, a: str, b: str) -> Variance | None:
        """Of the difference of two means."""
        a_S, b_S = self.means[a], self.means[b]
        if self._residual is not None and not {a, b} <= self._calm.keys():
            apart = _pooled([a_S - b_S])
            return None if apart is None else apart.over(len(a_S))
        own, other = self._own(a), self._own(b)
        if own is not None and other is not None:
            return own.over(len(a_S)) + other.over(len(b_S))
        pool = self._residual or self.pooled
        if pool is None or (own is None and other is None) or len(self.means) < 3:
            return None if pool is None else pool.over(1 / (1 / len(a_S) + 1 / len(b_S)))
        return (own or pool).over(len(a_S)) + (other or pool).over(len(b_S))

    def _own(self, name: str) -> Variance | None:
        """The variance of its own runs, where that is used and not one pooled over all."""
        alone = self._residual is None and (len(self.means) < 3 or name not in self._calm)
        return _pooled([self.means[name]]) if alone else None

    @cached_property
    def _calm(self) -> dict[str, Floats]:
        """The architectures that are not significantly noisier than the others; at least two, if there are."""
        calm = {name: mean_S for name, mean_S in self.means.items() if len(mean_S) > 1}
        level = WILD / max(1, len(calm))
        while len(calm) > 2:
            tails = {name: self._tail(name, calm) for name in calm}
            noisiest = min(tails, key=tails.__getitem__)
            if tails[noisiest] >= level:
                break
            del calm[noisiest]
        single = {name: mean_S for name, mean_S in self.means.items() if len(mean_S) < 2}
        return {**calm, **single}

    def _tail(self, name: str, calm: Mapping[str, Floats]) -> float:
        """The p-value of an architecture's variance against that of the others."""
        others = [mean_S for other, mean_S in calm.items() if other != name]
        own_S, rest = calm[name], _pooled(others)
        if self.paired:
            own_S = (own_S - np.mean(others, axis=0)) / math.sqrt(1 + 1 / len(others))
            rest = _residual(np.stack(others))
        if rest is None or rest.value <= 0:
            return 1.0
        return f_tail(len(own_S) - 1, rest.freedom, float(own_S.var(ddof=1)) / rest.value)

    @cached_property
    def _residual(self) -> Variance | None:
        """Of one run, without what all have in common at a seed; None if that cannot be separated."""
        several = self.paired and len(self.means) > 2 and len(next(iter(self.means.values()))) > 1
        return _residual(np.stack(list(self._calm.values()))) if several else None

    @cached_property
    def _common(self) -> Variance | None:
        """The pooled variance, with the degrees of freedom that it has if seeds have a common part: between k − 1, if
        that is all, and A (k − 1). It is the mean over architectures of the variance between the seeds' means and of
        the residual."""
        if self.pooled is None or not self.paired or len(self._calm) < 2:
            return self.pooled
        mean_AS = np.stack(list(self._calm.values()))
        count, seeds = mean_AS.shape
        between = Variance(float(mean_AS.mean(axis=0).var(ddof=1)), seeds - 1)
        rest = _residual(mean_AS)
        return between + Variance(rest.value * (count - 1) / count, rest.freedom)


def _pooled(means: Sequence[Floats]) -> Variance | None:
    freedom = sum(len(mean_S) - 1 for mean_S in means)
    squares = sum(float(((mean_S - mean_S.mean()) ** 2).sum()) for mean_S in means)
    return Variance(squares / freedom, freedom) if freedom else None


def _residual(mean_AS: Floats) -> Variance:
    rest_AS = mean_AS - mean_AS.mean(axis=1, keepdims=True) - mean_AS.mean(axis=0) + mean_AS.mean()
    freedom = (mean_AS.shape[0] - 1) * (mean_AS.shape[1] - 1)
    return Variance(float((rest_AS**2).sum()) / freedom, freedom)
