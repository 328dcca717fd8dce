"""State-optimal scaling (Poli et al. 2024, section 4.2): compute-optimal perplexity P* as a power of the state M,
P* = k M^c, with one exponent c for all architectures and an offset k for each.

Estimator: at the budget of every IsoFLOP group, N* and P* come from the fitted surface (`scaling_frontier`), and M is
the state at N*, interpolated in log M against log N between the sizes of the group. c is the slope of the least squares
line through log M and log P* with a level for each architecture. Intervals are percentiles of the same calculation on
every bootstrap sample (`scaling_bootstrap`), in which N*, and so M, vary as well.

Poli et al. instead use the state of the trained size nearest to N*. Sizes differ by factors of 1.5 or more, so this
adds an error of up to a quarter to M that no bootstrap sample shows: in simulations with the same sizes at all budgets
its 90 % intervals contained the truth 2 % of the time (`benchmarks/scaling.py` simulates the estimator used here).

Assumption: P* is not exactly a power of M, because the loss tends to E and not to 0. c is the slope over the budgets
that were trained, and should not be extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from plait.analysis.scaling_frontier import Parabola, Surface, TokenCost
from plait.analysis.scaling_surface import Floats


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
