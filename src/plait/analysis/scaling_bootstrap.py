"""Bootstrap of a fitted loss surface.

Each sample adds noise to the fitted losses and refits the surface. The noise is residuals of the same architecture,
resampled with replacement and divided by √(1 − leverage), times a common factor √(ν / χ²ν) for the uncertainty of a
spread estimated from few runs, which gives Student's tails. If the groups of one budget deviate from the surface
together by more than their runs explain, each group gets a random effect as well. `benchmarks/scaling.py` simulates
the coverage of the 90 % intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.analysis.scaling_surface import Floats, Places, SurfaceFit, descend

CONFIDENCE = 0.9
DRAWS = 400
_GROUP_LEVEL = 0.05
_GROUP_DRAWS = 500


@dataclass(frozen=True)
class Draws:
    """A bootstrap: the parameters of every sample, and the losses it was fitted to."""

    theta_BP: Floats
    log_loss_BR: Floats
    noise: float  # standard deviation of a run about the surface, of log L
    group_noise: float  # that of the random effect of a group; 0 if run noise explains the groups
    group_p: float  # p-value of the groups' deviations under run noise alone


def interval(values_B: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The equal-tailed interval of a quantity over the samples, ignoring samples in which it is undefined (nan)."""
    there = values_B[~np.isnan(values_B)]
    if not len(there):
        return float("nan"), float("nan")
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    # Quantiles cannot be interpolated between a finite number and infinity.
    finite = bool(np.isfinite(there).all())
    low, high = np.quantile(there, ends) if finite else np.quantile(there, ends, method="nearest")
    return float(low), float(high)


def bootstrap(
    fit: SurfaceFit, group_R: Places, draws: int = DRAWS, seed: int = 0, widened: Sequence[float] | None = None
) -> Draws:
    """`group_R`: the group of each run, −1 for none. `widened`: a factor on each architecture's noise."""
    rng = np.random.default_rng(seed)
    left_R, slopes_RP = fit.residuals_R, fit.slopes_RP
    hat_RR = slopes_RP @ np.linalg.pinv(slopes_RP)
    noise, group_noise, p = group_effect(left_R, hat_RR, group_R, fit.layout.size, rng)
    own_R = left_R / np.sqrt(1 - np.clip(np.diag(hat_RR), 0, 0.95))
    if group_noise:  # the group effect is sampled separately
        own_R = own_R * noise / max(float(own_R.std()), 1e-300)
    noise_BR = np.empty((draws, len(left_R)))
    for runs, wider in zip(fit.layout.runs, widened or [1.0] * len(fit.layout.runs), strict=True):
        spread = own_R[runs] - own_R[runs].mean()
        spread *= wider * np.sqrt(len(runs) / max(1, len(runs) - 1))
        freedom = max(1.0, len(runs) - fit.layout.size / len(fit.layout.runs))
        # Residuals of a robust fit are slightly smaller than those of least squares; the factor is from simulation.
        factor_B = np.sqrt((1 + 2 / freedom) * freedom / rng.chisquare(freedom, draws))
        noise_BR[:, runs] = factor_B[:, None] * spread[rng.integers(0, len(runs), (draws, len(runs)))]
    if group_noise:
        together_BG = group_noise * rng.standard_normal((draws, int(group_R.max()) + 1))
        noise_BR += np.where(group_R >= 0, together_BG[:, group_R], 0.0)
    log_loss_BR = fit.log_loss_R - left_R + noise_BR
    start_BP = np.repeat(fit.theta_P[None], draws, 0)
    theta_BP, _ = descend(start_BP, fit.points, log_loss_BR, fit.layout, fit.delta_R)
    return Draws(theta_BP, log_loss_BR, noise, group_noise, p)


def group_effect(
    left_R: Floats, hat_RR: Floats, group_R: Places, numbers: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """The noise of runs, that of groups beyond their runs', and the p-value of groups deviating so far by run noise.

    By the method of moments: residuals are M (Z u + ε), with the residual projection M and the group indicator Z.
    """
    free = max(1, len(left_R) - numbers)
    whole = float(left_R @ left_R) / free
    groups = [np.flatnonzero(group_R == g) for g in range(int(group_R.max(initial=-1)) + 1)]
    groups = [members for members in groups if len(members) > 1]
    if len(groups) < 2 or whole <= 0:
        return float(np.sqrt(whole)), 0.0, 1.0
    member_RG = np.zeros((len(left_R), len(groups)))
    for g, members in enumerate(groups):
        member_RG[members, g] = 1
    kept_RR = np.eye(len(left_R)) - hat_RR
    seen_GG = member_RG.T @ kept_RR @ member_RG

    def off(residual_BR: Floats) -> Floats:
        """Squared group sums relative to the sum of squared residuals."""
        return np.asarray(((residual_BR @ member_RG) ** 2).sum(-1) / np.maximum((residual_BR**2).sum(-1), 1e-300))

    alone_B = off(rng.standard_normal((_GROUP_DRAWS, len(left_R))) @ kept_RR)
    p = float(np.mean(alone_B >= off(left_R[None])[0]))
    if p > _GROUP_LEVEL:
        return float(np.sqrt(whole)), 0.0, p
    # Two moment equations: the sum of squares, and the squared group sums.
    moments = np.array([[free, np.trace(seen_GG)], [np.trace(seen_GG), (seen_GG**2).sum()]])
    squares = np.array([left_R @ left_R, ((left_R @ member_RG) ** 2).sum()])
    run, group = np.linalg.lstsq(moments, squares, rcond=None)[0]
    return float(np.sqrt(max(run, 0.0))), float(np.sqrt(max(group, 0.0))), p
