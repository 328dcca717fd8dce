"""Do probes predict performance at scale? Correlation of probe scores with the compute-optimal loss of large models
(Poli et al. 2024, section 5, Figures 5.1, B.8 and B.9), overall and by task, at every budget that all architectures
share.

Correlations are Pearson's, of score and loss: −1 if better scores always mean lower loss. Their 90 % intervals are
Fisher's for the number of architectures, widened by the uncertainty of each loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.analysis.distributions import binomial_cdf
from plait.analysis.rank import spearman, spearman_interval
from plait.analysis.scaling_frontier import Surface
from plait.analysis.scaling_laws import CANNOT_SAY, Laws
from plait.analysis.scaling_surface import Floats
from plait.core.errors import UserError

AGGREGATE = "all tasks"
LEAST = 4  # architectures: Fisher's interval needs more than three
_QUANTILE = 1.6448536  # of 90 %


@dataclass(frozen=True)
class Correlation:
    """The correlation of one task's scores, or of the mean over tasks, with the loss at one budget."""

    task: str
    budget: float
    value: float
    low: float
    high: float
    architectures: int

    @property
    def verdict(self) -> str:
        if self.low <= 0 <= self.high or not np.isfinite(self.value):
            return CANNOT_SAY
        return "better probes, lower loss" if self.high < 0 else "better probes, higher loss"


def correlation(scores_K: Floats, loss_K: Floats, loss_BK: Floats) -> tuple[float, float, float]:
    """Pearson's r and its interval; nan if all scores are equal."""
    if np.ptp(scores_K) < 1e-12 or np.ptp(loss_K) < 1e-12:
        return float("nan"), float("nan"), float("nan")
    value = float(np.corrcoef(scores_K, loss_K)[0, 1])
    centred_K = scores_K - scores_K.mean()
    spread_BK = loss_BK - loss_BK.mean(1, keepdims=True)
    norm_B = np.linalg.norm(spread_BK, axis=1) * np.linalg.norm(centred_K)
    z_B = np.arctanh(np.clip(spread_BK @ centred_K / np.maximum(norm_B, 1e-300), -0.999999, 0.999999))
    z = np.arctanh(np.clip(value, -0.999999, 0.999999))
    error = np.sqrt(1 / (len(scores_K) - 3) + float(z_B.var()))
    return value, float(np.tanh(z - _QUANTILE * error)), float(np.tanh(z + _QUANTILE * error))


def probe_to_scale(laws: Laws, scores: Mapping[str, Mapping[str, float]]) -> list[Correlation]:
    """The correlations at the budgets of the IsoFLOP groups and at the target, with the losses of the compute-optimal
    frontier. `scores`: architecture → task → accuracy."""
    shared = [name for name in laws.laws if name in scores]
    if len(shared) < LEAST:
        raise UserError(
            f"{len(shared)} architectures have both probe scores and scaling runs ({', '.join(shared) or 'none'}); a "
            f"correlation needs {LEAST} or more. Probed: {', '.join(scores)}; scaled: {', '.join(laws.laws)}."
        )
    tasks = [task for task in scores[shared[0]] if all(task in scores[name] for name in shared)]
    columns = {AGGREGATE: np.array([np.mean([scores[name][task] for task in tasks]) for name in shared])}
    columns |= {task: np.array([scores[name][task] for name in shared]) for task in tasks}
    correlations = []
    for budget in _budgets(laws, shared):
        one_K, many_BK = losses_at(laws, shared, budget)
        for task, scores_K in columns.items():
            correlations.append(Correlation(task, budget, *correlation(scores_K, one_K, many_BK), len(shared)))
    return correlations


def losses_at(laws: Laws, names: Sequence[str], budget: float) -> tuple[Floats, Floats]:
    """Compute-optimal losses of these architectures, and their bootstrap samples."""

    def least(surface: Surface, name: str) -> Floats:
        return surface.optimum(budget, laws.laws[name].cost)[2]

    one_K = np.array([float(least(laws.laws[name].surface, name)) for name in names])
    return one_K, np.column_stack([least(laws.laws[name].draws, name) for name in names])


def _budgets(laws: Laws, names: Sequence[str]) -> list[float]:
    """The budgets of groups that all architectures have, to within a tenth, and the target."""
    first = [group.flops for group in laws.laws[names[0]].groups]

    def near(name: str, flops: float) -> bool:
        return any(abs(np.log(group.flops / flops)) < np.log(1.1) for group in laws.laws[name].groups)

    return [*(flops for flops in first if all(near(name, flops) for name in names)), laws.target]


def document(correlations: Sequence[Correlation]) -> list[dict[str, Any]]:
    return [
        {
            "task": c.task,
            "budget": c.budget,
            "r": c.value,
            "interval": [c.low, c.high],
            "architectures": c.architectures,
            "verdict": c.verdict,
        }
        for c in correlations
    ]


@dataclass(frozen=True)
class Trend:
    """Spearman's ρ of score and state over architectures, and its 95 % interval; None for fewer than four."""

    value: float
    interval: tuple[float, float] | None
    architectures: int


def state_trend(states: Sequence[float], scores: Sequence[float]) -> Trend:
    """Test Poli et al. 2024, section 3.3: performance increases with the total fixed state."""
    if len(states) < 3 or len(set(states)) < 2:
        raise UserError("give three probed architectures or more, of two states or more.")
    interval = spearman_interval(states, scores) if len(states) >= LEAST else None
    return Trend(spearman(states, scores), interval, len(states))


def sign_test(differences: Sequence[float]) -> tuple[int, int, float]:
    """The sign test: the number of positive and of non-zero differences, and the one-sided p-value."""
    signs = [difference > 0 for difference in differences if difference]
    above = sum(signs)
    return above, len(signs), binomial_cdf(len(signs) - above, len(signs), 0.5)
