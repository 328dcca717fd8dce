"""One learning curve as a power law with an offset, L(t) = E + A t^−α, from few points.

Parameters are ln α and ln(E / L_last), which have weak normal priors (three points would fit anything), and ln of the
excess (L − E) at the last point, which has none. Residuals are of ln L, in units of the seeds' noise, with tails as
heavy as Student's (soft L1): one odd point does not bend the curve. Uncertainty is Laplace's: a normal distribution
around the best fit, with the curvature there, widened where the residuals exceed the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.analysis.pareto import Floats

LIMITS = (-6.0, 3.0)  # of all three parameters, in logarithms


@dataclass(frozen=True)
class PowerLaw:
    """`tokens` and `loss` (logarithms) of the last point are the origin. Parameters: ln α, ln E/L_last, ln excess."""

    tokens: float
    loss: float
    parameters: Floats
    covariance: Floats

    def draw(self, tokens_B: Floats, draws: int, rng: np.random.Generator) -> Floats:
        """ln losses (D, B)."""
        drawn_D3 = rng.multivariate_normal(self.parameters, self.covariance, draws, method="eigh").clip(*LIMITS)
        return np.asarray(self.loss + _curve(drawn_D3, tokens_B - self.tokens))


def _curve(parameters_D3: Floats, ahead_B: Floats) -> Floats:
    """ln(L / L_last) so far ahead of the last point, in ln tokens."""
    alpha, offset, excess = np.exp(parameters_D3[:, :, None]).transpose(1, 0, 2)
    return np.asarray(np.log(offset + excess * np.exp(-alpha * ahead_B)))


def fit_power_law(
    tokens_N: Floats, loss_N: Floats, noise_N: Floats, alpha: tuple[float, float], offset: tuple[float, float]
) -> PowerLaw:
    """`tokens_N`, `loss_N` in logarithms; `alpha` and `offset`: mean and standard deviation of their priors."""
    from scipy.optimize import least_squares

    ahead_N, gap_N = tokens_N - tokens_N[-1], loss_N - loss_N[-1]
    means, widths = np.array([alpha[0], offset[0]]), np.array([alpha[1], offset[1]])

    def residuals(x_3: Floats) -> Floats:
        fitted_N = _curve(x_3[None], ahead_N)[0]
        return np.concatenate([(fitted_N - gap_N) / noise_N, (x_3[:2] - means) / widths])

    def jacobian(x_3: Floats) -> Floats:
        a, e, r = np.exp(x_3)
        fade_N = np.exp(-a * ahead_N)
        total_N = e + r * fade_N
        by_N3 = np.stack([-a * ahead_N * r * fade_N, np.full_like(fade_N, e), r * fade_N], axis=1)
        return np.concatenate([by_N3 / (total_N * noise_N)[:, None], np.diag([*(1 / widths), 0.0])[:2]])

    start = np.array([*means, np.log(max(1e-2, 1 - np.exp(means[1])))])
    found = least_squares(
        residuals, np.clip(start, *LIMITS), jacobian, bounds=LIMITS, loss="soft_l1", f_scale=2.0, max_nfev=60
    )
    curvature_33 = found.jac.T @ found.jac + 1e-6 * np.eye(3)
    wide = max(1.0, 2 * float(found.cost) / max(1, len(loss_N)))
    return PowerLaw(float(tokens_N[-1]), float(loss_N[-1]), found.x, wide * np.linalg.inv(curvature_33))
