"""Scaling laws of one or several architectures, all with 90 % intervals: `fit_laws`.

For each architecture: the loss surface, the compute-optimal frontier at a target, IsoFLOP parabolas and the cost of
suboptimal sizes. Between architectures: a common E unless the data contradict it, which one is better at the target
with what probability, and the state law. Estimates whose interval is too wide to be useful are marked.

The law is fitted to the range of budgets in which it holds (`within_law`): the smallest budgets are excluded if the
larger ones contradict them. Trainings of few steps and very small models deviate from the power laws that hold at
larger budgets, and bias E, α and β by more than the noise. The test is Chow's predictive test (1960): the surface
fitted to the larger budgets predicts the losses of the smallest group with errors e of covariance s² (I + J C Jᵀ),
where J are the surface's derivatives there and s² C is the covariance of the fit; for m runs eᵀ (I + J C Jᵀ)⁻¹ e / (m
s²) has an F distribution with m and the residual degrees of freedom. At 1 % the group is excluded, and the next one is
tested. A group whose runs scatter more than the others is excluded as well.

A law that fails below the range may also be slightly wrong within it, so if groups are excluded, intervals use the
residual noise including the last excluded group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from plait.analysis.distributions import f_tail
from plait.analysis.intervals import holm
from plait.analysis.scaling_frontier import (
    Parabola,
    Powers,
    StateCurve,
    StateLaw,
    Surface,
    TokenCost,
    common_budgets,
    near_any,
    parabolas,
    powers,
    state_curve,
    state_law,
)
from plait.analysis.scaling_runs import ALL, COLUMNS, OPTIONAL, Runs
from plait.analysis.scaling_surface import (
    CONFIDENCE,
    DRAWS,
    NUMBERS,
    Draws,
    Floats,
    Layout,
    Places,
    Points,
    SurfaceFit,
    bootstrap,
    fit_surface,
    interval,
    log_loss,
)
from plait.core.errors import UserError

LEVEL = 0.01
LEAST_GROUPS, LEAST_RUNS = 3, 2 * NUMBERS  # needed to fit the law


@dataclass(frozen=True)
class LeftOut:
    """A group that the larger budgets contradict. Not `left`: too few others remain to exclude it."""

    architecture: str
    flops: float
    runs: int
    p: float
    left: bool = True


@dataclass(frozen=True)
class Range:
    """The runs of the budgets for which the law holds, by architecture; `discrepancy`: the factor by which to widen the
    noise of an architecture with excluded groups."""

    runs: Runs
    left_out: list[LeftOut]
    discrepancy: dict[str, float]


def within_law(runs: Runs) -> Range:
    dropped: list[LeftOut] = []
    discrepancy: dict[str, float] = {}
    kept = np.ones(len(runs), bool)
    for name in runs.names:
        own = runs.of(name)
        smallest_first = np.argsort(runs.flops[own], kind="stable")
        groups = [g for g in dict.fromkeys(runs.group[own][smallest_first].tolist()) if g >= 0]
        for place, g in enumerate(groups):
            here, rest = np.flatnonzero(runs.group == g), own[kept[own] & (runs.group[own] != g)]
            enough = len(groups) - place > LEAST_GROUPS and len(rest) >= LEAST_RUNS
            if len(rest) <= NUMBERS + 1 or len(groups) - place < LEAST_GROUPS:
                break
            p = contradiction(runs, here, rest)
            if p >= LEVEL:
                break
            dropped.append(LeftOut(name, float(runs.flops[here].mean()), len(here), p, enough))
            if not enough:
                break
            kept[here] = False
            discrepancy[name] = max(1.0, spread(runs, np.concatenate([here, rest])) / max(spread(runs, rest), 1e-9))
    return Range(runs if kept.all() else subset(runs, np.flatnonzero(kept)), dropped, discrepancy)


def spread(runs: Runs, places: Places) -> float:
    """The residual standard deviation of log L about the surface fitted to these runs."""
    points = Points.at(runs.params[places], runs.tokens[places])
    left = fit_surface(points, np.log(runs.loss[places]), Layout((np.arange(len(places)),))).residuals_R
    return float(np.sqrt(left @ left / max(1, len(places) - NUMBERS)))


def contradiction(runs: Runs, here: Places, rest: Places) -> float:
    """The p-value of Chow's test for a group against the other runs."""
    points = Points.at(runs.params[rest], runs.tokens[rest])
    fit = fit_surface(points, np.log(runs.loss[rest]), Layout((np.arange(len(rest)),)))
    n, d = np.log(runs.params[here]) - points.n_mean, np.log(runs.tokens[here]) - points.d_mean
    predicted, slopes = log_loss(fit.theta_P[None], n, d)
    free = len(rest) - NUMBERS
    spread = float(fit.residuals_R @ fit.residuals_R) / free
    known = np.linalg.pinv(fit.slopes_RP.T @ fit.slopes_RP)
    error = np.log(runs.loss[here]) - predicted[0]
    covariance = np.eye(len(here)) + slopes[0] @ known @ slopes[0].T
    ratio = float(error @ np.linalg.solve(covariance, error)) / len(here) / max(spread, 1e-14)
    return f_tail(len(here), free, ratio)


def subset(runs: Runs, places: Places) -> Runs:
    """Some of the runs, with groups renumbered without gaps."""
    columns = {name: getattr(runs, name)[places] for name in (*COLUMNS, *OPTIONAL) if getattr(runs, name) is not None}
    there = sorted(set(runs.group[places].tolist()) - {-1})
    group = np.array([there.index(g) if g >= 0 else -1 for g in runs.group[places].tolist()], np.intp)
    return replace(runs, **columns, architecture=tuple(runs.architecture[i] for i in places.tolist()), group=group)


SHARED_LEVEL = 0.05
LEAST_DRAWS = 20  # fewer samples say nothing
CANNOT_SAY = "the data cannot say"


@dataclass(frozen=True)
class Estimate:
    """A value with its 90 % interval; `wide` if the interval is too wide to be useful."""

    value: float
    low: float
    high: float
    wide: bool = False

    @classmethod
    def of(cls, value: Floats | float, values_B: Floats) -> Estimate:
        return cls(float(value), *interval(values_B))

    def wider_than(self, width: float) -> Estimate:
        """With `wide` set if the ends differ by more than this."""
        return replace(self, wide=not self.high - self.low <= width)

    def over(self, factor: float) -> Estimate:
        """With `wide` set if the ends differ by more than this factor."""
        return replace(self, wide=not (self.low > 0 and self.high / self.low <= factor))

    def as_dict(self) -> dict[str, object]:
        verdict = {"verdict": CANNOT_SAY} if self.wide else {}
        return {"value": self.value, "interval": [self.low, self.high], **verdict}


@dataclass(frozen=True)
class Law:
    """The scaling law of one architecture."""

    name: str
    surface: Surface
    draws: Surface
    cost: TokenCost
    target: float
    largest: float  # the largest budget of the runs
    lowest: float  # the lowest loss of the runs
    groups: list[Parabola]
    powers: Powers | None
    bends: bool = False  # deviates from the law within its budgets, so E is unreliable

    @property
    def extrapolation(self) -> float:
        """The ratio of the target to the largest budget."""
        return self.target / self.largest

    def surface_estimates(self) -> dict[str, Estimate]:
        values = {name: Estimate.of(getattr(self.surface, name), getattr(self.draws, name)) for name in SURFACE}
        values["E"] = replace(values["E"], wide=True) if self.bends else values["E"].wider_than(0.25 * self.lowest)
        factors = {"alpha": 2.0, "beta": 2.0, "A": 100.0, "B": 100.0}
        return {name: value.over(factors[name]) if name in factors else value for name, value in values.items()}

    def frontier_estimates(self, target: float | None = None) -> dict[str, Estimate]:
        flops = self.target if target is None else target
        own, drawn = self.surface.optimum(flops, self.cost), self.draws.optimum(flops, self.cost)
        (a, b), (a_B, b_B) = (surface.exponents(flops, self.cost) for surface in (self.surface, self.draws))
        n, d, loss = (Estimate.of(value, value_B) for value, value_B in zip(own, drawn, strict=True))
        return {
            "a": Estimate.of(a, a_B).wider_than(0.2),
            "b": Estimate.of(b, b_B).wider_than(0.2),
            "N_star": n.over(4),
            "D_star": d.over(4),
            "loss": loss.wider_than(0.1 * loss.value),
        }

    def gap(self, offset: float) -> Estimate:
        own, drawn = (surface.gap(self.target, self.cost, offset) for surface in (self.surface, self.draws))
        return Estimate.of(own, drawn).wider_than(0.1 * self.lowest)

    def overhead(self, offset: float) -> Estimate:
        own, drawn = (surface.overhead(self.target, self.cost, offset) for surface in (self.surface, self.draws))
        return Estimate.of(own, drawn).over(4)

    @property
    def few_budgets(self) -> bool:
        """Whether its groups are fewer than the three with which intervals were validated."""
        return 0 < len(self.groups) < 3

    def loss_at_target(self) -> tuple[float, Floats]:
        return float(self.surface.optimum(self.target, self.cost)[2]), self.draws.optimum(self.target, self.cost)[2]


SURFACE = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True)
class Comparison:
    """Two architectures at the target: the difference in loss, the probability that the better one is better, and the
    p-value, two-sided because either could have been the better one. `significant`: at the 5 % level, corrected for the
    number of pairs (Holm). `validated`: both have as many budgets as intervals were validated with."""

    better: str
    worse: str
    probability: float
    difference: Estimate
    p: float
    validated: bool = True
    significant: bool = False

    @property
    def sure(self) -> bool:
        return self.validated and self.significant

    @property
    def verdict(self) -> str:
        return f"{self.better} is better" if self.sure else CANNOT_SAY


@dataclass(frozen=True)
class Laws:
    runs: Runs
    target: float
    fit: SurfaceFit
    draws: Draws
    laws: dict[str, Law]
    shared_p: float | None  # p-value of the F test of one common E; None for one architecture
    left_out: list[LeftOut]  # groups of small budgets that the others contradict

    @property
    def shared(self) -> bool:
        return self.fit.layout.shared

    @cached_property
    def best(self) -> Law:
        """The architecture with the lowest loss at the target."""
        return min(self.laws.values(), key=lambda law: law.loss_at_target()[0])

    @cached_property
    def comparisons(self) -> list[Comparison]:
        ordered = sorted(self.laws.values(), key=lambda law: law.loss_at_target()[0])
        pairs = [_compare(better, worse) for better, worse in combinations(ordered, 2)]
        significant = holm([pair.p for pair in pairs])
        return [replace(pair, significant=sure) for pair, sure in zip(pairs, significant, strict=True)]

    @cached_property
    def state_curves(self) -> dict[str, StateCurve]:
        """State curves of the architectures with at least two groups that bracket their optimum. Only budgets that all
        of them have are used: P* is steeper in M at small budgets, so exponents over different budgets would differ
        even under the same law. Empty if they have fewer than two budgets in common."""
        if self.runs.state is None:
            return {}
        bracketed = {name: [group for group in law.groups if group.bracketed] for name, law in self.laws.items()}
        bracketed = {name: groups for name, groups in bracketed.items() if len(groups) > 1}
        budgets = common_budgets(list(bracketed.values())) if bracketed else []
        if len(budgets) < 2:
            return {}
        curves = {}
        for name, groups in bracketed.items():
            law = self.laws[name]
            groups = [group for group in groups if near_any(group.flops, budgets)]
            curves[name] = state_curve(groups, law.surface, law.draws, law.cost, self.runs.params, self.runs.state)
        return {name: curve for name, curve in curves.items() if curve is not None}

    @cached_property
    def state(self) -> StateLaw | None:
        return state_law(self.state_curves)


def fit_laws(runs: Runs, target: float, *, draws: int = DRAWS, seed: int = 0, all_budgets: bool = False) -> Laws:
    """Fit everything; raises a `UserError` if the runs do not suffice. `all_budgets`: include small budgets that
    contradict the law of the larger ones."""
    kept = Range(runs, [], {}) if all_budgets else within_law(runs)
    runs, left_out = kept.runs, kept.left_out
    points = Points.at(runs.params, runs.tokens)
    fit, shared_p = _pooled(runs, points)
    drawn = bootstrap(fit, runs.group, draws, seed, [kept.discrepancy.get(name, 1.0) for name in runs.names])
    bends = {budget.architecture for budget in left_out if not budget.left}
    laws = {
        name: replace(_law(runs, fit, drawn, k, name, target), bends=name in bends) for k, name in enumerate(runs.names)
    }
    return Laws(runs, target, fit, drawn, laws, shared_p, left_out)


def _pooled(runs: Runs, points: Points) -> tuple[SurfaceFit, float | None]:
    """Fit a common E for all architectures unless the runs contradict it (F test of the two fits)."""
    own = tuple(runs.of(name) for name in runs.names)
    separate = fit_surface(points, np.log(runs.loss), Layout(own))
    if len(own) == 1:
        return separate, None
    shared = fit_surface(points, np.log(runs.loss), Layout(own, shared=True))
    more = separate.layout.size - shared.layout.size
    free = len(runs) - separate.layout.size
    if free < 1:
        return shared, 1.0
    worse = max(0.0, shared.value - separate.value) / more / max(separate.value / free, 1e-300)
    p = f_tail(more, free, worse)
    return (shared if p > SHARED_LEVEL else separate), p


def _law(runs: Runs, fit: SurfaceFit, drawn: Draws, k: int, name: str, target: float) -> Law:
    own = fit.layout.runs[k]
    cost = TokenCost.of(runs.flops[own], runs.params[own], runs.tokens[own])
    surface = Surface.of(fit.layout.of(fit.theta_P, k), fit.points)
    loss_BR = np.exp(np.concatenate([np.log(runs.loss)[None], drawn.log_loss_BR]))
    first = int(min(runs.group[own][runs.group[own] >= 0], default=0))
    group_R = np.full(len(runs), -1, np.intp)
    group_R[own] = np.where(runs.group[own] >= 0, runs.group[own] - first, -1)
    groups = parabolas(runs.flops, runs.params, group_R, loss_BR * _at_one_budget(runs, group_R, surface))
    _bracketed(groups, name)
    return Law(
        name,
        surface,
        Surface.of(fit.layout.of(drawn.theta_BP, k), fit.points),
        cost,
        target,
        float(runs.flops[own].max()),
        float(runs.loss[own].min()),
        groups,
        powers(groups, cost),
    )


def _at_one_budget(runs: Runs, group_R: Places, surface: Surface) -> Floats:
    """The factor on each run's loss that takes it to the mean budget of its group, by the surface: whole steps miss a
    budget by up to 5 %, and scattered runs form groups of budgets up to 30 % apart."""
    log_flops_R, more_R = np.log(runs.flops), np.zeros(len(runs))
    for g in range(int(group_R.max(initial=-1)) + 1):
        here = group_R == g
        more_R[here] = log_flops_R[here].mean() - log_flops_R[here]
    tokens_R = runs.tokens * np.exp(more_R)
    return np.asarray(surface.loss(runs.params, tokens_R) / surface.loss(runs.params, runs.tokens))


def _bracketed(groups: Sequence[Parabola], name: str) -> None:
    if groups and all(group.side for group in groups):
        way = "larger" if sum(group.side > 0 for group in groups) * 2 >= len(groups) else "smaller"
        whose = "" if name == ALL else f"{name}: "
        raise UserError(
            f"{whose}in every group all sizes lie on one side of the best, which is {way} than any trained; add {way} "
            "models to the groups."
        )


def _compare(better: Law, worse: Law) -> Comparison:
    (low, low_B), (high, high_B) = better.loss_at_target(), worse.loss_at_target()
    difference = Estimate.of(high - low, high_B - low_B)
    validated = not (better.few_budgets or worse.few_budgets)
    chance = float(np.mean(low_B < high_B))
    return Comparison(better.name, worse.name, chance, difference, p_value(high_B - low_B), validated)


def p_value(difference_B: Floats) -> float:
    """Of a difference against 0, two-sided: twice the share of samples on the smaller side. No sample there does not
    mean that none could be, so then it is that of a normal distribution with the samples' mean and spread."""
    known_B = difference_B[np.isfinite(difference_B)]
    if len(known_B) < LEAST_DRAWS:
        return 1.0
    if share := min(float(np.mean(known_B <= 0)), float(np.mean(known_B >= 0))):
        return min(1.0, 2 * share)
    return math.erfc(abs(float(known_B.mean())) / max(float(known_B.std()), 1e-300) / math.sqrt(2))


__all__ = ["CANNOT_SAY", "CONFIDENCE", "LEAST_DRAWS", "Comparison", "Estimate", "Law", "Laws", "fit_laws", "p_value"]
