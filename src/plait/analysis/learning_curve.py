"""Extrapolation of several candidates' learning curves to a budget that none has reached, with joint uncertainty.

    observations = {"attn": {0: [(1e6, 1.9), (2e6, 1.6)], 1: […]}, "gla": {…}}     name → seed → [(tokens, loss)]
    forecast = extrapolate(observations, [4e6, 8e6, 16e6])
    forecast.at(16e6).p_best                 {"attn": 0.7, "gla": 0.3}

Extrapolation methods (`WAYS`):

    last            the last loss minus the average decrease of learning curves: candidates rank as by their last loss
    parametric      a power law L(t) = E + A t^−α, fitted to each candidate alone
    hierarchical    a Gaussian process: a common curve, and a deviation of each candidate (`curve_process`)
    ensemble        half of the draws parametric, half hierarchical
    library         conditional on complete curves of other architectures and texts (`curve_posterior`); half last,
                    half hierarchical if the candidates are unlike the architectures of the library

Learning curves cross: how far they deviate from a fitted form cannot be estimated from the curves at hand. Each method
has a constant for it, fitted to complete trainings (`Calibration`; `benchmarks/verdict.py` fits them and evaluates the
forecasts on architectures and texts not used for fitting). Draws are of expected losses. `noise` is the standard
deviation of ln loss between seeds, pooled over candidates. Budgets beyond `reach` times the longest observed one are
refused.

Letters: D draws, B budgets, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from plait.analysis.forecast import Forecast
from plait.analysis.pareto import Floats, Ints
from plait.core.errors import UserError

if TYPE_CHECKING:
    from plait.analysis.curve_library import Known

Observations = Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]
DRAWS = 2000
WAY = "library"  # the most accurate method in the backtest


@dataclass(frozen=True)
class Calibration:
    """Constants fitted to complete trainings, which the data of one race cannot determine. Losses are in ln loss,
    distances in ln tokens: "per e-fold" is per factor e in tokens.

    noise: prior standard deviation between seeds, with `noise_freedom` degrees of freedom.
    reach: the longest extrapolation, in multiples of the longest observed budget. At 16 times, 90 % intervals contain
    81 to 97 % of the true losses of architectures or texts outside the library (backtest).
    """

    noise: float = 0.01
    noise_freedom: float = 4.0
    reach: float = 16.0
    #: last: the mean decrease per e-fold, its standard deviation common to all candidates, and that of each alone.
    last_drift: float = 0.12
    last_common: float = 0.06
    last_own: float = 0.04
    #: parametric: priors (mean, standard deviation) of ln α and of ln(E / last loss); model discrepancy per e-fold.
    alpha: tuple[float, float] = (-1.2, 0.5)
    offset: tuple[float, float] = (-0.7, 0.7)
    stray: float = 0.03
    #: hierarchical: see `curve_process`.
    process: Mapping[str, float] = field(default_factory=dict)
    #: Mean decrease per e-fold by budget, ((tokens, decrease), …), constant beyond both ends: curves fall faster at
    #: first. Used for candidates to which the library does not apply (`_common_shift`).
    decline: tuple[tuple[float, float], ...] = ()
    decline_common: float = 0.05  # its standard deviation between texts, per e-fold

    def declined(self, x: Floats) -> Floats:
        """The total decrease of mean curves from the first budget of `decline` to `x` (ln tokens)."""
        at, rates = np.log([tokens for tokens, _ in self.decline]), np.array([rate for _, rate in self.decline])
        between = np.concatenate([[0.0], np.cumsum(np.diff(at) * (rates[1:] + rates[:-1]) / 2)])
        place = np.clip(np.searchsorted(at, x, side="right") - 1, 0, len(at) - 2)
        here = np.clip(x, at[0], at[-1])
        since = here - at[place]
        slope = np.diff(rates)[place] / np.diff(at)[place]
        outside = rates[0] * np.minimum(0.0, x - at[0]) + rates[-1] * np.maximum(0.0, x - at[-1])
        return np.asarray(between[place] + since * (rates[place] + slope * since / 2) + outside)


#: Fitted to all complete trainings; evaluated by cross-validation in `benchmarks/results/2026-11-17-verdict.md`.
CALIBRATION = Calibration(
    noise=0.0159,
    last_drift=0.154,
    last_common=0.0248,
    last_own=0.0368,
    alpha=(-0.766, 0.268),
    offset=(-0.307, 0.527),
    stray=0.0409,
    process={
        "slope_mean": -0.149,
        "slope_common": 0.0263,
        "length_common": 0.58,
        "level": 0.136,
        "slope": 0.153,
        "length": 2.06,
        "tie": -0.695,
        "shrink": 0.358,
        "luck": 2.62,
        "white": 0.3,
        "scale_width": 0.5,
    },
    decline=(
        (0.371e6, 0.274), (0.741e6, 0.267), (1.48e6, 0.237), (2.97e6, 0.179), (5.93e6, 0.156), (11.9e6, 0.134),
        (23.7e6, 0.102),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """Observations as sorted arrays. Candidates without a run of finite losses have diverged, and are only listed."""

    names: list[str]
    seeds: list[list[int]]
    points: list[list[Floats]]  # [candidate][seed] → (N, 2): ln tokens, ln loss
    diverged: list[str]

    @cached_property
    def last(self) -> Floats:
        """ln tokens of every candidate's longest run."""
        return np.array([max(run_N2[-1, 0] for run_N2 in runs) for runs in self.points])

    @property
    def stacked(self) -> tuple[Floats, Ints, Ints, Floats]:
        """The points of all runs: ln tokens, index of the candidate, index of the run, ln loss."""
        runs = [(c, run_N2) for c, by_seed in enumerate(self.points) for run_N2 in by_seed]
        tokens_N, loss_N = np.concatenate([run_N2 for _, run_N2 in runs]).T
        sizes = [len(run_N2) for _, run_N2 in runs]
        return tokens_N, np.repeat([c for c, _ in runs], sizes), np.repeat(np.arange(len(runs)), sizes), loss_N

    @property
    def longest(self) -> float:
        return float(np.exp(self.last.max())) if len(self.names) else 0.0

    def means(self, candidate: int) -> tuple[Floats, Floats, Floats]:
        """(ln tokens, mean ln loss over seeds, number of seeds) at every observed budget."""
        stacked_N2 = np.concatenate(self.points[candidate])
        tokens, place, seeds = np.unique(stacked_N2[:, 0].round(9), return_inverse=True, return_counts=True)
        return tokens, np.bincount(place, stacked_N2[:, 1]) / seeds, seeds.astype(np.float64)


def read_curves(observations: Observations) -> Curves:
    names, seeds, points, diverged = [], [], [], []
    for name, by_seed in observations.items():
        runs = {seed: np.array(sorted(run), np.float64).reshape(-1, 2) for seed, run in by_seed.items() if len(run)}
        if not runs:
            raise UserError(f"{name} has no observed loss: train it first, or leave it out.")
        if any((run_N2[:, 0] <= 0).any() for run_N2 in runs.values()):
            raise UserError(f"{name} has a loss at 0 tokens: learning curves begin after the first step.")
        whole = {seed: run_N2 for seed, run_N2 in runs.items() if np.isfinite(run_N2).all()}
        if not whole:
            diverged.append(name)
            continue
        if any((run_N2[:, 1] <= 0).any() for run_N2 in whole.values()):
            raise UserError(f"{name} has a loss of 0 or less; learning curves are of positive losses (nats, bits).")
        names.append(name)
        seeds.append(sorted(whole))
        points.append([np.log(whole[seed]) for seed in sorted(whole)])
    return Curves(names, seeds, points, diverged)


def pooled_noise(curves: Curves, calibration: Calibration) -> float:
    """The standard deviation of ln loss between seeds, pooled over candidates, with the calibrated one as a prior.

    Budgets of one run are not independent, so each candidate has as many degrees of freedom as seeds, minus one.
    """
    squares, freedom = calibration.noise_freedom * calibration.noise**2, calibration.noise_freedom
    for runs in curves.points:
        budgets: dict[float, list[float]] = {}
        for run_N2 in runs:
            for tokens, loss in run_N2.round(9).tolist():
                budgets.setdefault(tokens, []).append(loss)
        variances = [float(np.var(losses, ddof=1)) for losses in budgets.values() if len(losses) > 1]
        if variances:
            squares += (len(runs) - 1) * float(np.mean(variances))
            freedom += len(runs) - 1
    return math.sqrt(squares / freedom)


@dataclass(frozen=True)
class Constants:
    """What an extrapolation method uses besides the curves."""

    calibration: Calibration
    noise: float
    known: Known | None


#: (curves, ln budgets, constants, number of draws, generator) → draws (D, B, C) of ln expected loss.
Way = Callable[[Curves, Floats, Constants, int, np.random.Generator], Floats]


def extrapolate(
    observations: Observations,
    budgets: Sequence[float],
    way: str = WAY,
    calibration: Calibration = CALIBRATION,
    draws: int = DRAWS,
    seed: int = 0,
    reach: float | None = None,
    known: Known | None = None,
) -> Forecast:
    """Forecast the loss of every candidate at each of `budgets` (tokens). `reach` overrides the calibrated one. `known`
    is the library for the method `library`, which falls back to `hierarchical` without it."""
    if way not in WAYS:
        raise UserError(f"there is no way {way!r} to carry curves on; there are {', '.join(WAYS)}.")
    if not observations:
        raise UserError("there is no candidate to carry on.")
    curves = read_curves(observations)
    reach = calibration.reach if reach is None else reach
    most = reach * curves.longest
    if curves.names and max(budgets) > most * (1 + 1e-9):
        raise UserError(
            f"{max(budgets):.3g} tokens are beyond what these curves can speak about: the longest has "
            f"{curves.longest:.3g} tokens, which reaches to {most:.3g} ({reach:g} times). Train on, or ask for less."
        )
    noise = pooled_noise(curves, calibration)
    loss_DBC = np.full((draws, len(budgets), len(observations)), np.inf)
    if curves.names:
        rng = np.random.default_rng(seed)
        constants = Constants(calibration, noise, known)
        drawn_DBC = WAYS[way](curves, np.log(np.asarray(budgets, np.float64)), constants, draws, rng)
        loss_DBC[:, :, [list(observations).index(name) for name in curves.names]] = np.exp(drawn_DBC)
    longest, ends = curves.longest, [float(b) for b in budgets]
    shift_DB = None
    if curves.names and way == "library" and known is not None and not known.speaks_of(curves.names):
        shift_DB = _common_shift(curves, np.log(np.asarray(ends)), calibration, draws, seed)
    return Forecast(list(observations), ends, loss_DBC, noise, longest, reach, way, shift_DB=shift_DB)


def _last(curves: Curves, budgets_B: Floats, constants: Constants, draws: int, rng: np.random.Generator) -> Floats:
    means = [curves.means(c) for c in range(len(curves.names))]
    loss_BC = np.stack([np.interp(budgets_B, tokens_N, loss_N) for tokens_N, loss_N, _ in means], axis=1)
    luck_C = constants.noise / np.sqrt([seeds_N[-1] for _, _, seeds_N in means])
    ahead_BC = np.maximum(0.0, budgets_B[:, None] - curves.last)
    common_D, own_DC, seed_DC = (rng.normal(size=(draws, 1, n)) for n in (1, len(means), len(means)))
    calibration = constants.calibration
    slope_DBC = -calibration.last_drift + calibration.last_common * common_D + calibration.last_own * own_DC
    return np.asarray(loss_BC + seed_DC * luck_C + slope_DBC * ahead_BC)


def _parametric(
    curves: Curves, budgets_B: Floats, constants: Constants, draws: int, rng: np.random.Generator
) -> Floats:
    from plait.analysis.power_law import fit_power_laws

    means = [curves.means(c) for c in range(len(curves.names))]
    points = [(tokens_N, loss_N, constants.noise / np.sqrt(seeds_N)) for tokens_N, loss_N, seeds_N in means]
    fitted = fit_power_laws(points, constants.calibration.alpha, constants.calibration.offset)
    ahead_BC = np.maximum(0.0, budgets_B[:, None] - curves.last)
    stray_DC = rng.normal(size=(draws, 1, len(means))) * constants.calibration.stray
    return np.asarray(fitted.draw(budgets_B, draws, rng) + stray_DC * ahead_BC)


def _hierarchical(
    curves: Curves, budgets_B: Floats, constants: Constants, draws: int, rng: np.random.Generator
) -> Floats:
    from plait.analysis.curve_process import Process, draw_curves

    process = replace(Process(), **constants.calibration.process)
    return draw_curves(curves, budgets_B, process, constants.noise, draws, rng)


def _by_library(
    curves: Curves, budgets_B: Floats, constants: Constants, draws: int, rng: np.random.Generator
) -> Floats:
    """If the library does not apply to the candidates, half of the draws are from `last` and half `hierarchical`. Their
    errors are complementary: `last` fails where rankings cross, `hierarchical` where there are few early losses."""
    from plait.analysis.curve_posterior import draw_known

    if constants.known is None:
        return _hierarchical(curves, budgets_B, constants, draws, rng)
    if constants.known.speaks_of(curves.names):
        return draw_known(curves, budgets_B, constants.noise, draws, rng, constants.known)
    half = draws // 2
    parts = [(_last, half), (_hierarchical, draws - half)]
    drawn_DBC = np.concatenate([way(curves, budgets_B, constants, count, rng) for way, count in parts if count])
    rng.shuffle(drawn_DBC)
    return drawn_DBC


def _common_shift(curves: Curves, budgets_B: Floats, calibration: Calibration, draws: int, seed: int) -> Floats:
    """Draws (D, B), in ln loss, of the correction to the constant slope `last_drift` beyond the longest training: the
    mean decrease by budget (`decline`, faster at small budgets) and its variation between texts. It is common to all
    candidates and has its own random stream, so it does not change the decisions of a race."""
    if not calibration.decline:
        return np.zeros((draws, len(budgets_B)))
    longest = curves.last.max(keepdims=True)
    ahead_B = np.maximum(0.0, budgets_B - longest)
    lost_B = calibration.declined(np.maximum(budgets_B, longest)) - calibration.declined(longest)
    vary_D1 = np.random.default_rng([seed, draws]).normal(size=(draws, 1)) * calibration.decline_common
    return np.asarray(vary_D1 * ahead_B + calibration.last_drift * ahead_B - lost_B)


def _ensemble(curves: Curves, budgets_B: Floats, constants: Constants, draws: int, rng: np.random.Generator) -> Floats:
    half = draws // 2
    parts = [(_parametric, half), (_hierarchical, draws - half)]
    return np.concatenate([way(curves, budgets_B, constants, count, rng) for way, count in parts if count])


WAYS: dict[str, Way] = {
    "last": _last,
    "parametric": _parametric,
    "hierarchical": _hierarchical,
    "ensemble": _ensemble,
    "library": _by_library,
}
