"""The range of budgets in which the law holds: the smallest budgets are excluded if the larger ones contradict them.

Trainings of few steps and very small models deviate from the power laws that hold at larger budgets, and bias E, α and
β by more than the noise. The test is Chow's predictive test (1960): the surface fitted to the larger budgets predicts
the losses of the smallest group with errors e of covariance s² (I + J C Jᵀ), where J are the surface's derivatives
there and s² C is the covariance of the fit; for m runs eᵀ (I + J C Jᵀ)⁻¹ e / (m s²) has an F distribution with m and
the residual degrees of freedom. At 1 % the group is excluded, and the next one is tested.

A law that fails below the range may also be slightly wrong within it, so if groups are excluded, intervals use the
residual noise including the last excluded group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plait.analysis.distributions import f_tail
from plait.analysis.scaling_runs import COLUMNS, OPTIONAL, Runs
from plait.analysis.scaling_surface import NUMBERS, Layout, Places, Points, fit_surface, log_loss

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
