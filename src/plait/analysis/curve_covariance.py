"""How learning curves vary between architectures, learnt from a library of complete ones.

The deviation of architecture a from the mean curve of text t, at the library's budgets, is a sum of independent parts:

    d_at = f(traits of a) + u_a + v_at + seed noise

f is a smooth function of the traits (a Gaussian process: linear, and near in traits is near in curves), u_a is what the
architecture has of its own on every text (Student's t, so that one odd architecture does not widen all others), v_at
what it has on one text alone. Each part varies over budgets with a covariance of its own, free in form: losses at the
first budgets say little about those at the last, and how little is seen in the library, not assumed. The covariances
are maximum a posteriori estimates by expectation–maximisation (Dempster, Laird and Rubin 1977) with an inverse-Wishart
prior. Assumed: the parts are independent, and all but u_a are normal. v is seen in how two texts differ; a library of
one text cannot tell it from u, and `ONE_TEXT` says what share of the variance is then taken for it.

Letters: A architectures, B budgets, F traits, T texts, N = A·B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.analysis.pareto import Floats

ITERATIONS = 20
STRENGTH = 15.0  # of the prior, in architectures
LASTS = 1.0  # e-folds of tokens over which the prior's deviations last
FREEDOM = 4.0  # of Student's t
ALIKE = 0.6  # the prior's share of the variance that traits explain
ONE_TEXT = 0.1
WIDTH = 2.0  # of the radial part, in standard deviations of all traits together


@dataclass(frozen=True)
class Covariances:
    """Over the library's budgets. `weight_A`: how ordinary an architecture is: u_a has the variance own / weight."""

    alike_BB: Floats
    own_BB: Floats
    text_BB: Floats
    weight_A: Floats


def alike(one_AF: Floats, other_CF: Floats) -> Floats:
    """How much of f two architectures share, from standardised traits: (A, C), about 1 for an architecture itself."""
    features = max(1, one_AF.shape[1])
    square_AC = ((one_AF[:, None] - other_CF[None]) ** 2).sum(axis=2)
    return np.asarray(0.5 * (one_AF @ other_CF.T / features + np.exp(-square_AC / (2 * WIDTH**2))))


def learn_covariances(
    deviation_TAB: Floats, traits_AF: Floats, seeds_BB: Floats, runs: int, x_B: Floats
) -> Covariances:
    """`traits_AF`: standardised. `seeds_BB`: between runs of one architecture; every deviation is a mean of `runs`."""
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
        # The second moment of every u_a, and from it how ordinary a is.
        mean_AB = gain_AB @ own_BB / weight_A[:, None]
        diagonal_ABB = blocks[np.arange(count), :, np.arange(count)]
        lost_ABB = own_BB @ diagonal_ABB @ own_BB / weight_A[:, None, None] ** 2
        second_ABB = mean_AB[:, :, None] * mean_AB[:, None] + own_BB / weight_A[:, None, None] - lost_ABB
        precision_BB = np.linalg.inv(own_BB + 1e-8 * np.eye(len(x_B)))
        spread_BB = (weight_A[:, None, None] * second_ABB).sum(axis=0)
        weight_A = (FREEDOM + len(x_B)) / (FREEDOM + np.einsum("ij,aji->a", precision_BB, second_ABB))
        alike_BB = (smooth_BB + STRENGTH * ALIKE * prior_BB) / (count + STRENGTH)
        own_BB = (spread_BB + STRENGTH * (1 - ALIKE) * prior_BB) / (count + STRENGTH)
    if texts == 1:
        text_BB = _assumed_text(alike_BB + own_BB)
        alike_BB, own_BB = (1 - ONE_TEXT) * alike_BB, (1 - ONE_TEXT) * own_BB
    return Covariances(alike_BB, own_BB, text_BB, weight_A)


def inverted(share_AA: Floats, alike_BB: Floats, wide_A: Floats, own_BB: Floats, rest_BB: Floats) -> Floats:
    """Of the covariance (N, N) of the mean over texts of all deviations."""
    size = len(wide_A) * len(rest_BB)
    cov_NN = np.kron(share_AA, alike_BB) + np.kron(np.diag(wide_A), own_BB) + np.kron(np.eye(len(wide_A)), rest_BB)
    return np.asarray(np.linalg.inv(cov_NN + 1e-9 * np.eye(size)))


def _assumed_text(whole_BB: Floats) -> Floats:
    """Of a library of one text: a share `ONE_TEXT` of the variance at the last budget. How much larger it was before,
    one text cannot tell. In proportion to the differences between architectures, which are several times as large at
    the first budgets, is one extreme, and constant is the other: this is the geometric mean of both. In proportion,
    what a race observes early was so much less than assumed that the end was taken for more certain than it is."""
    width_B = np.sqrt(np.diag(whole_BB))
    flatter_B = np.sqrt(width_B[-1] / width_B)
    return np.asarray(ONE_TEXT * whole_BB * np.outer(flatter_B, flatter_B))


def _text(deviation_TAB: Floats, noise_BB: Floats, prior_BB: Floats) -> Floats:
    """From how texts differ, less what the seeds make of it."""
    texts, count, _ = deviation_TAB.shape
    apart_TAB = deviation_TAB - deviation_TAB.mean(axis=0)
    found_BB = np.einsum("tai,taj->ij", apart_TAB, apart_TAB) / (count * (texts - 1)) - noise_BB
    value_B, vector_BB = np.linalg.eigh(found_BB)
    found_BB = (vector_BB * np.maximum(value_B, 1e-6)) @ vector_BB.T
    freedom = count * (texts - 1)
    return np.asarray((freedom * found_BB + STRENGTH * ONE_TEXT * prior_BB) / (freedom + STRENGTH))


def seed_covariance(loss_TASB: Floats, x_B: Floats) -> Floats:
    """Of ln loss between seeds, over budgets. Single runs that fall out of the rest (more than 3.5 robust standard
    deviations) count as that much: one late drop is not everybody's noise."""
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
