"""The compute-optimal frontier of a fitted surface: how to divide a budget C between size N and tokens D, and the cost
of deviating from it.

FLOPs are D · f(N). The cost per token f is fitted to the runs: a power κ N^p, or κ N + ρ √N if that fits better.
Matrix products cost 6 N; terms that grow with the width alone (attention over a fixed length, embeddings, short
convolutions) grow as √N and matter for small models. If f is a power, the minimum of E + A N^−α + B D^−β is at

    N* ∝ C^a,  a = β / (α + p β)        D* ∝ C^b,  b = α / (α + p β)        p a + b = 1

otherwise a and b are the local slopes at the budget asked for.

All functions are vectorised over fits, such as the samples of a bootstrap.

IsoFLOP groups: runs of equal budget, their optimal size by a parabola in log N, and N* and D* as powers of the
budget (Hoffmann et al. 2022, approach 2; Poli et al. 2024, section 4.1).

A parabola only approximates a surface whose two exponents differ: if sizes are not symmetric about the optimum, its
minimum is slightly biased. The frontier of the fitted surface has no such bias; both are reported.

State-optimal scaling (Poli et al. 2024, section 4.2): compute-optimal perplexity P* as a power of the state M,
P* = k M^c, with one exponent c for all architectures and an offset k for each.

Estimator: at the budget of every IsoFLOP group, N* and P* come from the fitted surface, and M is
the state at N*, interpolated in log M against log N between the sizes of the group. c is the slope of the least squares
line through log M and log P* with a level for each architecture. Intervals are percentiles of the same calculation on
every bootstrap sample (`scaling_surface`), in which N*, and so M, vary as well.

Poli et al. instead use the state of the trained size nearest to N*. Sizes differ by factors of 1.5 or more, so this
adds an error of up to a quarter to M that no bootstrap sample shows: in simulations with the same sizes at all budgets
its 90 % intervals contained the truth 2 % of the time (`benchmarks/scaling.py` simulates the estimator used here).

Assumption: P* is not exactly a power of M, because the loss tends to E and not to 0. c is the slope over the budgets
that were trained, and should not be extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plait.analysis.scaling_surface import Floats, Places, Points

#: Sizes off the optimum, at the same FLOPs.
OFFSETS = (1 / 8, 1 / 4, 1 / 2, 2.0, 4.0)
#: Fixed-point iterations for N* along tangents of f: the slope of f varies by less than 1/2, so the error contracts.
TANGENTS = 30
STEP = 1.05  # ratio of budgets in the finite differences for slopes
#: Largest logarithm of a size: bootstrap samples of uninformative runs would overflow.
MOST = 250.0


@dataclass(frozen=True)
class TokenCost:
    """Training FLOPs per token: κ N^p + ρ √N; `spread` is the relative deviation of the runs."""

    kappa: float
    power: float
    spread: float
    root: float = 0.0

    @classmethod
    def of(cls, flops_R: Floats, params_R: Floats, tokens_R: Floats) -> TokenCost:
        """Fit a power, or κ N + ρ √N if that fits better."""
        n_R, cost_R = np.log(params_R), np.log(flops_R / tokens_R)
        if np.ptp(n_R) < 1e-9:
            return cls(float(np.exp((cost_R - n_R).mean())), 1.0, 0.0)
        power, level = np.polyfit(n_R, cost_R, 1)
        parts_R2 = np.exp(np.column_stack([n_R, n_R / 2]) - cost_R[:, None])  # both terms, relative to the cost
        kappa, root = np.linalg.lstsq(parts_R2, np.ones(len(n_R)), rcond=None)[0]
        fits = [cls(float(np.exp(level)), float(power), 0.0)]
        if kappa > 0 and root > 0:
            fits.append(cls(float(kappa), 1.0, 0.0, float(root)))
        told = [replace(fit, spread=float(np.abs(np.exp(cost_R) / fit.flops(params_R) - 1).max())) for fit in fits]
        return min(told, key=lambda fit: fit.spread)

    def flops(self, params: Floats) -> Floats:
        return np.asarray(self.kappa * params**self.power + self.root * np.sqrt(params))

    def tokens(self, flops: Floats, params: Floats) -> Floats:
        return flops / self.flops(params)

    def slope(self, params: Floats) -> Floats:
        """The derivative of ln f with respect to ln N."""
        width = self.root * np.sqrt(params) / self.flops(params)
        return np.asarray(self.power * (1 - width) + 0.5 * width)

    def __str__(self) -> str:
        return f"{self.kappa:.3g} N^{self.power:.2f}" if not self.root else f"{self.kappa:.3g} N + {self.root:.3g} √N"


@dataclass(frozen=True)
class Surface:
    """E, A, B, α and β, as numbers or as arrays over bootstrap samples."""

    E: Floats
    log_A: Floats
    log_B: Floats
    alpha: Floats
    beta: Floats

    @classmethod
    def of(cls, theta_B5: Floats, points: Points) -> Surface:
        alpha, beta = np.exp(theta_B5[..., 3]), np.exp(theta_B5[..., 4])
        log_A, log_B = theta_B5[..., 1] + alpha * points.n_mean, theta_B5[..., 2] + beta * points.d_mean
        return cls(np.exp(theta_B5[..., 0]), log_A, log_B, alpha, beta)

    @property
    def A(self) -> Floats:
        return np.exp(self.log_A)

    @property
    def B(self) -> Floats:
        return np.exp(self.log_B)

    def loss(self, params: Floats, tokens: Floats) -> Floats:
        size, data = self.log_A - self.alpha * np.log(params), self.log_B - self.beta * np.log(tokens)
        return np.asarray(self.E + np.exp(np.minimum(size, MOST)) + np.exp(np.minimum(data, MOST)))

    def exponents(self, flops: float, cost: TokenCost) -> tuple[Floats, Floats]:
        """a and b at a budget: the slopes of ln N* and ln D* over ln C there."""
        if not cost.root:
            whole = self.alpha + cost.power * self.beta
            return self.beta / whole, self.alpha / whole
        (low, few, _), (high, many, _) = (self.optimum(flops * step, cost) for step in (1 / STEP, STEP))
        return np.log(high / low) / (2 * np.log(STEP)), np.log(many / few) / (2 * np.log(STEP))

    def best_size(self, flops: float, cost: TokenCost) -> Floats:
        """N*, by fixed-point iteration: if ln f is replaced by its tangent, N* has a closed form."""
        params = np.full(np.shape(self.E), 1e7)
        for _ in range(TANGENTS if cost.root else 1):
            p = cost.slope(params)
            log_kappa = np.log(cost.flops(params)) - p * np.log(params)
            balance = np.log(self.alpha / (p * self.beta)) + self.log_A - self.log_B
            log_params = (balance + self.beta * (np.log(flops) - log_kappa)) / (self.alpha + p * self.beta)
            params = np.exp(np.clip(log_params, -MOST, MOST))
        return np.asarray(params)

    def optimum(self, flops: float, cost: TokenCost) -> tuple[Floats, Floats, Floats]:
        """N*, D* and their loss at a budget."""
        params = self.best_size(flops, cost)
        tokens = cost.tokens(np.asarray(flops), params)
        return params, tokens, self.loss(params, tokens)

    def gap(self, flops: float, cost: TokenCost, offset: float) -> Floats:
        """The excess loss of a model `offset` times the optimal size at these FLOPs."""
        params, _, least = self.optimum(flops, cost)
        return self.loss(offset * params, cost.tokens(np.asarray(flops), offset * params)) - least

    def overhead(self, flops: float, cost: TokenCost, offset: float) -> Floats:
        """The factor in FLOPs that a model `offset` times the optimal size needs to reach the same loss; infinite if no
        number of tokens is enough."""
        params, tokens, least = self.optimum(flops, cost)
        size = np.exp(np.minimum(self.log_A - self.alpha * np.log(offset * params), MOST))
        left = least - self.E - size
        needed = np.exp(np.minimum((self.log_B - np.log(np.where(left > 0, left, 1.0))) / self.beta, MOST))
        return np.where(left > 0, needed / tokens * cost.flops(offset * params) / cost.flops(params), np.inf)


#: Budgets closer than this ratio form one group: a whole number of steps does not meet a budget exactly.
NEAR = 1.1
#: A chain of close budgets with a larger total ratio is scattered runs and not a group.
WIDEST = 1.3


@dataclass(frozen=True)
class Parabola:
    """A group and its fitted parabola; with bootstrap samples, the optimum of each."""

    flops: float
    runs: Places
    best_n: float  # log N*
    best_loss: float
    bracketed: bool  # opens upwards, with runs on both sides of its lowest point
    side: int  # 1 if all sizes are smaller than the optimum, −1 if larger, 0 if neither
    best_n_B: Floats
    best_loss_B: Floats


def groups_of(flops_R: Floats) -> Places:
    """The group of every run, −1 for none."""
    order = np.argsort(flops_R, kind="stable")
    steps = np.diff(np.log(flops_R[order])) > np.log(NEAR)
    number_R = np.empty(len(flops_R), np.intp)
    number_R[order] = np.concatenate([[0], np.cumsum(steps)])
    for g in range(int(number_R.max(initial=-1)) + 1):
        members = number_R == g
        if flops_R[members].max() / flops_R[members].min() > WIDEST:
            number_R[members] = -1
    known = {int(g): new for new, g in enumerate(sorted(set(number_R[number_R >= 0].tolist())))}
    return np.array([known.get(int(g), -1) for g in number_R], np.intp)


def parabola(flops: float, runs: Places, params_R: Floats, loss_BR: Floats) -> Parabola | None:
    """The parabola of one group. The first row of `loss_BR` is the observed losses, the others are bootstrap samples.
    None for fewer than three sizes."""
    n = np.log(params_R[runs])
    if len(np.unique(n.round(9))) < 3:
        return None
    middle = float(n.mean())
    x = n - middle
    lift_B, slope_B, bend_B = np.linalg.pinv(np.vander(x, 3, increasing=True)) @ loss_BR[:, runs].T
    with np.errstate(divide="ignore", invalid="ignore"):
        lowest_B = np.where(bend_B > 0, -slope_B / (2 * bend_B), np.nan)
    loss_B = lift_B + slope_B * lowest_B + bend_B * lowest_B**2
    inside = bool(bend_B[0] > 0 and x.min() <= lowest_B[0] <= x.max())
    lowest_seen = float(x[loss_BR[0, runs].argmin()])
    side = 0 if inside else int(lowest_seen == x.max()) - int(lowest_seen == x.min())
    # A sample with an optimum far outside shows little curvature, not the position of the optimum.
    reach = np.ptp(x)
    held_B = np.where(np.abs(lowest_B) <= reach, lowest_B, np.nan)
    return Parabola(
        flops, runs, middle + float(lowest_B[0]), float(loss_B[0]), inside, side, middle + held_B[1:], loss_B[1:]
    )


def parabolas(flops_R: Floats, params_R: Floats, group_R: Places, loss_BR: Floats) -> list[Parabola]:
    """The parabolas of all groups with at least three sizes, by budget."""
    groups = []
    for g in range(int(group_R.max(initial=-1)) + 1):
        runs = np.flatnonzero(group_R == g)
        group = parabola(float(np.exp(np.log(flops_R[runs]).mean())), runs, params_R, loss_BR)
        if group is not None:
            groups.append(group)
    return sorted(groups, key=lambda group: group.flops)


def near_any(flops: float, budgets: Sequence[float]) -> bool:
    return any(abs(np.log(flops / budget)) < np.log(NEAR) for budget in budgets)


def common_budgets(by_architecture: Sequence[Sequence[Parabola]]) -> list[float]:
    """FLOPs of the first architecture's groups for which every other architecture has a group nearby."""
    first, *others = ([group.flops for group in groups] for groups in by_architecture)
    return [flops for flops in first if all(near_any(flops, budgets) for budgets in others)]


@dataclass(frozen=True)
class Powers:
    """Slopes of linear fits of log N* and log D* against log C over the groups, with bootstrap samples."""

    a: float
    b: float
    a_B: Floats
    b_B: Floats


def powers(groups: Sequence[Parabola], cost: TokenCost) -> Powers | None:
    """Fit the powers; None if fewer than two groups have their optimum between their sizes."""
    good = [group for group in groups if group.bracketed]
    if len(good) < 2:
        return None
    c_G = np.log([group.flops for group in good])
    n_BG = np.column_stack([np.concatenate([[group.best_n], group.best_n_B]) for group in good])
    d_BG = c_G - np.log(cost.flops(np.exp(n_BG)))
    x_G = c_G - c_G.mean()
    a_B, b_B = (values @ x_G / (x_G @ x_G) for values in (n_BG, d_BG))
    return Powers(float(a_B[0]), float(b_B[0]), a_B[1:], b_B[1:])


@dataclass(frozen=True)
class StateCurve:
    """One architecture's optima at G budgets. Row 0 is the estimate, the other rows are bootstrap samples."""

    log_state_BG: Floats
    log_perplexity_BG: Floats


@dataclass(frozen=True)
class StateLaw:
    """`c`: the exponent of each architecture alone; `shared`: the common exponent, with an offset each. Names ending in
    _B are bootstrap samples."""

    c: dict[str, float]
    c_B: dict[str, Floats]
    shared: float
    shared_B: Floats
    offset: dict[str, float]  # log k with the shared c
    offset_B: dict[str, Floats]


def state_curve(
    groups: list[Parabola], surface: Surface, draws: Surface, cost: TokenCost, params_R: Floats, state_R: Floats
) -> StateCurve | None:
    """The state curve of one architecture at the budgets of these groups; None for fewer than two distinct states."""
    log_states, log_perplexities = [], []
    for group in groups:
        (best, _, loss), (best_B, _, loss_B) = (fitted.optimum(group.flops, cost) for fitted in (surface, draws))
        log_n = np.log(np.concatenate([np.atleast_1d(best), best_B]))
        log_states.append(_interpolate(log_n, np.log(params_R[group.runs]), np.log(state_R[group.runs])))
        log_perplexities.append(np.concatenate([np.atleast_1d(loss), loss_B]))  # perplexity is e^loss
    if not log_states or len(np.unique([log_state[0] for log_state in log_states])) < 2:
        return None
    return StateCurve(np.column_stack(log_states), np.column_stack(log_perplexities))


def _interpolate(x: Floats, known_x: Floats, known_y: Floats) -> Floats:
    """Linear between the known points, and along the first or last segment outside of them."""
    knots, place, count = np.unique(known_x.round(9), return_inverse=True, return_counts=True)
    values = np.bincount(place, known_y) / count
    segment = np.clip(np.searchsorted(knots, x), 1, len(knots) - 1)
    slope = (values[segment] - values[segment - 1]) / (knots[segment] - knots[segment - 1])
    return np.asarray(values[segment - 1] + slope * (x - knots[segment - 1]))


def state_law(curves: Mapping[str, StateCurve]) -> StateLaw | None:
    if not curves:
        return None
    products = {name: _products(curve) for name, curve in curves.items()}
    with np.errstate(divide="ignore", invalid="ignore"):  # samples with a single state have no exponent
        own = {name: covariance / variance for name, (covariance, variance) in products.items()}
        shared = np.asarray(
            sum(product[0] for product in products.values()) / sum(product[1] for product in products.values())
        )
    offset = {
        name: curve.log_perplexity_BG.mean(1) - shared * curve.log_state_BG.mean(1) for name, curve in curves.items()
    }
    return StateLaw(
        {name: float(c[0]) for name, c in own.items()},
        {name: c[1:] for name, c in own.items()},
        float(shared[0]),
        shared[1:],
        {name: float(k[0]) for name, k in offset.items()},
        {name: k[1:] for name, k in offset.items()},
    )


def _products(curve: StateCurve) -> tuple[Floats, Floats]:
    """Sums over the groups of (m − mean) p and (m − mean)², per sample."""
    apart_BG = curve.log_state_BG - curve.log_state_BG.mean(1, keepdims=True)
    return (apart_BG * curve.log_perplexity_BG).sum(1), (apart_BG**2).sum(1)


def chances_of_least(values_B: Mapping[str, Floats]) -> dict[str, float]:
    """The fraction of samples in which each is the lowest, ignoring samples in which one is undefined."""
    names = list(values_B)
    table_BK = np.column_stack([values_B[name] for name in names])
    table_BK = table_BK[np.isfinite(table_BK).all(1)]
    if not len(table_BK):
        return dict.fromkeys(names, float("nan"))
    least = table_BK.argmin(1)
    return {name: float(np.mean(least == k)) for k, name in enumerate(names)}
