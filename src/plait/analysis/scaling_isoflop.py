"""IsoFLOP groups: runs of equal budget, their optimal size by a parabola in log N, and N* and D* as powers of the
budget (Hoffmann et al. 2022, approach 2; Poli et al. 2024, section 4.1).

A parabola only approximates a surface whose two exponents differ: if sizes are not symmetric about the optimum, its
minimum is slightly biased. The fitted surface (`scaling_frontier`) has no such bias; both are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.analysis.scaling_frontier import TokenCost
from plait.analysis.scaling_surface import Floats, Places

#: Budgets nearer than that are one group: whole steps do not meet a budget exactly.
NEAR = 1.1
#: A chain of near budgets longer than that is no group but a scatter of runs.
WIDEST = 1.3


@dataclass(frozen=True)
class Parabola:
    """A group and its fitted parabola; with bootstrap samples, the optimum of each."""

    flops: float
    runs: Places
    best_n: float  # log N*
    best_loss: float
    bracketed: bool  # opens upwards, with runs on both sides of its lowest point
    side: int  # 1 where all sizes are smaller than the optimum, −1 larger, 0 where neither is seen
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
    found = []
    for g in range(int(group_R.max(initial=-1)) + 1):
        runs = np.flatnonzero(group_R == g)
        made = parabola(float(np.exp(np.log(flops_R[runs]).mean())), runs, params_R, loss_BR)
        if made is not None:
            found.append(made)
    return sorted(found, key=lambda one: one.flops)


def near_any(flops: float, budgets: Sequence[float]) -> bool:
    return any(abs(np.log(flops / budget)) < np.log(NEAR) for budget in budgets)


def common_budgets(by_architecture: Sequence[Sequence[Parabola]]) -> list[float]:
    """FLOPs of the first architecture's groups for which every other architecture has a group nearby."""
    first, *others = ([group.flops for group in groups] for groups in by_architecture)
    return [flops for flops in first if all(near_any(flops, budgets) for budgets in others)]


@dataclass(frozen=True)
class Powers:
    """Linear fits of log N* and log D* against log C over the groups: slopes and intercepts, with bootstrap samples."""

    a: float
    b: float
    a_B: Floats
    b_B: Floats
    level_n: float
    level_d: float


def powers(found: Sequence[Parabola], cost: TokenCost) -> Powers | None:
    """Fit the powers; None if fewer than two groups have their optimum between their sizes."""
    good = [one for one in found if one.bracketed]
    if len(good) < 2:
        return None
    c_G = np.log([one.flops for one in good])
    n_BG = np.column_stack([np.concatenate([[one.best_n], one.best_n_B]) for one in good])
    d_BG = c_G - np.log(cost.flops(np.exp(n_BG)))
    x_G = c_G - c_G.mean()
    a_B, b_B = (values @ x_G / (x_G @ x_G) for values in (n_BG, d_BG))
    level_n = float(n_BG[0].mean() - a_B[0] * c_G.mean())
    level_d = float(d_BG[0].mean() - b_B[0] * c_G.mean())
    return Powers(float(a_B[0]), float(b_B[0]), a_B[1:], b_B[1:], level_n, level_d)
