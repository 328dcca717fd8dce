"""A joint Gaussian process for the learning curves of several candidates, over x = ln(tokens / first observed budget).

    ln L_a(x) = c(x) + g_a(x) + seed noise

c is the curve that all candidates have in common, g_a the deviation of candidate a. Both are a random level plus the
integral of a slope, which is an Ornstein–Uhlenbeck process of correlation length ℓ (`length`): a candidate that catches
up keeps doing so for a while, and the uncertainty grows with the distance of the extrapolation. For a slope of variance
σ² the integrals up to x and up to y have the covariance

    σ² ℓ² (2 min(x, y)/ℓ + e^{−x/ℓ} + e^{−y/ℓ} − 1 − e^{−|x − y|/ℓ})

`tie` is the correlation between the initial level of g_a and its slope: negative if those behind at first tend to catch
up. Deviations shrink as e^{−shrink x}, as all curves approach the entropy of the text. Seeds of one candidate share
g_a; their noise is correlated over the length `luck`, so a run that is lucky at one budget is still so at twice that.

All terms are normal, so the posterior is exact for a given scale of g. That scale depends on the candidates of the
race: the posterior is a mixture over `SCALES`, weighted by their marginal likelihoods and a log-normal prior, which
also gives heavier tails.

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
NEGLIGIBLE = 1e-6  # posterior weight below which a scale is skipped


@dataclass(frozen=True)
class Process:
    """Hyperparameters, fitted to complete learning curves. Slopes and lengths are in ln tokens."""

    slope_mean: float = -0.2  # mean slope of the common curve
    slope_common: float = 0.03
    length_common: float = 1.0
    level: float = 0.15  # standard deviation of g at the first observed budget
    slope: float = 0.1
    length: float = 1.0
    tie: float = -0.5
    shrink: float = 0.3
    luck: float = 1.0
    white: float = 0.3  # fraction of the seed variance that is independent between budgets
    scale_width: float = 0.5  # prior standard deviation of ln scale


def integrated(x: Floats, y: Floats, length: float) -> Floats:
    """The covariance of the integral of a slope of variance 1, up to `x` and up to `y`."""
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


def draw_curves(
    curves: Curves,
    budgets_B: Floats,
    process: Process,
    noise: float,
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """Posterior draws (D, B, C) of the logarithm of expected losses at `budgets_B` (ln tokens)."""
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
    """Log predictive density of the actual losses at `target` (ln tokens), means of `runs` runs, of all candidates
    jointly. The hyperparameters are fitted by maximising it."""
    scores = []
    for posterior in _posteriors(curves, np.array([target]), process, noise):
        if posterior.weight > NEGLIGIBLE:
            root_CC = np.linalg.cholesky(posterior.cov_MM + noise**2 / runs * np.eye(len(truth_C)))
            off_C = np.linalg.solve(root_CC, truth_C - posterior.mean_M)
            score = -0.5 * float(off_C @ off_C) - float(np.log(np.diag(root_CC)).sum())
            scores.append(score + math.log(posterior.weight))
    return float(np.logaddexp.reduce(scores))


@dataclass(frozen=True)
class _Posterior:
    """The posterior for one of the scales, and the posterior weight of that scale."""

    mean_M: Floats
    cov_MM: Floats
    weight: float


def _posteriors(curves: Curves, budgets_B: Floats, process: Process, noise: float) -> list[_Posterior]:
    tokens_N, candidate_N, run_N, loss_N = curves.stacked
    origin = float(tokens_N.min())
    x_N, count, n = tokens_N - origin, len(curves.names), len(loss_N)
    x = np.concatenate([x_N, np.repeat(np.maximum(0.0, budgets_B - origin), count)])
    candidate = np.concatenate([candidate_N, np.tile(np.arange(count), len(budgets_B))])
    common, own = _covariances(x, candidate, process)
    mean = 1.0 + process.slope_mean * x
    seeds_NN = _seed_covariance(x_N, run_N, process, noise) + JITTER * np.eye(n)
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
    """Prior covariances of the common curve and of deviations. Each pair of budgets is computed only once."""
    values_U, place = np.unique(x, return_inverse=True)
    pairs = np.ix_(place, place)
    left, right = values_U[:, None], values_U[None]
    same = candidate[:, None] == candidate[None]
    return _common(left, right, process)[pairs], np.where(same, _own(left, right, process)[pairs], 0.0)


def _seed_covariance(x_N: Floats, run_N: Ints, process: Process, noise: float) -> Floats:
    same = run_N[:, None] == run_N[None]
    lasting = (1 - process.white) * np.exp(-np.abs(x_N[:, None] - x_N[None]) / process.luck)
    return np.asarray(noise**2 * (np.where(same, lasting, 0.0) + process.white * np.eye(len(x_N))))
