"""The loss as a surface over model size N and tokens D: L = E + A / N^α + B / D^β (Hoffmann et al. 2022, approach 3).

Fitted to log L with the Huber loss, which limits the influence of outliers, by the Levenberg–Marquardt method with
exact derivatives of log L = log(e^e + e^(a − α n) + e^(b − β d)); n and d are log N and log D, centred to decorrelate
the five parameters. Many fits run at once: all initial points, or all bootstrap samples.

Initial points: on a grid of α and β the problem is linear in E, A and B, which are solved for; the best grid points are
refined. Several architectures may share one E, the entropy of their common text.

Intervals are from a bootstrap. Each sample adds noise to the fitted losses and refits the surface. The noise is
residuals of the same architecture, resampled with replacement and divided by √(1 − leverage), times a common factor √(ν
/ χ²ν) for the uncertainty of a spread estimated from few runs, which gives Student's tails. If the groups of one budget
deviate from the surface together by more than their runs explain, each group gets a random effect as well. If runs
scatter more the larger their budget, or less, so does the noise: as a power of N D (Harvey 1976).
`benchmarks/scaling.py` simulates the coverage of the 90 % intervals.

    B  fits at once        R  runs        P  parameters of a fit        K  architectures
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.analysis.distributions import t_quantile

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

#: Parameters per architecture: log E, log A and log B at the centre, log α, log β.
NUMBERS = 5
#: Standard deviations beyond which the loss of a residual is linear and not quadratic: 95 % efficient for normal noise
#: (Huber 1964).
HUBER = 1.345
FIRST_DELTA = 1e-3  # before the noise is known, as in Hoffmann et al.
STARTS = 16
_GRID = np.exp(np.linspace(np.log(0.05), np.log(1.5), 16))
_LOWEST_E, _EXPONENTS = -14.0, (np.log(0.01), np.log(5.0))
_ROUNDS, _GAIN = 100, 1e-8


@dataclass(frozen=True)
class Layout:
    """The architecture of each run, and the parameters of each architecture; with `shared`, one E for all."""

    runs: tuple[Places, ...]
    shared: bool = False

    @property
    def size(self) -> int:
        return 1 + 4 * len(self.runs) if self.shared else NUMBERS * len(self.runs)

    def numbers(self, k: int) -> Places:
        """The indices of an architecture's five parameters."""
        if self.shared:
            return np.array([0, *range(1 + 4 * k, 5 + 4 * k)])
        return np.arange(NUMBERS * k, NUMBERS * (k + 1))

    def of(self, theta_BP: Floats, k: int) -> Floats:
        return theta_BP[..., self.numbers(k)]

    def joined(self, parts: Sequence[Floats]) -> Floats:
        """One parameter vector from each architecture's own five; a shared E is their geometric mean."""
        theta_P = np.zeros(self.size)
        for k, part in enumerate(parts):
            theta_P[self.numbers(k)] = part
        if self.shared:
            theta_P[0] = np.mean([part[0] for part in parts])
        return theta_P


@dataclass(frozen=True)
class Points:
    """The runs' centred log N and log D."""

    n_R: Floats
    d_R: Floats
    n_mean: float
    d_mean: float

    @classmethod
    def at(cls, params_R: Floats, tokens_R: Floats) -> Points:
        n_R, d_R = np.log(params_R), np.log(tokens_R)
        return cls(n_R - n_R.mean(), d_R - d_R.mean(), float(n_R.mean()), float(d_R.mean()))


def log_loss(theta_B5: Floats, n_R: Floats, d_R: Floats) -> tuple[Floats, Floats]:
    """log L of every fit at every run, and its derivatives (B, R, 5)."""
    alpha, beta = np.exp(theta_B5[:, 3, None]), np.exp(theta_B5[:, 4, None])
    value_BR, shares = _terms(theta_B5, n_R, d_R)
    slopes = np.empty((*value_BR.shape, NUMBERS))
    slopes[..., :3] = np.moveaxis(shares, 0, -1)
    slopes[..., 3] = -shares[1] * alpha * n_R
    slopes[..., 4] = -shares[2] * beta * d_R
    return value_BR, slopes


def _terms(theta_B5: Floats, n_R: Floats, d_R: Floats) -> tuple[Floats, Floats]:
    """log L, and the share of each of its three terms."""
    terms = np.empty((3, len(theta_B5), len(n_R)))
    terms[0] = theta_B5[:, 0, None]
    terms[1] = theta_B5[:, 1, None] - np.exp(theta_B5[:, 3, None]) * n_R
    terms[2] = theta_B5[:, 2, None] - np.exp(theta_B5[:, 4, None]) * d_R
    highest = terms.max(0)
    terms -= highest
    np.exp(terms, out=terms)
    total = terms.sum(0)
    terms /= total
    return highest + np.log(total), terms


def residuals(theta_BP: Floats, points: Points, log_loss_BR: Floats, layout: Layout) -> Floats:
    left_BR = np.empty((len(theta_BP), len(points.n_R)))
    for k, runs in enumerate(layout.runs):
        fitted, _ = _terms(layout.of(theta_BP, k), points.n_R[runs], points.d_R[runs])
        left_BR[:, runs] = np.broadcast_to(log_loss_BR, left_BR.shape)[:, runs] - fitted
    return left_BR


def huber(left_BR: Floats, delta_R: Floats) -> Floats:
    size = np.abs(left_BR)
    loss_BR: Floats = np.where(size <= delta_R, 0.5 * left_BR**2, delta_R * (size - 0.5 * delta_R))
    return np.asarray(loss_BR.sum(-1))


def descend(
    theta_BP: Floats, points: Points, log_loss_BR: Floats, layout: Layout, delta_R: Floats
) -> tuple[Floats, Floats]:
    """The local minimum of each fit's Huber loss, and its value."""
    theta_BP, y_BR = theta_BP.copy(), np.broadcast_to(log_loss_BR, (len(theta_BP), len(points.n_R)))
    damping_B = np.full(len(theta_BP), 1e-3)
    value_B = huber(residuals(theta_BP, points, y_BR, layout), delta_R)
    going = np.arange(len(theta_BP))
    for _ in range(_ROUNDS):
        curvature, slope = _normal(theta_BP[going], points, y_BR[going], layout, delta_R)
        every = np.arange(layout.size)
        curvature[:, every, every] *= 1 + damping_B[going, None]
        curvature[:, every, every] += 1e-13
        step = np.clip(np.linalg.solve(curvature, slope[..., None])[..., 0], -1, 1)
        tried = _within(theta_BP[going] + step, layout)
        value = huber(residuals(tried, points, y_BR[going], layout), delta_R)
        better = value <= value_B[going]
        settled = np.where(better, value_B[going] - value <= _GAIN * value_B[going], damping_B[going] > 1e8)
        theta_BP[going[better]], value_B[going[better]] = tried[better], value[better]
        damping_B[going] *= np.where(better, 0.2, 5.0)
        going = going[~settled]
        if not len(going):
            break
    return theta_BP, value_B


def _normal(theta_BP: Floats, points: Points, y_BR: Floats, layout: Layout, delta_R: Floats) -> tuple[Floats, Floats]:
    """The Gauss–Newton Hessian and gradient, with Huber weights."""
    curvature = np.zeros((len(theta_BP), layout.size, layout.size))
    slope = np.zeros((len(theta_BP), layout.size))
    for k, runs in enumerate(layout.runs):
        fitted, slopes = log_loss(layout.of(theta_BP, k), points.n_R[runs], points.d_R[runs])
        left = y_BR[:, runs] - fitted
        weighted = slopes * np.minimum(1, delta_R[runs] / np.maximum(np.abs(left), 1e-300))[..., None]
        at = layout.numbers(k)
        curvature[:, at[:, None], at] += np.swapaxes(weighted, 1, 2) @ slopes
        slope[:, at] += (np.swapaxes(weighted, 1, 2) @ left[..., None])[..., 0]
    return curvature, slope


def _within(theta_BP: Floats, layout: Layout) -> Floats:
    for k in range(len(layout.runs)):
        at = layout.numbers(k)
        theta_BP[:, at[0]] = np.maximum(theta_BP[:, at[0]], _LOWEST_E)
        theta_BP[:, at[3:]] = np.clip(theta_BP[:, at[3:]], *_EXPONENTS)
    return theta_BP


def starts(n_R: Floats, d_R: Floats, log_loss_R: Floats) -> Floats:
    """The best points of a grid of exponents, each with E, A and B by relative least squares."""
    alpha, beta = (grid.ravel() for grid in np.meshgrid(_GRID, _GRID, indexing="ij"))
    loss_R = np.exp(log_loss_R)
    terms = np.stack([np.ones((len(alpha), len(n_R))), np.exp(-alpha[:, None] * n_R), np.exp(-beta[:, None] * d_R)], -1)
    terms /= loss_R[:, None]
    turned = np.swapaxes(terms, 1, 2)
    factors = np.linalg.solve(turned @ terms + 1e-12 * np.eye(3), turned.sum(-1)[..., None])[..., 0]
    factors = np.maximum(factors, loss_R.min() * np.array([0.02, 1e-3, 1e-3]))
    error = (((terms @ factors[..., None])[..., 0] - 1) ** 2).sum(-1)
    best = np.argsort(error)[:STARTS]
    return np.column_stack([np.log(factors[best]), np.log(alpha[best]), np.log(beta[best])])


@dataclass(frozen=True)
class SurfaceFit:
    """The best fit over all initial points, and the noise that scales the Huber loss."""

    layout: Layout
    points: Points
    theta_P: Floats
    log_loss_R: Floats
    delta_R: Floats
    value: float

    @property
    def residuals_R(self) -> Floats:
        left: Floats = residuals(self.theta_P[None], self.points, self.log_loss_R[None], self.layout)[0]
        return left

    @property
    def slopes_RP(self) -> Floats:
        """The derivatives of log L at each run with respect to the parameters."""
        slopes_RP = np.zeros((len(self.log_loss_R), self.layout.size))
        for k, runs in enumerate(self.layout.runs):
            _, slopes = log_loss(self.layout.of(self.theta_P[None], k), self.points.n_R[runs], self.points.d_R[runs])
            slopes_RP[runs[:, None], self.layout.numbers(k)] = slopes[0]
        return slopes_RP


def fit_surface(points: Points, log_loss_R: Floats, layout: Layout) -> SurfaceFit:
    """Fit each architecture from many initial points, then all together; the noise is estimated along the way."""
    parts, delta_R = [], np.empty(len(log_loss_R))
    for runs in layout.runs:
        own = Points(points.n_R[runs], points.d_R[runs], points.n_mean, points.d_mean)
        part, delta = _fit_one(own, log_loss_R[runs])
        parts.append(part)
        delta_R[runs] = delta
    theta_1P, value_1 = descend(layout.joined(parts)[None], points, log_loss_R[None], layout, delta_R)
    return SurfaceFit(layout, points, theta_1P[0], log_loss_R, delta_R, float(value_1[0]))


def _fit_one(points: Points, log_loss_R: Floats) -> tuple[Floats, float]:
    layout = Layout((np.arange(len(log_loss_R)),))
    delta = FIRST_DELTA
    theta_BP = starts(points.n_R, points.d_R, log_loss_R)
    for _ in range(3):
        theta_BP, value_B = descend(theta_BP, points, log_loss_R[None], layout, np.full(len(log_loss_R), delta))
        theta_BP = theta_BP[np.argsort(value_B)][:4]
        left_R = residuals(theta_BP[:1], points, log_loss_R[None], layout)[0]
        freedom = max(1, len(left_R) - NUMBERS)
        delta = max(HUBER * 1.4826 * float(np.median(np.abs(left_R))) * np.sqrt(len(left_R) / freedom), 1e-7)
    return theta_BP[0], delta


CONFIDENCE = 0.9
DRAWS = 400
_GROUP_LEVEL = 0.05
LEAST_FREE = 10  # degrees of freedom, with fewer of which no trend of the noise is looked for
_GROUP_DRAWS = 500


@dataclass(frozen=True)
class Draws:
    """A bootstrap: the parameters of every sample, and the losses it was fitted to."""

    theta_BP: Floats
    log_loss_BR: Floats
    noise: float  # standard deviation of a run about the surface, of log L
    group_noise: float  # that of the random effect of a group; 0 if run noise explains the groups
    group_p: float  # p-value of the groups' deviations under run noise alone
    trend: float = 0.0  # power of N D with which the noise of runs grows; 0 if it may be equal for all


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
    trend = 0.0 if group_noise else noise_trend(own_R, fit.points)  # groups that are off look like a trend
    scale_R = np.exp(trend * (fit.points.n_R + fit.points.d_R))
    noise_BR = np.empty((draws, len(left_R)))
    for runs, wider in zip(fit.layout.runs, widened or [1.0] * len(fit.layout.runs), strict=True):
        spread = own_R[runs] / scale_R[runs]
        spread = spread - spread.mean()
        spread *= wider * np.sqrt(len(runs) / max(1, len(runs) - 1))
        freedom = max(1.0, len(runs) - fit.layout.size / len(fit.layout.runs))
        # Residuals of a robust fit are slightly smaller than those of least squares; the factor is from simulation.
        factor_B = np.sqrt((1 + 2 / freedom) * freedom / rng.chisquare(freedom, draws))
        drawn = spread[rng.integers(0, len(runs), (draws, len(runs)))]
        noise_BR[:, runs] = factor_B[:, None] * scale_R[runs] * drawn
    if group_noise:
        together_BG = group_noise * rng.standard_normal((draws, int(group_R.max()) + 1))
        noise_BR += np.where(group_R >= 0, together_BG[:, group_R], 0.0)
    log_loss_BR = fit.log_loss_R - left_R + noise_BR
    start_BP = np.repeat(fit.theta_P[None], draws, 0)
    theta_BP, _ = descend(start_BP, fit.points, log_loss_BR, fit.layout, fit.delta_R)
    return Draws(theta_BP, log_loss_BR, noise, group_noise, p, trend)


def noise_trend(own_R: Floats, points: Points) -> float:
    """The slope of log |residual| over log N D, if it is not 0 by chance (at 5 %)."""
    x_R, size_R = points.n_R + points.d_R, np.log(np.maximum(np.abs(own_R), 1e-2 * np.abs(own_R).mean() + 1e-300))
    free = len(x_R) - 2
    if np.ptp(x_R) < np.log(2) or free < LEAST_FREE:
        return 0.0
    x_R = x_R - x_R.mean()
    slope = float(x_R @ size_R / (x_R @ x_R))
    left_R = size_R - size_R.mean() - slope * x_R
    error = float(np.sqrt(left_R @ left_R / free / (x_R @ x_R)))
    return slope if abs(slope) > t_quantile(free) * error else 0.0


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
