"""Forecasts of several candidates' losses: joint posterior draws, and the losses, ranks and P(best) that follow.

`plait.analysis.learning_curve` computes them. Each draw is one joint sample over all candidates and budgets, so
differences between candidates and crossings of curves can be computed draw by draw.

Letters: D draws, B budgets, C candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plait.analysis.pareto import Floats
from plait.core.errors import UserError

LEVEL = 0.9  # probability of the credible intervals


def _shares_of_best(loss_DC: Floats) -> Floats:
    """Draws in which all diverged count for none."""
    finite_D = np.isfinite(loss_DC).any(axis=1)
    return np.bincount(np.argmin(loss_DC, axis=1), finite_D, loss_DC.shape[1]) / len(loss_DC)


@dataclass(frozen=True)
class Prediction:
    """All candidates at one budget. `loss_DC`: draws of their expected losses, infinite if they diverged."""

    names: list[str]
    tokens: float
    loss_DC: Floats
    noise: float  # relative standard deviation between seeds
    blind: bool = False  # the trainings were too short to say which candidate will be best
    #: (D, 1 or C), in ln loss: an error common to all candidates of a draw. Included in losses and intervals, not in
    #: comparisons of candidates.
    shift_DC: Floats | None = None

    @cached_property
    def best_share(self) -> dict[str, float]:
        """The fraction of draws in which each candidate has the lowest loss, on which the decisions of a race rely."""
        return dict(zip(self.names, _shares_of_best(self.loss_DC).tolist(), strict=True))

    @cached_property
    def p_best(self) -> dict[str, float]:
        """The posterior probability that a candidate has the lowest expected loss. In a blind forecast, all that did
        not diverge are equally probable."""
        if self.blind:
            finite_C = np.isfinite(self.loss_DC).all(axis=0)
            return dict(zip(self.names, (finite_C / max(1, finite_C.sum())).tolist(), strict=True))
        return self.best_share

    def p_best_of_means(self, runs: int) -> dict[str, float]:
        """The probability of the lowest mean loss over so many runs, which a table of trainings can verify."""
        rng = np.random.default_rng(0)
        seen_DC = self.loss_DC * np.exp(rng.normal(0, self.noise / math.sqrt(runs), self.loss_DC.shape))
        return dict(zip(self.names, _shares_of_best(seen_DC).tolist(), strict=True))

    @cached_property
    def loss(self) -> dict[str, float]:
        """The posterior median."""
        shift_C = 0.0 if self.shift_DC is None else np.median(self.shift_DC, axis=0)
        return dict(zip(self.names, (np.median(self.loss_DC, axis=0) * np.exp(shift_C)).tolist(), strict=True))

    @cached_property
    def regret(self) -> dict[str, float]:
        """The expected excess of each candidate's loss over that of the best one."""
        finite_DC = np.where(np.isfinite(self.loss_DC), self.loss_DC, np.inf)
        least = float(finite_DC.min(axis=1).mean())
        mean_C = finite_DC.mean(axis=0) - (least if math.isfinite(least) else 0.0)
        return dict(zip(self.names, mean_C.tolist(), strict=True))

    @property
    def pick(self) -> str:
        """The candidate of lowest expected regret."""
        return min(self.names, key=lambda name: self.regret[name])

    @property
    def ranking(self) -> list[str]:
        return sorted(self.names, key=lambda name: self.loss[name])

    def interval(self, name: str, level: float = LEVEL, runs: int | None = None) -> tuple[float, float]:
        """Credible interval of the expected loss or, if `runs` is given, of the mean over so many runs."""
        loss_DC = self.loss_DC if self.shift_DC is None else self.loss_DC * np.exp(self.shift_DC)
        loss_D = loss_DC[:, self.names.index(name)]
        if not np.isfinite(loss_D).all():
            return math.inf, math.inf
        if runs is not None:
            rng = np.random.default_rng(self.names.index(name))
            loss_D = loss_D * np.exp(rng.normal(0, self.noise / math.sqrt(runs), len(loss_D)))
        low, high = np.quantile(loss_D, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def p_better(self, a: str, b: str) -> float:
        """The posterior probability that the expected loss of `a` is lower than that of `b`."""
        a_D, b_D = (self.loss_DC[:, self.names.index(name)] for name in (a, b))
        return float(np.mean(a_D < b_D))


@dataclass(frozen=True)
class Forecast:
    """Joint draws of whole curves."""

    names: list[str]
    budgets: list[float]
    loss_DBC: Floats
    noise: float
    longest: float  # the longest observed budget, in tokens
    reach: float
    way: str
    blind: bool = False  # see `Prediction`; applies to budgets beyond the observed ones
    shift_DB: Floats | None = None  # see `Prediction.shift_DC`

    def at(self, tokens: float) -> Prediction:
        place = int(np.argmin(np.abs(np.log(self.budgets) - math.log(tokens))))
        if not math.isclose(self.budgets[place], tokens, rel_tol=1e-6):
            raise UserError(f"{tokens:g} tokens were not forecast: {', '.join(f'{b:g}' for b in self.budgets)} were.")
        ahead = self.budgets[place] > self.longest * (1 + 1e-6)
        shift_D1 = None if self.shift_DB is None else self.shift_DB[:, [place]]
        return Prediction(
            self.names, self.budgets[place], self.loss_DBC[:, place], self.noise, self.blind and ahead, shift_D1
        )
