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
NEGLIGIBLE = 1e-6  # weight of a scale


@dataclass(frozen=True)
class Process:
    """Constants, fitted on complete trainings. Slopes are per e-fold of tokens."""

    slope_mean: float = -0.2  # of the common curve
    slope_common: float = 0.03
    length_common: float = 1.0
    level: float = 0.15  # of candidates, at the first observed budget
    slope: float = 0.1
    length: float = 1.0
    tie: float = -0.5
    shrink: float = 0.3
    luck: float = 1.0
    white: float = 0.3  # the share of the seeds' variance that does not last
    scale_width: float = 0.5  # of the prior of ln scale


def integrated(x: Floats, y: Floats, length: float) -> Floats:
    """Of a slope of variance 1."""
    return np.asarray(
        length**2
        * (2 * np.minimum(x, y) / length + np.exp(-x / length) + np.exp(-y / length) - 1 - np.exp(-abs(x - y) / length))
    )


def _common(x: Floats, y: Floats, process: Process) -> Floats:
    return np.asarray(4.0 + process.slope_common**2 * integrated(x, y, process.length_common))


def _own(x: Floats, y: Floats, process: Process) -> Floats:
    tied = process.tie * process.level * process.slope * process.length
    start = process.level**2 + tied * (2 - np.exp(-x / process.length) - np.exp(-y / process.length))
    grown = process.slope**2 * integrated(x, y, process.length)
    return np.asarray((start + grown) * np.exp(-process.shrink * (x + y)))


@dataclass(frozen=True)
class _Points:
    """Where something is observed: x, which candidate, which of all runs."""

    x: Floats
    candidate: Ints
    run: Ints


def draw_curves(
    curves: Curves,
    budgets_B: Floats,
    process: Process,
    noise: float,
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """ln losses (D, B, C) of expected losses at `budgets_B` (ln tokens)."""
    posteriors = _posteriors(curves, budgets_B, process, noise)
    parts = rng.multinomial(draws, [posterior.weight for posterior in posteriors])
    drawn = []
    for posterior, count in zip(posteriors, parts.tolist(), strict=True):
        if count:
            value_M, vector_MM = np.linalg.eigh(posterior.cov_MM)
            root_MM = vector_MM * np.sqrt(np.maximum(value_M, 0.0))
            drawn.append(posterior.mean_M + rng.normal(size=(count, len(value_M))) @ root_MM.T)
    drawn_DM = np.concatenate(drawn)
    rng.shuffle(drawn_DM)
    return drawn_DM.reshape(draws, len(budgets_B), len(curves.names))


def log_score(
    curves: Curves,
    target: float,
    truth_C: Floats,
    process: Process,
    noise: float,
    runs: int,
) -> float:
    """ln probability of what came out at `target` (ln tokens), the means of so many runs, all candidates at once: what
    constants are fitted by."""
    scores = []
    for posterior in _posteriors(curves, np.array([target]), process, noise):
        if posterior.weight > NEGLIGIBLE:
            root_CC = np.linalg.cholesky(posterior.cov_MM + noise**2 / runs * np.eye(len(truth_C)))
            off_C = np.linalg.solve(root_CC, truth_C - posterior.mean_M)
            score = -0.5 * float(off_C @ off_C) - float(np.log(np.diag(root_CC)).sum())
            scores.append(score + math.log(posterior.weight))
    return float(np.logaddexp.reduce(scores))


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
    """At one of the scales, with the weight that the observations give it."""

    mean_M: Floats
    cov_MM: Floats
    weight: float


def _posteriors(curves: Curves, budgets_B: Floats, process: Process, noise: float) -> list[_Posterior]:
    seen, loss_N, origin = _observed(curves)
    count, n = len(curves.names), len(loss_N)
    x = np.concatenate([seen.x, np.repeat(np.maximum(0.0, budgets_B - origin), count)])
    candidate = np.concatenate([seen.candidate, np.tile(np.arange(count), len(budgets_B))])
    common, own = _covariances(x, candidate, process)
    mean = 1.0 + process.slope_mean * x
    seeds_NN = _seed_covariance(seen, process, noise) + JITTER * np.eye(n)
    moments, log_weights = [], []
    for scale in SCALES:
        cov = common + scale**2 * own
        root_NN = np.linalg.cholesky(cov[:n, :n] + seeds_NN)
        solved_NM = np.linalg.solve(root_NN, np.column_stack([cov[:n, n:], loss_N - mean[:n]]))
        half_NM, white_N = solved_NM[:, :-1], solved_NM[:, -1]
        moments.append((mean[n:] + half_NM.T @ white_N, cov[n:, n:] - half_NM.T @ half_NM))
        evidence = -0.5 * float(white_N @ white_N) - float(np.log(np.diag(root_NN)).sum())
        log_weights.append(evidence - 0.5 * (math.log(scale) / process.scale_width) ** 2)
    weight_S = np.exp(np.array(log_weights) - max(log_weights))
    weight_S /= weight_S.sum()
    return [_Posterior(mean_M, cov_MM, w) for (mean_M, cov_MM), w in zip(moments, weight_S.tolist(), strict=True)]


def _covariances(x: Floats, candidate: Ints, process: Process) -> tuple[Floats, Floats]:
    """Of the common curve and of the candidates' own. Budgets are few: each pair of them is computed once."""
    values_U, place = np.unique(x, return_inverse=True)
    pairs = np.ix_(place, place)
    left, right = values_U[:, None], values_U[None]
    same = candidate[:, None] == candidate[None]
    return _common(left, right, process)[pairs], np.where(same, _own(left, right, process)[pairs], 0.0)


def _seed_covariance(seen: _Points, process: Process, noise: float) -> Floats:
    same = seen.run[:, None] == seen.run[None]
    lasting = (1 - process.white) * np.exp(-np.abs(seen.x[:, None] - seen.x[None]) / process.luck)
    return np.asarray(noise**2 * (np.where(same, lasting, 0.0) + process.white * np.eye(len(seen.x))))
