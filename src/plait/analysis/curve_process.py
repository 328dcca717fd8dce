"""Learning curves of many candidates as one Gaussian process over x = ln tokens (from the first observed budget on).

    ln L_a(x) = c(x) + g_a(x) + seed noise

c, the curve that all have in common, and g_a, what sets one candidate apart, are levels that change by a slope; the
slope is an Ornstein–Uhlenbeck process: it persists over about `length` and fades to its mean, so that a candidate that
catches up goes on doing so for a while, and nobody can say for how long. That uncertainty, which grows with the
distance of the extrapolation, is the discrepancy. The covariance of ∫ slope over x and y is

    σ² ℓ² (2 min(x, y)/ℓ + e^{−x/ℓ} + e^{−y/ℓ} − 1 − e^{−|x − y|/ℓ})

A candidate that is behind at first may catch up (`tie`: the correlation of first level and slope, negative where early
losses mislead). Deviations shrink, e^{−shrink x}, as all approach the text's entropy. Seeds of one candidate share g_a;
their luck lasts `luck` (a lucky run at one budget is lucky at twice that, too).

Everything is normal, hence exact. How much the candidates at hand differ is not the table's business alone: the scale
of all g_a is weighed over `SCALES` by how well each explains the observations, which also gives draws heavier tails.

Letters: N observations, C candidates, B budgets, D draws, M = B·C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plait.analysis.pareto import Floats, Ints

if TYPE_CHECKING:
    from plait.analysis.learning_curve import Curves

SCALES = (0.35, 0.6, 1.0, 1.7, 2.8)
JITTER = 1e-10


@dataclass(frozen=True)
class Process:
    """Constants, fitted on complete trainings. Slopes are per e-fold of tokens."""

    slope_mean: float = -0.25  # of the common curve
    slope_common: float = 0.15
    length_common: float = 4.0
    level: float = 0.15  # of candidates, at the first observed budget
    slope: float = 0.06
    length: float = 1.5
    tie: float = -0.3
    shrink: float = 0.1
    luck: float = 1.0
    white: float = 0.3  # the share of the seeds' variance that does not last
    scale_width: float = 0.5  # of the prior of ln scale


def _integrated(x: Floats, y: Floats, length: float) -> Floats:
    """Of a slope of variance 1."""
    return np.asarray(
        length**2
        * (2 * np.minimum(x, y) / length + np.exp(-x / length) + np.exp(-y / length) - 1 - np.exp(-abs(x - y) / length))
    )


def _common(x: Floats, y: Floats, process: Process) -> Floats:
    return np.asarray(4.0 + process.slope_common**2 * _integrated(x, y, process.length_common))


def _own(x: Floats, y: Floats, process: Process) -> Floats:
    tied = process.tie * process.level * process.slope * process.length
    start = process.level**2 + tied * (2 - np.exp(-x / process.length) - np.exp(-y / process.length))
    grown = process.slope**2 * _integrated(x, y, process.length)
    return np.asarray((start + grown) * np.exp(-process.shrink * (x + y)))


@dataclass(frozen=True)
class _Points:
    """Where something is observed or asked: x, which candidate, which run (−1: the expected loss)."""

    x: Floats
    candidate: Ints
    run: Ints


def draw_curves(
    curves: Curves, budgets_B: Floats, process: Process, noise: float, draws: int, rng: np.random.Generator
) -> Floats:
    """ln losses (D, B, C) of expected losses at `budgets_B` (ln tokens)."""
    seen, loss_N, origin = _observed(curves)
    count = len(curves.names)
    asked = _Points(
        np.repeat(np.maximum(0.0, budgets_B - origin), count),
        np.tile(np.arange(count), len(budgets_B)),
        np.full(count * len(budgets_B), -1),
    )
    posteriors = [_posterior(seen, asked, loss_N, process, noise, scale) for scale in SCALES]
    weight_S = np.array([p.evidence for p in posteriors]) - 0.5 * (np.log(SCALES) / process.scale_width) ** 2
    weight_S = np.exp(weight_S - weight_S.max())
    parts = rng.multinomial(draws, weight_S / weight_S.sum())
    drawn = [
        p.mean_M + rng.normal(size=(n, len(p.mean_M))) @ p.root_MM.T for p, n in zip(posteriors, parts, strict=True)
    ]
    drawn_DM = np.concatenate(drawn)
    rng.shuffle(drawn_DM)
    return drawn_DM.reshape(draws, len(budgets_B), count)


def evidence(curves: Curves, process: Process, noise: float) -> float:
    """ln probability of the observations: what constants are fitted by."""
    seen, loss_N, _ = _observed(curves)
    nothing = _Points(np.empty(0), np.empty(0, int), np.empty(0, int))
    return _posterior(seen, nothing, loss_N, process, noise, 1.0).evidence


def _observed(curves: Curves) -> tuple[_Points, Floats, float]:
    runs = [(c, run_N2) for c, by_seed in enumerate(curves.points) for run_N2 in by_seed]
    stacked_N2 = np.concatenate([run_N2 for _, run_N2 in runs])
    origin = float(stacked_N2[:, 0].min())
    sizes = [len(run_N2) for _, run_N2 in runs]
    points = _Points(
        stacked_N2[:, 0] - origin, np.repeat([c for c, _ in runs], sizes), np.repeat(np.arange(len(runs)), sizes)
    )
    return points, stacked_N2[:, 1], origin


@dataclass(frozen=True)
class _Posterior:
    mean_M: Floats
    root_MM: Floats
    evidence: float


def _posterior(
    seen: _Points, asked: _Points, loss_N: Floats, process: Process, noise: float, scale: float
) -> _Posterior:
    from scipy.linalg import cho_solve, cholesky, solve_triangular

    cov_NN = _covariance(seen, seen, process, scale) + _seed_covariance(seen, process, noise)
    root_NN = cholesky(cov_NN + JITTER * np.eye(len(loss_N)), lower=True)
    off_N = loss_N - 1.0 - process.slope_mean * seen.x
    weights_N = cho_solve((root_NN, True), off_N)
    score = (
        -0.5 * float(off_N @ weights_N)
        - float(np.log(np.diag(root_NN)).sum())
        - 0.5 * len(loss_N) * math.log(2 * math.pi)
    )
    if not len(asked.x):
        return _Posterior(np.empty(0), np.empty((0, 0)), score)
    across_MN = _covariance(asked, seen, process, scale)
    mean_M = 1.0 + process.slope_mean * asked.x + across_MN @ weights_N
    half_NM = solve_triangular(root_NN, across_MN.T, lower=True)
    cov_MM = _covariance(asked, asked, process, scale) - half_NM.T @ half_NM
    value_M, vector_MM = np.linalg.eigh((cov_MM + cov_MM.T) / 2)
    return _Posterior(mean_M, vector_MM * np.sqrt(np.maximum(value_M, 0.0)), score)


def _covariance(one: _Points, other: _Points, process: Process, scale: float) -> Floats:
    x, y = one.x[:, None], other.x[None]
    same = one.candidate[:, None] == other.candidate[None]
    return _common(x, y, process) + scale**2 * np.where(same, _own(x, y, process), 0.0)


def _seed_covariance(seen: _Points, process: Process, noise: float) -> Floats:
    same = seen.run[:, None] == seen.run[None]
    lasting = (1 - process.white) * np.exp(-np.abs(seen.x[:, None] - seen.x[None]) / process.luck)
    return np.asarray(noise**2 * (np.where(same, lasting, 0.0) + process.white * np.eye(len(seen.x))))
