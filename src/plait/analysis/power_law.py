"""Power laws with an offset, L(t) = E + A t^−α, fitted to learning curves with few points each.

The parameters are ln α and ln(E / L_last), with weak normal priors (three points would fit anything), and ln of the
excess (L − E) / L_last at the last point, without a prior. Residuals of ln L, in units of the noise between seeds, have
a pseudo-Huber loss, so that an outlier does not bend the curve. All curves are fitted at once by the
Levenberg–Marquardt method. The uncertainty is a Laplace approximation, widened if residuals exceed the noise.

Letters: C curves, N points (padded), B budgets, D posterior samples, 3 parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.analysis.pareto import Floats

LIMITS = (-6.0, 3.0)  # bounds of all three parameters, which are logarithms
STEPS = 30
ODD = 2.0  # scale of the pseudo-Huber loss, in units of the noise


@dataclass(frozen=True)
class PowerLaws:
    """`last_C2`: ln tokens and ln loss of each curve's last point, its origin."""

    last_C2: Floats
    parameters_C3: Floats
    covariance_C33: Floats

    def draw(self, tokens_B: Floats, draws: int, rng: np.random.Generator) -> Floats:
        """Posterior samples of ln loss (D, B, C)."""
        root_C33 = np.linalg.cholesky(self.covariance_C33)
        normal_DC3 = rng.normal(size=(draws, *self.parameters_C3.shape))
        drawn_DC3 = self.parameters_C3 + np.einsum("cij,dcj->dci", root_C33, normal_DC3)
        ahead_CB = tokens_B - self.last_C2[:, :1]
        curve_DCB = _curve(drawn_DC3.clip(*LIMITS), ahead_CB) + self.last_C2[:, 1:]
        return np.asarray(curve_DCB.transpose(0, 2, 1))


def _curve(parameters_C3: Floats, ahead_CN: Floats) -> Floats:
    """ln(L / L_last) at a distance from the last point, in ln tokens."""
    alpha, offset, excess = np.moveaxis(np.exp(parameters_C3), -1, 0)[..., None]
    return np.asarray(np.log(offset + excess * np.exp(-alpha * ahead_CN)))


def fit_power_laws(
    curves: Sequence[tuple[Floats, Floats, Floats]], alpha: tuple[float, float], offset: tuple[float, float]
) -> PowerLaws:
    """Fit power laws. `curves`: (ln tokens, ln loss, noise of ln loss) each. `alpha`, `offset`: mean and standard
    deviation of the priors."""
    count, longest = len(curves), max(len(tokens_N) for tokens_N, _, _ in curves)
    ahead_CN, gap_CN, weight_CN = np.zeros((3, count, longest))
    for c, (tokens_N, loss_N, noise_N) in enumerate(curves):
        ahead_CN[c, : len(tokens_N)] = tokens_N - tokens_N[-1]
        gap_CN[c, : len(tokens_N)] = loss_N - loss_N[-1]
        weight_CN[c, : len(tokens_N)] = 1 / noise_N
    mean_3 = np.array([alpha[0], offset[0], 0.0])
    prior_3 = np.array([1 / alpha[1], 1 / offset[1], 0.0]) ** 2
    x_C3 = np.tile([alpha[0], offset[0], np.log(max(0.05, 1 - np.exp(offset[0])))], (count, 1))
    damp_C = np.full(count, 1e-2)
    cost_C = _cost(x_C3, ahead_CN, gap_CN, weight_CN, mean_3, prior_3)
    for _ in range(STEPS):
        curvature_C33, gradient_C3 = _normal_equations(x_C3, ahead_CN, gap_CN, weight_CN, mean_3, prior_3)
        diagonal_C3 = np.einsum("cii->ci", curvature_C33)
        damped_C33 = curvature_C33 + (damp_C[:, None] * diagonal_C3 + 1e-9)[:, :, None] * np.eye(3)
        step_C3 = np.linalg.solve(damped_C33, gradient_C3[:, :, None])[:, :, 0]
        tried_C3 = (x_C3 - step_C3.clip(-1, 1)).clip(*LIMITS)
        tried_C = _cost(tried_C3, ahead_CN, gap_CN, weight_CN, mean_3, prior_3)
        better_C = tried_C < cost_C
        x_C3 = np.where(better_C[:, None], tried_C3, x_C3)
        cost_C = np.where(better_C, tried_C, cost_C)
        damp_C = np.where(better_C, damp_C / 4, damp_C * 4).clip(1e-9, 1e9)
    curvature_C33, _ = _normal_equations(x_C3, ahead_CN, gap_CN, weight_CN, mean_3, prior_3)
    wide_C = np.maximum(1.0, 2 * cost_C / (weight_CN > 0).sum(axis=1))
    covariance_C33 = wide_C[:, None, None] * np.linalg.inv(curvature_C33 + 1e-6 * np.eye(3))
    last_C2 = np.array([[tokens_N[-1], loss_N[-1]] for tokens_N, loss_N, _ in curves])
    return PowerLaws(last_C2, x_C3, covariance_C33)


def _residuals(x_C3: Floats, ahead_CN: Floats, gap_CN: Floats, weight_CN: Floats) -> Floats:
    return np.asarray((_curve(x_C3, ahead_CN) - gap_CN) * weight_CN)


def _cost(x_C3: Floats, ahead_CN: Floats, gap_CN: Floats, weight_CN: Floats, mean_3: Floats, prior_3: Floats) -> Floats:
    odd_CN = (_residuals(x_C3, ahead_CN, gap_CN, weight_CN) / ODD) ** 2
    data_C = ODD**2 * (np.sqrt(1 + odd_CN) - 1).sum(axis=1)
    return np.asarray(data_C + 0.5 * ((x_C3 - mean_3) ** 2 * prior_3).sum(axis=1))


def _normal_equations(
    x_C3: Floats, ahead_CN: Floats, gap_CN: Floats, weight_CN: Floats, mean_3: Floats, prior_3: Floats
) -> tuple[Floats, Floats]:
    """The Gauss–Newton Hessian (C, 3, 3) and the gradient (C, 3)."""
    alpha_C1, offset_C1, excess_C1 = np.exp(x_C3).T[:, :, None]
    fade_CN = excess_C1 * np.exp(-alpha_C1 * ahead_CN)
    total_CN = offset_C1 + fade_CN
    by = [-alpha_C1 * ahead_CN * fade_CN, np.broadcast_to(offset_C1, fade_CN.shape), fade_CN]
    slope_CN3 = np.stack(by, axis=2) * (weight_CN / total_CN)[:, :, None]
    rest_CN = _residuals(x_C3, ahead_CN, gap_CN, weight_CN)
    less_CN = 1 / np.sqrt(1 + (rest_CN / ODD) ** 2)
    curvature_C33 = np.einsum("cni,cn,cnj->cij", slope_CN3, less_CN, slope_CN3) + np.diag(prior_3)
    return curvature_C33, np.einsum("cni,cn,cn->ci", slope_CN3, less_CN, rest_CN) + (x_C3 - mean_3) * prior_3
