"""Posterior of the candidates' learning curves, given a library of complete curves and the losses observed so far.

    ln L_a(x) = c(x) + g_a(x) + seed noise                                  x = ln tokens

c is the curve that all candidates have in common and g_a the deviation of candidate a. Both have Gaussian process
priors, so the posterior has a closed form. The prior of g comes from the library (`Known.prior`): from the traits of
its architectures, from the candidate's own curves on other texts, and from its screening on this text. The prior mean
of c is the library's mean curve; its level is unknown (variance `LEVEL`) and its shape varies as `Known.common` says.
Seed noise has the library's correlation over budgets.

The candidates of a race also show how far they deviate from the library. All covariances therefore have a common
unknown factor, with a scaled inverse chi-squared prior of `FREEDOM` degrees of freedom. Forecasts are then Student's t,
wider if observations are farther from the prior mean than expected, and narrower if they are closer.

Since the library has few architectures, the width of its forecasts is calibrated by cross-validation within it
(`Library.width`, computed by `benchmarks/curve_calibration.py`).

Letters: N observations, C candidates, B budgets asked for, U distinct values of x, D draws, M = B·C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plait.analysis.pareto import Floats, Ints

if TYPE_CHECKING:
    from plait.analysis.curve_library import Known
    from plait.analysis.learning_curve import Curves

FREEDOM = 8.0  # prior degrees of freedom of the common variance factor
LEVEL = 4.0  # prior variance of the level of the common curve, in ln loss: effectively unknown
JITTER = 1e-10
WHITE = 0.1  # variance of seed noise that is independent between budgets, relative to the correlated part


def draw_known(
    curves: Curves, budgets_B: Floats, noise: float, draws: int, rng: np.random.Generator, known: Known
) -> Floats:
    """Posterior draws (D, B, C) of the logarithm of expected losses at `budgets_B` (ln tokens)."""
    mean_M, cov_MM, freedom = posterior(curves, budgets_B, noise, known)
    value_M, vector_MM = np.linalg.eigh(cov_MM)
    drawn_DM = rng.normal(size=(draws, len(mean_M))) @ (vector_MM * np.sqrt(np.maximum(value_M, 0.0))).T
    drawn_DM *= np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
    log_losses: Floats = (mean_M + drawn_DM).reshape(draws, len(budgets_B), len(curves.names))
    return log_losses


def posterior(curves: Curves, budgets_B: Floats, noise: float, known: Known) -> tuple[Floats, Floats, float]:
    """Posterior of ln expected loss, a multivariate Student's t: mean (M), scale matrix (M, M), degrees of freedom."""
    x_N, candidate_N, run_N, loss_N = _observed(curves)
    count, n = len(curves.names), len(loss_N)
    x = np.concatenate([x_N, np.repeat(budgets_B, count)])
    candidate = np.concatenate([candidate_N, np.tile(np.arange(count), len(budgets_B))])
    values_U, place = np.unique(x, return_inverse=True)
    mean_CU, cov_CUCU = known.prior(curves.names, values_U)
    flat, size = candidate * len(values_U) + place, mean_CU.size
    mean = known.mean_curve(x) + mean_CU.reshape(size)[flat]
    cov = known.width(curves.names) ** 2 * cov_CUCU.reshape(size, size)[np.ix_(flat, flat)]
    cov = cov + (LEVEL + known.common(values_U))[np.ix_(place, place)]
    root_NN = np.linalg.cholesky(cov[:n, :n] + _seeds(x_N, run_N, noise, known) + JITTER * np.eye(n))
    solved_NM = np.linalg.solve(root_NN, np.column_stack([cov[:n, n:], loss_N - mean[:n]]))
    half_NM, white_N = solved_NM[:, :-1], solved_NM[:, -1]
    freedom = FREEDOM + n - 1  # estimating the level takes one degree of freedom
    scale = (FREEDOM + float(white_N @ white_N)) / freedom
    return mean[n:] + half_NM.T @ white_N, scale * (cov[n:, n:] - half_NM.T @ half_NM), freedom


def _observed(curves: Curves) -> tuple[Floats, Ints, Ints, Floats]:
    """The observations: x, index of the candidate, index of the run, ln loss."""
    runs = [(c, run_N2) for c, by_seed in enumerate(curves.points) for run_N2 in by_seed]
    stacked_N2 = np.concatenate([run_N2 for _, run_N2 in runs])
    sizes = [len(run_N2) for _, run_N2 in runs]
    return (
        stacked_N2[:, 0],
        np.repeat([c for c, _ in runs], sizes),
        np.repeat(np.arange(len(runs)), sizes),
        stacked_N2[:, 1],
    )


def _seeds(x_N: Floats, run_N: Ints, noise: float, known: Known) -> Floats:
    """The covariance of seed noise: its correlation over budgets is the library's, its size the noise of this race."""
    lib = known.library
    at_NB = lib.between(x_N)
    lasting_NN = at_NB @ lib.seeds_BB @ at_NB.T / np.diag(lib.seeds_BB).mean()
    same_NN = run_N[:, None] == run_N[None]
    return np.asarray(noise**2 * (np.where(same_NN, lasting_NN, 0.0) + WHITE * np.eye(len(x_N))))
