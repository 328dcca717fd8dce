"""The loss as a surface over model size N and tokens D: L = E + A / N^α + B / D^β (Hoffmann et al. 2022, approach 3).

Fitted to log L with the Huber loss, which limits the influence of outliers, by the Levenberg–Marquardt method with
exact derivatives of log L = log(e^e + e^(a − α n) + e^(b − β d)); n and d are log N and log D, centred to decorrelate
the five parameters. Many fits run at once: all initial points, or all bootstrap samples.

Initial points: on a grid of α and β the problem is linear in E, A and B, which are solved for; the best grid points are
refined. Several architectures may share one E, the entropy of their common text.

    B  fits at once        R  runs        P  parameters of a fit        K  architectures
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
