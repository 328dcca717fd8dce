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

How curves vary between architectures is a mixed-effects model, fitted to the library (`learn_covariances`). Let d_at be
the vector, over the library's B budgets, of ln loss of architecture a on text t minus the mean curve of t:

    d_at = f(traits of a) + u_a + v_at + seed noise

f is a Gaussian process over traits (numbers that describe the architecture), with a linear plus a squared-exponential
kernel. u_a is the random effect of the architecture, the same on every text; it has Student's t distribution, so that
an outlier does not inflate the variance of all others. v_at is the interaction of architecture and text. Every term
has an unstructured (B, B) covariance over budgets: how well early losses predict late ones is estimated, not assumed.
The covariances are maximum a posteriori estimates under inverse-Wishart priors, by expectation–maximisation (Dempster,
Laird and Rubin 1977). The terms are assumed independent, and all but u_a normal. v is identified by differences between
texts; with one text it cannot be separated from u, and a fraction `ONE_TEXT` of the variance is attributed to it.

Its letters: A architectures, B budgets, F traits, T texts, N = A·B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plait.analysis.pareto import Floats, Ints

if TYPE_CHECKING:
    from plait.analysis.curve_library import Known
    from plait.analysis.learning_curve import Curves


ITERATIONS = 20
STRENGTH = 15.0  # of the inverse-Wishart priors, as a number of architectures
LASTS = 1.0  # correlation length of the prior covariance, in ln tokens
T_FREEDOM = 4.0  # degrees of freedom of Student's t
ALIKE = 0.6  # prior fraction of the variance that traits explain (f); the rest is u
ONE_TEXT = 0.1  # fraction of the variance attributed to v if the library has a single text
WIDTH = 2.0  # length scale of the squared-exponential kernel, for standardised traits


@dataclass(frozen=True)
class Covariances:
    """Of f, u and v. `weight_A`: Student's t weights, small for outliers; the covariance of u_a is own / weight."""

    alike_BB: Floats
    own_BB: Floats
    text_BB: Floats
    weight_A: Floats


def alike(one_AF: Floats, other_CF: Floats) -> Floats:
    """The kernel of f between architectures with these standardised traits: (A, C); its diagonal is about 1."""
    features = max(1, one_AF.shape[1])
    square_AC = ((one_AF[:, None] - other_CF[None]) ** 2).sum(axis=2)
    return np.asarray(0.5 * (one_AF @ other_CF.T / features + np.exp(-square_AC / (2 * WIDTH**2))))


def learn_covariances(
    deviation_TAB: Floats, traits_AF: Floats, seeds_BB: Floats, runs: int, x_B: Floats
) -> Covariances:
    """`traits_AF`: standardised. `seeds_BB`: the covariance between single runs; deviations are means of `runs`."""
    texts, count, _ = deviation_TAB.shape
    middle_AB = deviation_TAB.mean(axis=0)
    width_B = np.maximum(1e-4, 1.4826 * np.median(np.abs(middle_AB), axis=0))
    prior_BB = np.outer(width_B, width_B) * np.exp(-np.abs(x_B[:, None] - x_B) / LASTS)
    share_AA = alike(traits_AF, traits_AF)
    alike_BB, own_BB = ALIKE * prior_BB, (1 - ALIKE) * prior_BB
    text_BB = _text(deviation_TAB, seeds_BB / runs, prior_BB) if texts > 1 else np.zeros_like(prior_BB)
    rest_BB = (text_BB + seeds_BB / runs) / texts
    weight_A = np.ones(count)
    for _ in range(ITERATIONS):
        inverse = inverted(share_AA, alike_BB, 1 / weight_A, own_BB, rest_BB)
        blocks = inverse.reshape(count, len(x_B), count, len(x_B))
        gain_AB = (inverse @ middle_AB.reshape(-1)).reshape(count, -1)
        shared_BB = gain_AB.T @ share_AA @ gain_AB - np.einsum("ab,aibj->ij", share_AA, blocks)
        smooth_BB = alike_BB @ shared_BB @ alike_BB + count * alike_BB
        # E step for u: the posterior second moment of every u_a, from which its weight follows.
        mean_AB = gain_AB @ own_BB / weight_A[:, None]
        diagonal_ABB = blocks[np.arange(count), :, np.arange(count)]
        lost_ABB = own_BB @ diagonal_ABB @ own_BB / weight_A[:, None, None] ** 2
        second_ABB = mean_AB[:, :, None] * mean_AB[:, None] + own_BB / weight_A[:, None, None] - lost_ABB
        precision_BB = np.linalg.inv(own_BB + 1e-8 * np.eye(len(x_B)))
        spread_BB = (weight_A[:, None, None] * second_ABB).sum(axis=0)
        weight_A = (T_FREEDOM + len(x_B)) / (T_FREEDOM + np.einsum("ij,aji->a", precision_BB, second_ABB))
        alike_BB = (smooth_BB + STRENGTH * ALIKE * prior_BB) / (count + STRENGTH)
        own_BB = (spread_BB + STRENGTH * (1 - ALIKE) * prior_BB) / (count + STRENGTH)
    if texts == 1:
        text_BB = _assumed_text(alike_BB + own_BB)
        alike_BB, own_BB = (1 - ONE_TEXT) * alike_BB, (1 - ONE_TEXT) * own_BB
    return Covariances(alike_BB, own_BB, text_BB, weight_A)


def inverted(share_AA: Floats, alike_BB: Floats, wide_A: Floats, own_BB: Floats, rest_BB: Floats) -> Floats:
    """The inverse of the covariance (N, N) of all deviations, averaged over texts."""
    size = len(wide_A) * len(rest_BB)
    cov_NN = np.kron(share_AA, alike_BB) + np.kron(np.diag(wide_A), own_BB) + np.kron(np.eye(len(wide_A)), rest_BB)
    return np.asarray(np.linalg.inv(cov_NN + 1e-9 * np.eye(size)))


def _assumed_text(whole_BB: Floats) -> Floats:
    """The covariance of v for a library of one text: a fraction `ONE_TEXT` of the variance at the last budget. Earlier
    budgets use the geometric mean of two extremes: a constant variance, and one proportional to the variance between
    architectures, which is several times larger at the first budgets. With the latter, the early losses of a race
    varied much less than assumed, which made the forecasts of its end overconfident."""
    width_B = np.sqrt(np.diag(whole_BB))
    flatter_B = np.sqrt(width_B[-1] / width_B)
    return np.asarray(ONE_TEXT * whole_BB * np.outer(flatter_B, flatter_B))


def _text(deviation_TAB: Floats, noise_BB: Floats, prior_BB: Floats) -> Floats:
    """The covariance of v for several texts: that of the differences between texts, minus the seed noise."""
    texts, count, _ = deviation_TAB.shape
    apart_TAB = deviation_TAB - deviation_TAB.mean(axis=0)
    found_BB = np.einsum("tai,taj->ij", apart_TAB, apart_TAB) / (count * (texts - 1)) - noise_BB
    value_B, vector_BB = np.linalg.eigh(found_BB)
    found_BB = (vector_BB * np.maximum(value_B, 1e-6)) @ vector_BB.T
    freedom = count * (texts - 1)
    return np.asarray((freedom * found_BB + STRENGTH * ONE_TEXT * prior_BB) / (freedom + STRENGTH))


def seed_covariance(loss_TASB: Floats, x_B: Floats) -> Floats:
    """The covariance over budgets of ln loss between seeds. Deviations are clipped at 3.5 robust standard deviations,
    so that one run with a late drop does not inflate the noise of all."""
    apart = np.log(loss_TASB)
    seeds = apart.shape[2]
    apart_NB = (apart - apart.mean(axis=2, keepdims=True)).reshape(-1, len(x_B)) * np.sqrt(seeds / max(1, seeds - 1))
    most_B = 3.5 * 1.4826 * np.median(np.abs(apart_NB), axis=0)
    apart_NB = np.clip(apart_NB, -most_B, most_B)
    freedom = len(apart_NB) * max(1, seeds - 1) / seeds
    found_BB = apart_NB.T @ apart_NB / len(apart_NB)
    width_B = np.sqrt(np.maximum(1e-8, np.diag(found_BB)))
    prior_BB = np.outer(width_B, width_B) * np.exp(-np.abs(x_B[:, None] - x_B) / 1.3)
    return np.asarray((freedom * found_BB + 4 * prior_BB) / (freedom + 4))


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
    x_N, candidate_N, run_N, loss_N = curves.stacked
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


def _seeds(x_N: Floats, run_N: Ints, noise: float, known: Known) -> Floats:
    """The covariance of seed noise: its correlation over budgets is the library's, its size the noise of this race."""
    lib = known.library
    at_NB = lib.between(x_N)
    lasting_NN = at_NB @ lib.seeds_BB @ at_NB.T / np.diag(lib.seeds_BB).mean()
    same_NN = run_N[:, None] == run_N[None]
    return np.asarray(noise**2 * (np.where(same_NN, lasting_NN, 0.0) + WHITE * np.eye(len(x_N))))
