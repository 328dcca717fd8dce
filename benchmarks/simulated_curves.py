"""Simulated learning curves: power laws with an offset, E + A t^−α, with similar parameters within a family.

Some families learn something late (a drop in loss, as of attention when it begins to copy), so curves cross. Seed noise
is autocorrelated.

Letters: A architectures, S seeds, B budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from plait.analysis.curve_table import CurveTable
from plait.analysis.pareto import Floats

BUDGETS = tuple(0.2621e6 * 2.0**k for k in range(8))


def simulate_table(
    rng: np.random.Generator,
    architectures: int = 24,
    families: int = 6,
    seeds: int = 2,
    budgets: Sequence[float] = BUDGETS,
    noise: float = 0.008,
    late: float = 0.4,
) -> CurveTable:
    """`late`: fraction of families that learn something late. `noise`: relative standard deviation between seeds."""
    family_A = rng.integers(families, size=architectures)

    def alike(middle: float, between: float, within: float) -> Floats:
        return np.asarray(middle + rng.normal(0, between, families)[family_A] + rng.normal(0, within, architectures))

    x_B = np.log(np.asarray(budgets) / budgets[0])
    floor_A = np.exp(alike(math.log(0.45), 0.08, 0.03))
    first_A = np.exp(alike(math.log(2.0), 0.12, 0.06))
    alpha_A = np.exp(alike(math.log(0.45), 0.15, 0.06))
    loss_AB = floor_A[:, None] + first_A[:, None] * np.exp(-alpha_A[:, None] * x_B)
    drop_A = np.where(rng.random(families)[family_A] < late, np.exp(alike(math.log(0.15), 0.3, 0.2)), 0.0)
    when_A = x_B[-1] * np.clip(alike(0.5, 0.2, 0.08), 0.0, 1.0)
    # The drop is centred, so a family that learns late starts behind and ends ahead.
    gone_AB = 1 / (1 + np.exp(-(x_B - when_A[:, None]) / 0.4))
    loss_AB = loss_AB * np.exp(drop_A[:, None] * (0.5 - gone_AB))
    step_ASB = rng.normal(size=(architectures, seeds, len(x_B)))
    luck_ASB = step_ASB.copy()
    for b in range(1, len(x_B)):
        kept = math.exp(-(x_B[b] - x_B[b - 1]))
        luck_ASB[:, :, b] = kept * luck_ASB[:, :, b - 1] + math.sqrt(1 - kept**2) * step_ASB[:, :, b]
    names = [f"family{family}-{place}" for place, family in enumerate(family_A.tolist())]
    return CurveTable(
        "simulated",
        names,
        [f"family{family}" for family in family_A.tolist()],
        [float(b) for b in budgets],
        loss_AB[:, None] * np.exp(noise * luck_ASB),
        np.exp(rng.normal(0, 0.2, architectures)),
        {"simulated": True},
    )
