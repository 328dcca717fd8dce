"""Fits the constants of `learning_curve` to complete learning curves.

Every table is extrapolated from several of its budgets to several later ones, each time with one seed (in turn)
observed and the mean of all seeds as the outcome. The constants maximise the predictive likelihood of the outcomes (the
Gaussian process) or match the spread of the errors (the others). `benchmarks/verdict.py` evaluates them on
architectures and texts that were not used for fitting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from plait.analysis.curve_library import Known, Library
from plait.analysis.curve_posterior import posterior
from plait.analysis.curve_process import Process, log_score
from plait.analysis.curve_screening import ScreenedKnown, ScreenedLibrary
from plait.analysis.curve_table import CurveTable
from plait.analysis.distributions import t_quantile
from plait.analysis.learning_curve import Calibration, Curves, read_curves
from plait.analysis.pareto import Floats
from plait.analysis.power_law import fit_power_laws
from plait.core.errors import UserError

START = Calibration()  # not those fitted before, which know the whole table
ENDS = 3  # of the budgets, the last so many are forecast
GAPS = (2, 3, 4)  # from so many budgets before
FEWEST = 3  # budgets observed
EVALUATIONS = 250
PULL = 0.7  # the width, in logarithms, of the pull of constants to where they start,
HELD = 0.4  # and of those of the common curve: one or two texts say little about how texts differ


@dataclass(frozen=True)
class Case:
    """Curves as observed with one seed, and what came out: ln tokens, mean ln loss of so many runs."""

    curves: Curves
    target: float
    truth_C: Floats
    runs: int


def cases(tables: Sequence[CurveTable], ends: int = ENDS, gaps: Sequence[int] = GAPS) -> Iterator[Case]:
    for table in tables:
        seeds, count = table.loss_ASB.shape[1:]
        for end in range(count - ends, count):
            for gap in gaps:
                if end - gap + 1 < FEWEST:
                    continue
                truth_C = np.log(table.loss_ASB[:, :, end].mean(axis=1))
                seen = table.observations(dict.fromkeys(table.names, end - gap + 1), [(end + gap) % seeds])
                yield Case(read_curves(seen), math.log(table.budgets[end]), truth_C, seeds)


def calibrate(tables: Sequence[CurveTable], start: Calibration = START) -> Calibration:
    played = list(cases(tables))
    if not played:
        raise UserError(f"calibration needs curves of {FEWEST + min(GAPS)} budgets or more.")
    several = [table for table in tables if table.loss_ASB.shape[1] > 1]
    noise = start.noise
    if several:
        noise = math.sqrt(float(np.mean([np.log(table.loss_ASB).var(axis=1, ddof=1).mean() for table in several])))
    drift, common, own = _last(played, noise)
    alpha, offset = _power_law(tables, noise)
    found = replace(start, noise=noise, last_drift=drift, last_common=common, last_own=own, alpha=alpha, offset=offset)
    level = float(np.sqrt(np.mean([np.log(table.loss_ASB[:, :, 0]).mean(axis=1).var(ddof=1) for table in tables])))
    found = replace(found, stray=_stray(played, found))
    return replace(found, process=_process(played, {**start.process, "level": level}, noise))


def _last(played: Sequence[Case], noise: float) -> tuple[float, float, float]:
    """Mean decrease per e-fold; how it varies between cases, and between the candidates of one."""
    slopes = []
    own = []
    for case in played:
        last_C = np.array([runs[0][-1, 1] for runs in case.curves.points])
        ahead = case.target - float(case.curves.last[0])
        slope_C = (case.truth_C - last_C) / ahead
        slopes.append(float(slope_C.mean()))
        own.append(float(slope_C.var(ddof=1)) - (1 + 1 / case.runs) * (noise / ahead) ** 2)
    width = math.sqrt(max(1e-8, float(np.mean(own))))
    return -float(np.mean(slopes)), float(np.std(slopes)), width


def _power_law(tables: Sequence[CurveTable], noise: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where ln α and ln E / L_last lie, from whole curves (the mean over seeds), and how they vary."""
    wide = (START.alpha[0], 1.0), (START.offset[0], 1.5)
    rows = []
    for table in tables:
        x_B = np.log(table.budgets)
        noise_B = np.full(len(x_B), max(1e-4, noise))
        for until in range(len(x_B) - ENDS, len(x_B) + 1):
            points = [
                (x_B[:until], np.log(losses_SB.mean(axis=0))[:until], noise_B[:until]) for losses_SB in table.loss_ASB
            ]
            rows.append(fit_power_laws(points, *wide).parameters_C3[:, :2])
    found_N2 = np.concatenate(rows)
    middle, width = np.median(found_N2, axis=0), np.maximum(0.1, found_N2.std(axis=0))
    return (float(middle[0]), float(width[0])), (float(middle[1]), float(width[1]))


def _stray(played: Sequence[Case], calibration: Calibration) -> float:
    """The discrepancy under which the errors are as wide as said: most probable, by a search in one dimension."""
    from scipy.optimize import minimize_scalar

    errors, variances, aheads = [], [], []
    for case in played:
        points = [
            (*case.curves.means(c)[:2], np.full(len(case.curves.means(c)[0]), calibration.noise))
            for c in range(len(case.truth_C))
        ]
        fitted = fit_power_laws(points, calibration.alpha, calibration.offset)
        drawn_DC = fitted.draw(np.array([case.target]), 200, np.random.default_rng(0))[:, 0]
        errors.append(case.truth_C - np.median(drawn_DC, axis=0))
        variances.append(drawn_DC.var(axis=0) + calibration.noise**2 / case.runs)
        aheads.append(case.target - case.curves.last)
    error_N, variance_N, ahead_N = (np.concatenate(parts) for parts in (errors, variances, aheads))

    def loss(log_stray: float) -> float:
        total_N = variance_N + (math.exp(log_stray) * ahead_N) ** 2
        return float((np.log(total_N) + error_N**2 / total_N).sum())

    return math.exp(float(minimize_scalar(loss, bounds=(-9.0, 0.0), method="bounded").x))


#: How each constant of the process is moved: by a factor, or (tie) on a scale where it stays between −1 and 1.
_FACTORS = ("slope_common", "length_common", "slope", "length", "luck")


def _process(played: Sequence[Case], constants: Mapping[str, float], noise: float) -> dict[str, float]:
    from scipy.optimize import minimize

    start = replace(Process(), **constants)

    def at(x: Floats) -> Process:
        moved = {name: getattr(start, name) * math.exp(step) for name, step in zip(_FACTORS, x, strict=False)}
        mean, tie, shrink = x[len(_FACTORS) :].tolist()
        tied = math.tanh(math.atanh(start.tie) + tie)
        return replace(
            start, **moved, slope_mean=start.slope_mean + 0.1 * mean, tie=tied, shrink=start.shrink + 0.1 * shrink
        )

    def loss(x: Floats) -> float:
        if np.abs(x).max() > 4:
            return 1e12
        process = at(x)
        try:
            score = sum(log_score(case.curves, case.target, case.truth_C, process, noise, case.runs) for case in played)
        except np.linalg.LinAlgError:  # constants that are no covariance
            return 1e12
        return -score + 0.5 * float(((x / width) ** 2).sum())

    origin = np.zeros(len(_FACTORS) + 3)
    width = np.array([HELD if "common" in name else PULL for name in _FACTORS] + 3 * [PULL])
    simplex = np.concatenate([origin[None], 0.7 * np.eye(len(origin))])
    options = {"maxfev": EVALUATIONS, "initial_simplex": simplex, "xatol": 1e-2, "fatol": 1e-1}
    found = minimize(loss, origin, method="Nelder-Mead", options=options)
    return asdict(at(found.x))


SETS = 48  # of candidates, left out of the library to fit its `width`
SET_SIZE = 8  # at most, and at most a third of the library
HOLDS = 0.9  # of the intervals, of those left out
NARROWEST, WIDEST = 0.5, 2.0  # a factor beyond these is not believed


def learn_width(
    tables: Sequence[CurveTable],
    whole: Library,
    traits: Mapping[str, Sequence[float]],
    calibration: Calibration,
    sets: int = SETS,
    seed: int = 0,
) -> float:
    """The factor of the standard deviations of forecasts of candidates that are not in the library, found inside it:
    sets of candidates are left out, observed with one seed (where the library has screenings: these, and the first
    budget; otherwise up to 1/4, 1/8 or 1/16 of the last), and forecast by the rest. With it `HOLDS` of the intervals of
    how each differs from the others hold. How texts differ cannot be seen where only architectures are left out."""
    rng = np.random.default_rng(seed)
    size, ends = min(SET_SIZE, len(whole.names) // 3), len(whole.budgets)
    if size < 2 or ends < FEWEST + 2:
        return 1.0
    needed = []
    for number in range(sets):
        text = number % len(tables)
        left_out = [whole.names[i] for i in sorted(rng.choice(len(whole.names), size, replace=False).tolist())]
        places = [tables[text].names.index(name) for name in left_out]
        asked = tables[text].subset(places).until(whole.budgets[-1])
        runs, rest = asked.loss_ASB.shape[1], whole.without(left_out, same_covariances=True)
        known, observed = Known(rest, traits, {}, asked.text), max(FEWEST, ends - 2 - number % 3)
        if isinstance(whole, ScreenedLibrary):
            seen = {name: float(whole.screening_TA[text, whole.names.index(name)]) for name in left_out}
            known, observed = ScreenedKnown(rest, traits, {}, asked.text, seen), 1
        curves = read_curves(asked.observations(dict.fromkeys(left_out, observed), [int(rng.integers(runs))]))
        mean_C, cov_CC, freedom = posterior(curves, np.log(asked.budgets[-1:]), calibration.noise, known)
        apart_CC = np.eye(size) - 1 / size
        error_C, variance_C = apart_CC @ (np.log(asked.truth) - mean_C), np.diag(apart_CC @ cov_CC @ apart_CC)
        luck = calibration.noise**2 / runs * (1 - 1 / size)
        within_C = (error_C / t_quantile(freedom, HOLDS)) ** 2
        needed.append(np.sqrt(np.maximum(0.0, within_C - luck) / variance_C))
    return float(np.clip(np.quantile(np.concatenate(needed), HOLDS), NARROWEST, WIDEST))
