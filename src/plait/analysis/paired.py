"""Paired comparison of the losses of several architectures over the same seeds and validation windows.

    compared = compare_losses({"attn": {0: [2.1, 1.9, …], 1: […]}, "gla": {…}})    losses[architecture][seed][window]
    compared.pairs[0].verdict        "a", "b" or "not distinguishable"
    compared.noise                   the standard deviation between seeds, pooled over architectures

The error of a difference of means over k seeds and W windows has two parts: the noise between seeds (`seed_noise`) and
the variance over windows, a sample of the text. Both architectures see the same windows, so only the variance of the
difference counts, minus what the seeds' part already includes. Windows of one document are alike: if neighbours are
correlated, in the order of the text, the variance of their mean is larger (`analysis.serial`), and they count as fewer.
Intervals are Student's t, with the degrees of freedom of the sum (Welch and Satterthwaite) but at most those of the
windows: where their part happens to be estimated too small, the sum would seem to be known better than it is.

Holm's correction (1979) over all pairs limits the family-wise error rate to 5 %: besides the 95 % interval of each pair
alone there is one at the level that the correction asks of it, which excludes 0 exactly where a difference is found. A
difference below the noise is never called significant even so. Diverged seeds are left out and counted; an architecture
that diverged with every seed loses to one that did not.

Letters: A architectures, S or k seeds, W windows, D samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.distributions import CONFIDENCE, student_cdf, t_quantile
from plait.analysis.intervals import EQUAL, holm_levels
from plait.analysis.pareto import Floats
from plait.analysis.seed_noise import SeedNoise, Variance
from plait.analysis.serial import independent_count
from plait.core.errors import UserError

NOT_DISTINGUISHABLE = "not distinguishable"
DRAWS = 4000  # samples for P(best)


@dataclass(frozen=True)
class Judged:
    """One architecture. `interval`: the 95 % interval of its mean over seeds on these windows; None from one seed.
    `diverged`: the number of diverged seeds, whose losses are left out; the loss is infinite if all did. `p_best`: the
    probability that its mean is the lowest; None if the noise is unknown."""

    name: str
    loss: float
    interval: tuple[float, float] | None
    seeds: int
    diverged: int
    p_best: float | None


@dataclass(frozen=True)
class Pair:
    """`difference`: loss of a minus loss of b, with the 95 % interval and p-value of this pair alone (None with fewer
    than two seeds). `corrected`: the interval at the level of Holm's correction over all pairs. `verdict`: "a" or
    "b", whichever is better, or NOT_DISTINGUISHABLE."""

    a: str
    b: str
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    verdict: str
    corrected: tuple[float, float] | None = None


@dataclass(frozen=True)
class Compared:
    """`architectures` and `pairs` in the order given. `noise`: None if no architecture has two seeds. `windows`: how
    many independent windows they are worth to the pair whose neighbours are most alike."""

    architectures: list[Judged]
    pairs: list[Pair]
    noise: float | None
    windows: float = 1.0

    @property
    def best(self) -> list[str]:
        """The architecture with the lowest loss, then those not distinguishable from it."""
        leader = min(self.architectures, key=lambda judged: judged.loss).name
        worse = {
            p.b if p.verdict == "a" else p.a
            for p in self.pairs
            if p.verdict in ("a", "b") and (p.a if p.verdict == "a" else p.b) == leader
        }
        kept = [judged for judged in self.architectures if judged.name not in worse and math.isfinite(judged.loss)]
        return [judged.name for judged in sorted(kept, key=lambda judged: (judged.name != leader, judged.loss))]

    @property
    def verdict(self) -> str:
        """The verdict as a sentence, with the diverged seeds of those that it calls best."""
        best = self.best
        if not best:
            return "all diverged"
        lost = [
            f"{judged.name} diverged with {judged.diverged} of {judged.seeds} seeds"
            for judged in self.architectures
            if judged.diverged and judged.name in best
        ]
        return "; ".join([self._told(best), *lost])

    def _told(self, best: list[str]) -> str:
        rest = len(self.architectures) - len(best)
        if len(best) == 1:
            return f"{best[0]} is best" if rest else f"{best[0]} alone"
        others = f"; the other {rest} are worse" if rest > 1 else "; the other is worse" if rest else ""
        if any(pair.verdict in ("a", "b") and {pair.a, pair.b} <= set(best) for pair in self.pairs):
            return f"{', '.join(best[1:-1])} and {best[-1]} are not distinguishable from {best[0]}{others}"
        return f"{', '.join(best[:-1])} and {best[-1]} are not distinguishable{others}"


def compare_losses(losses: Mapping[str, Mapping[int, ArrayLike]], draws: int = DRAWS) -> Compared:
    """Compare architectures. `losses[architecture][seed]`: one loss per validation window (or one number), the same
    windows for all, in the order of the text."""
    table = {
        name: {seed: np.atleast_1d(np.asarray(x, np.float64)) for seed, x in by.items()} for name, by in losses.items()
    }
    sizes = {x_W.shape for by in table.values() for x_W in by.values()}
    if len(sizes) > 1 or any(len(size) != 1 or not size[0] for size in sizes):
        raise UserError(f"paired losses need the same held-out windows for every run; the runs have {sorted(sizes)}.")
    if not table or any(not by for by in table.values()):
        raise UserError("paired losses need an architecture, and a run of each.")
    kept = {name: {s: x_W for s, x_W in by.items() if np.isfinite(x_W).all()} for name, by in table.items()}
    runs = {name: np.stack([by[seed] for seed in sorted(by)]) for name, by in kept.items() if by}  # (S, W) each
    same_seeds = len({frozenset(by) for by in kept.values() if by}) == 1
    noise = SeedNoise({name: run_SW.mean(axis=1) for name, run_SW in runs.items()}, same_seeds)
    floor = math.sqrt(noise.pooled.value) if noise.pooled else None
    differences = [_difference(a, b, runs, noise) for a, b in itertools.combinations(table, 2)]
    levels = holm_levels([difference.p for difference in differences])
    pairs = [_judged(difference, level, floor) for difference, level in zip(differences, levels, strict=True)]
    judged, windows = [], _independent_windows(runs)
    p_best = _p_best(runs, noise, windows, draws)
    for name, by in table.items():
        loss = float(runs[name].mean()) if name in runs else math.inf
        interval = None
        if name in runs and (spread := noise.of_mean(name)):
            reach = t_quantile(spread.freedom) * math.sqrt(spread.value)
            interval = loss - reach, loss + reach
        judged.append(Judged(name, loss, interval, len(by), len(by) - len(kept[name]), p_best.get(name, 0.0)))
    return Compared(judged, pairs, floor, windows)


def _independent_windows(runs: Mapping[str, Floats]) -> float:
    means = [run_SW.mean(axis=0) for run_SW in runs.values()]
    counts = [independent_count(a_W - b_W) for a_W, b_W in itertools.combinations(means, 2)]
    return min(counts, default=float(len(means[0])) if means else 1.0)


@dataclass(frozen=True)
class _Difference:
    """`error`: its standard error, None if unknown."""

    a: str
    b: str
    value: float
    error: float | None = None
    freedom: float = 1.0

    @property
    def p(self) -> float | None:
        if self.error is None:
            return None
        if not self.error:
            return 1.0 if abs(self.value) <= EQUAL else 0.0
        return 2 * student_cdf(self.freedom, -abs(self.value) / self.error)

    def interval(self, level: float = 1 - CONFIDENCE) -> tuple[float, float] | None:
        if self.error is None:
            return None
        reach = t_quantile(self.freedom, 1 - level) * self.error
        return self.value - reach, self.value + reach


def _difference(a: str, b: str, runs: Mapping[str, Floats], noise: SeedNoise) -> _Difference:
    if a not in runs or b not in runs:
        return _Difference(
            a, b, math.nan if a not in runs and b not in runs else math.inf if a not in runs else -math.inf
        )
    a_SW, b_SW = runs[a], runs[b]
    difference = float(a_SW.mean() - b_SW.mean())
    by_seed = noise.of_difference(a, b)
    if by_seed is None:
        return _Difference(a, b, difference)
    whole, by_window = by_seed, _window_variance(a_SW, b_SW)
    if by_window is not None:
        whole += by_window
    if whole.value <= (EQUAL * max(1.0, abs(difference))) ** 2:
        return _Difference(a, b, difference, 0.0)
    freedom = whole.freedom if by_window is None else min(whole.freedom, by_window.freedom)
    return _Difference(a, b, difference, math.sqrt(whole.value), freedom)


def _window_variance(a_SW: Floats, b_SW: Floats) -> Variance | None:
    """The variance of the mean difference due to the windows alone, without the seed-by-window interaction; None of one
    window."""
    windows = int(a_SW.shape[1])
    if windows < 2:
        return None
    gap_W = a_SW.mean(axis=0) - b_SW.mean(axis=0)
    count = independent_count(gap_W)
    total = float(gap_W.var(ddof=1))
    for run_SW in (a_SW, b_SW):
        seeds = len(run_SW)
        if seeds > 1:
            rest_SW = run_SW - run_SW.mean(axis=0) - run_SW.mean(axis=1, keepdims=True) + run_SW.mean()
            total -= float((rest_SW**2).sum()) / ((seeds - 1) * (windows - 1)) / seeds
    together = (windows / count - 1) * float(gap_W.var(ddof=1))  # what neighbours have in common
    return Variance((max(0.0, total) + together) / windows, count - 1)


def _judged(difference: _Difference, level: float | None, floor: float | None) -> Pair:
    """`level`: what Holm's correction asks of it; `floor`: the noise between seeds."""
    value, p = difference.value, difference.p
    significant = p is not None and level is not None and p <= level and abs(value) >= (floor or 0.0)
    verdict = ("a" if value < 0 else "b") if significant or math.isinf(value) else NOT_DISTINGUISHABLE
    corrected = None if level is None else difference.interval(level)
    return Pair(difference.a, difference.b, value, difference.interval(), p, verdict, corrected)


def _p_best(runs: Mapping[str, Floats], noise: SeedNoise, count: float, draws: int) -> dict[str, float | None]:
    """P(best) by sampling: the seeds' part from Student's t for each, the windows' from one multivariate t for all.
    `count`: of independent windows."""
    if len(runs) < 2:
        return dict.fromkeys(runs, 1.0)
    spreads = [noise.of_own_part(name) for name in runs]
    rng = np.random.default_rng(0)
    mean_WA = np.stack([run_SW.mean(axis=0) for run_SW in runs.values()], axis=1)
    loss_DA = np.broadcast_to(mean_WA.mean(axis=0), (draws, len(runs)))
    if (windows := len(mean_WA)) > 1:
        error_WA = (mean_WA - mean_WA.mean(axis=0)) / math.sqrt(count * (windows - 1))
        scale_D = np.sqrt((count - 1) / rng.chisquare(count - 1, draws))
        loss_DA = loss_DA + scale_D[:, None] * (rng.normal(size=(draws, windows)) @ error_WA)
    columns = []
    for loss_D, spread in zip(loss_DA.T, spreads, strict=True):
        if spread is None:
            return dict.fromkeys(runs)
        columns.append(loss_D + math.sqrt(spread.value) * rng.standard_t(spread.freedom, draws))
    best_D = np.argmin(np.stack(columns, axis=1), axis=1)
    return {name: float(np.mean(best_D == place)) for place, name in enumerate(runs)}
