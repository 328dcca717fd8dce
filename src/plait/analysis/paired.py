"""Paired comparison of the losses of several architectures over the same seeds and validation windows.

    compared = compare_losses({"attn": {0: [2.1, 1.9, …], 1: […]}, "gla": {…}})    losses[architecture][seed][window]
    compared.pairs[0].verdict        "a", "b" or "not distinguishable"
    compared.noise                   the standard deviation between seeds, pooled over architectures

The error of a difference of means over k seeds and W windows has two parts: the variance between seeds (v/k for each of
the two) and that over windows, a sample of the text. Both architectures see the same windows, so only the variance of
the difference counts, minus what the seeds' part already includes. A variance from two to five seeds is unreliable, so
it is pooled over all architectures (Student's t with the pooled degrees of freedom; Welch–Satterthwaite if the windows'
part is added):

- two architectures: the variance within each, 2 (k − 1) degrees of freedom. Shared batches can only make the true
  difference less variable than this.
- three or more with the same seeds: the residual after subtracting the mean of every architecture and every seed,
  (A − 1)(k − 1) degrees of freedom, so that a seed whose batches are hard for all has no effect.

An architecture that is noisier than the rest (F test, 1 %) is removed from the pool and judged by its own noise. Holm's
correction (1979) over all pairs limits the family-wise error rate to 5 %. A difference below the noise is never called
significant. Diverged seeds are left out and counted; an architecture that diverged with every seed loses to one that
did not.

Letters: A architectures, S or k seeds, W windows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.distributions import f_tail, student_cdf, t_quantile
from plait.analysis.intervals import EQUAL, holm
from plait.analysis.pareto import Floats
from plait.core.errors import UserError

NOT_DISTINGUISHABLE = "not distinguishable"
WILD = 0.01  # the level at which an architecture is called noisier than the rest
DRAWS = 4000  # samples for P(best)


@dataclass(frozen=True)
class SeedNoise:
    """A standard deviation between seeds from other trainings, and its degrees of freedom."""

    deviation: float
    freedom: float


def seed_noise(losses: Iterable[Sequence[float]]) -> float | None:
    """The pooled standard deviation between seeds, from one list of losses per model; None if no model has several.
    Diverged trainings are left out."""
    runs = [np.array([loss for loss in seeds if math.isfinite(loss)], np.float64) for seeds in losses]
    pooled = _pooled([run_S for run_S in runs if len(run_S)], None)
    return None if pooled is None else math.sqrt(pooled.variance)


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
    """`difference`: loss of a minus loss of b, with its 95 % interval and p-value (None with fewer than two seeds).
    `verdict`: "a" or "b", whichever is better, or NOT_DISTINGUISHABLE."""

    a: str
    b: str
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    verdict: str


@dataclass(frozen=True)
class Compared:
    """`architectures` and `pairs` in the order given. `noise`: None if no architecture has two seeds."""

    architectures: list[Judged]
    pairs: list[Pair]
    noise: float | None
    freedom: float  # degrees of freedom of the noise

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
        """The verdict as a sentence."""
        best = self.best
        rest = len(self.architectures) - len(best)
        if not best:
            return "all diverged"
        if len(best) == 1:
            return f"{best[0]} is best" if rest else f"{best[0]} alone"
        others = f"; the other {rest} are worse" if rest > 1 else "; the other is worse" if rest else ""
        return f"{', '.join(best[:-1])} and {best[-1]} are not distinguishable{others}"


@dataclass(frozen=True)
class _Spread:
    """The variance of a run's mean loss, and its degrees of freedom."""

    variance: float
    freedom: float


def compare_losses(
    losses: Mapping[str, Mapping[int, ArrayLike]], noise: SeedNoise | None = None, draws: int = DRAWS
) -> Compared:
    """Compare architectures. `losses[architecture][seed]`: one loss per validation window (or one number), the same
    windows in the same order for all. `noise`: the spread between seeds from other trainings, with which a verdict is
    possible from one seed."""
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
    spreads, within = _spreads(runs, len({frozenset(by) for by in kept.values() if by}) == 1, noise)
    floor = math.sqrt(within.variance) if within else None
    pairs = [_pair(a, b, runs, spreads) for a, b in itertools.combinations(table, 2)]
    significant = holm([pair.p for pair in pairs])
    judged = []
    p_best = _p_best(runs, spreads, draws)
    for name, by in table.items():
        loss = float(runs[name].mean()) if name in runs else math.inf
        interval = None
        if name in runs and (spread := spreads.get((name, name))):
            reach = t_quantile(spread.freedom) * math.sqrt(spread.variance / len(runs[name]))
            interval = loss - reach, loss + reach
        judged.append(Judged(name, loss, interval, len(by), len(by) - len(kept[name]), p_best.get(name, 0.0)))
    return Compared(
        judged,
        [_verdict(pair, differ, floor) for pair, differ in zip(pairs, significant, strict=True)],
        floor,
        within.freedom if within else 0.0,
    )


def _spreads(
    runs: Mapping[str, Floats], same_seeds: bool, known: SeedNoise | None
) -> tuple[dict[tuple[str, str], _Spread], _Spread | None]:
    """The variance for each pair of names (an architecture with itself: for its own interval), and the noise."""
    means = {name: run_SW.mean(axis=1) for name, run_SW in runs.items()}
    wild = _wild(means)
    calm = [name for name in means if name not in wild]
    within = _pooled([means[name] for name in calm], known)
    judging = within
    if known is None and same_seeds and len(calm) > 2 and len(means[calm[0]]) > 1:
        mean_AS = np.stack([means[name] for name in calm])
        rest_AS = mean_AS - mean_AS.mean(axis=1, keepdims=True) - mean_AS.mean(axis=0) + mean_AS.mean()
        freedom = (len(calm) - 1) * (mean_AS.shape[1] - 1)
        judging = _Spread(float((rest_AS**2).sum()) / freedom, freedom)
    spreads: dict[tuple[str, str], _Spread] = {}
    for a, b in itertools.combinations_with_replacement(runs, 2):
        if wild & {a, b}:
            own = _pooled([means[name] for name in {a, b}], None)
            if own is not None and a != b:  # Welch: no more degrees of freedom than the noisier one has
                own = _Spread(own.variance, min(len(means[name]) for name in wild & {a, b}) - 1)
            spread = own
        else:
            spread = within if a == b else judging
        if spread is not None:
            spreads[a, b] = spread
    return spreads, within


def _pooled(means: Sequence[Floats], known: SeedNoise | None) -> _Spread | None:
    freedom: float = sum(len(mean_S) - 1 for mean_S in means)
    squares = sum(float(((mean_S - mean_S.mean()) ** 2).sum()) for mean_S in means)
    if known is not None:
        freedom += known.freedom
        squares += known.freedom * known.deviation**2
    return _Spread(squares / freedom, freedom) if freedom else None


def _wild(means: Mapping[str, Floats]) -> set[str]:
    """Architectures that are significantly noisier than the others."""
    several = {name: mean_S for name, mean_S in means.items() if len(mean_S) > 1}
    noisy = set()
    for name, mean_S in several.items() if len(several) > 2 else ():
        rest = _pooled([other_S for other, other_S in several.items() if other != name], None)
        if rest is not None and rest.variance > 0:
            ratio = float(mean_S.var(ddof=1)) / rest.variance
            if f_tail(len(mean_S) - 1, rest.freedom, ratio) < WILD / len(several):
                noisy.add(name)
    return noisy


def _pair(a: str, b: str, runs: Mapping[str, Floats], spreads: Mapping[tuple[str, str], _Spread]) -> Pair:
    """A pair without a verdict."""
    if a not in runs or b not in runs:
        gap = math.nan if a not in runs and b not in runs else math.inf if a not in runs else -math.inf
        return Pair(a, b, gap, None, None, NOT_DISTINGUISHABLE)
    a_SW, b_SW = runs[a], runs[b]
    difference = float(a_SW.mean() - b_SW.mean())
    seeds = spreads.get((a, b))
    if seeds is None:
        return Pair(a, b, difference, None, None, NOT_DISTINGUISHABLE)
    by_seed = seeds.variance * (1 / len(a_SW) + 1 / len(b_SW))
    by_window, windows = _window_variance(a_SW, b_SW), a_SW.shape[1]
    variance = by_seed + by_window
    if variance <= (EQUAL * max(1.0, abs(difference))) ** 2:
        p = 1.0 if abs(difference) <= EQUAL else 0.0
        return Pair(a, b, difference, (difference, difference), p, NOT_DISTINGUISHABLE)
    freedom = variance**2 / (by_seed**2 / seeds.freedom + (by_window**2 / (windows - 1) if windows > 1 else 0.0))
    error = math.sqrt(variance)
    reach = t_quantile(freedom) * error
    p = 2 * student_cdf(freedom, -abs(difference) / error)
    return Pair(a, b, difference, (difference - reach, difference + reach), p, NOT_DISTINGUISHABLE)


def _window_variance(a_SW: Floats, b_SW: Floats) -> float:
    """The variance of the mean difference due to the windows alone, without the seed-by-window interaction."""
    windows = int(a_SW.shape[1])
    if windows < 2:
        return 0.0
    gap_W = a_SW.mean(axis=0) - b_SW.mean(axis=0)
    total = float(gap_W.var(ddof=1))
    for run_SW in (a_SW, b_SW):
        seeds = len(run_SW)
        if seeds > 1:
            rest_SW = run_SW - run_SW.mean(axis=0) - run_SW.mean(axis=1, keepdims=True) + run_SW.mean()
            total -= float((rest_SW**2).sum()) / ((seeds - 1) * (windows - 1)) / seeds
    return max(0.0, total) / windows


def _verdict(pair: Pair, significant: bool, floor: float | None) -> Pair:
    certain = significant and abs(pair.difference) >= (floor or 0.0)
    if certain or math.isinf(pair.difference):
        return Pair(pair.a, pair.b, pair.difference, pair.interval, pair.p, "a" if pair.difference < 0 else "b")
    return pair


def _p_best(
    runs: Mapping[str, Floats], spreads: Mapping[tuple[str, str], _Spread], draws: int
) -> dict[str, float | None]:
    """P(best) by sampling: seeds from Student's t, windows by a Bayesian bootstrap shared by all."""
    if len(runs) < 2:
        return dict.fromkeys(runs, 1.0)
    if len(spreads) < len(runs) * (len(runs) + 1) / 2:
        return dict.fromkeys(runs)
    rng = np.random.default_rng(0)
    windows = next(iter(runs.values())).shape[1]
    weight_DW = rng.dirichlet(np.ones(windows), draws) if windows > 1 else np.ones((draws, 1))
    first, second = sorted(runs, key=lambda name: runs[name].mean().item())[:2]
    columns = []
    for name, run_SW in runs.items():
        rival = second if name == first else first  # the best of the others: their pair defines the variance
        spread = spreads.get((name, rival)) or spreads[rival, name]
        error = math.sqrt(spread.variance / len(run_SW))
        columns.append(weight_DW @ run_SW.mean(axis=0) + error * rng.standard_t(spread.freedom, draws))
    chosen_D = np.argmin(np.stack(columns, axis=1), axis=1)
    return {name: float(np.mean(chosen_D == place)) for place, name in enumerate(runs)}
