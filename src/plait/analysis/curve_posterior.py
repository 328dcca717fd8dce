"""Learning curves of candidates that a library of complete curves speaks of: one normal conditional, in closed form.

    ln L_a(x) = c(x) + g_a(x) + seed noise                                  x = ln tokens

What to expect of every g_a, what sets one candidate apart, the library says (`Known.prior`: by the traits of all of its
architectures, what it holds of this one on other texts, and a screening on this text). The curve c that all have in
common is the library's but for its level, which is unknown, and for what a text makes of it: as much as it makes of a
candidate's own curve. Seeds vary as the library's do.

How far candidates differ on this text, the race sees, too. All variances are known but for a common factor with a
scaled inverse chi-squared prior, worth `FREEDOM` observations, so that forecasts are Student's t: what is observed to
be farther from the library than it says makes everything less certain, and what agrees with it more.

The library was learnt from few architectures. By how much its forecasts of those left out are too wide or too narrow is
counted inside it (`Library.width`, by `benchmarks/curve_calibration.py`).

Letters: N observations, C candidates, B budgets asked, U different values of x, D draws, M = B·C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plait.analysis.pareto import Floats, Ints

if TYPE_CHECKING:
    from plait.analysis.curve_library import Known
    from plait.analysis.learning_curve import Curves

FREEDOM = 8.0
LEVEL = 4.0  # the variance of what all candidates have in common on a text, in ln loss: unknown
JITTER = 1e-10
WHITE = 0.1  # the share of the seeds' variance that is one budget's alone


def draw_known(
    curves: Curves, budgets_B: Floats, noise: float, draws: int, rng: np.random.Generator, known: Known
) -> Floats:
    """ln losses (D, B, C) of expected losses at `budgets_B` (ln tokens)."""
    mean_M, cov_MM, freedom = posterior(curves, budgets_B, noise, known)
    value_M, vector_MM = np.linalg.eigh(cov_MM)
    drawn_DM = rng.normal(size=(draws, len(mean_M))) @ (vector_MM * np.sqrt(np.maximum(value_M, 0.0))).T
    drawn_DM *= np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
    log_losses: Floats = (mean_M + drawn_DM).reshape(draws, len(budgets_B), len(curves.names))
    return log_losses


def posterior(curves: Curves, budgets_B: Floats, noise: float, known: Known) -> tuple[Floats, Floats, float]:
    """Of expected losses, by budget and candidate: Student's t by its mean (M), scale (M, M) and degrees of freedom."""
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
    freedom = FREEDOM + n - 1  # one observation tells the level
    scale = (FREEDOM + float(white_N @ white_N)) / freedom
    return mean[n:] + half_NM.T @ white_N, scale * (cov[n:, n:] - half_NM.T @ half_NM), freedom


def _observed(curves: Curves) -> tuple[Floats, Ints, Ints, Floats]:
    """x, which candidate, which of all runs, ln loss."""
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
    """Luck lasts as the library's does; how much there is of it, this race's noise says."""
    lib = known.library
    at_NB = lib.between(x_N)
    lasting_NN = at_NB @ lib.seeds_BB @ at_NB.T / np.diag(lib.seeds_BB).mean()
    same_NN = run_N[:, None] == run_N[None]
    return np.asarray(noise**2 * (np.where(same_NN, lasting_NN, 0.0) + WHITE * np.eye(len(x_N))))
