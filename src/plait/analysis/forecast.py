"""Forecasts of several candidates' losses: joint posterior draws, and the losses, ranks and P(best) that follow.

`plait.analysis.learning_curve` makes them. Draws belong together: what one draw says of a candidate goes with what it
says of the others, and of other budgets.

Letters: D draws, B budgets, C candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plait.analysis.pareto import Floats
from plait.core.errors import UserError

LEVEL = 0.9  # of the intervals


def _shares_of_best(loss_DC: Floats) -> Floats:
    return np.bincount(np.argmin(loss_DC, axis=1), minlength=loss_DC.shape[1]) / len(loss_DC)


@dataclass(frozen=True)
class Prediction:
    """All candidates at one budget: `loss_DC` are draws of their expected losses (infinite for those diverged)."""

    names: list[str]
    tokens: float
    loss_DC: Floats
    noise: float  # between seeds, relative
    blind: bool = False  # what was trained is too little to say who will be best
    #: (D, 1 or C), ln: by how much all losses of a draw are off together. It is part of losses and intervals, but of
    #: nothing that compares candidates.
    shift_DC: Floats | None = None

    @cached_property
    def best_share(self) -> dict[str, float]:
        """In which share of the draws each has the least loss: what races decide by."""
        return dict(zip(self.names, _shares_of_best(self.loss_DC).tolist(), strict=True))

    @cached_property
    def p_best(self) -> dict[str, float]:
        """How probably each has the least expected loss. Blind forecasts know nothing of that, and all that did not
        diverge are equally probable."""
        if self.blind:
            finite_C = np.isfinite(self.loss_DC).all(axis=0)
            return dict(zip(self.names, (finite_C / max(1, finite_C.sum())).tolist(), strict=True))
        return self.best_share

    def p_best_of_means(self, runs: int) -> dict[str, float]:
        """How probably each has the least mean loss of so many trainings: what a table of trainings can confirm."""
        rng = np.random.default_rng(0)
        seen_DC = self.loss_DC * np.exp(rng.normal(0, self.noise / math.sqrt(runs), self.loss_DC.shape))
        return dict(zip(self.names, _shares_of_best(seen_DC).tolist(), strict=True))

    @cached_property
    def loss(self) -> dict[str, float]:
        """The median."""
        shift_C = 0.0 if self.shift_DC is None else np.median(self.shift_DC, axis=0)
        return dict(zip(self.names, (np.median(self.loss_DC, axis=0) * np.exp(shift_C)).tolist(), strict=True))

    @cached_property
    def regret(self) -> dict[str, float]:
        """Expected loss of each above the best one's."""
        finite_DC = np.where(np.isfinite(self.loss_DC), self.loss_DC, np.inf)
        mean_C = finite_DC.mean(axis=0) - finite_DC.min(axis=1).mean()
        return dict(zip(self.names, mean_C.tolist(), strict=True))

    @property
    def pick(self) -> str:
        """The least expected regret."""
        return min(self.names, key=lambda name: self.regret[name])

    @property
    def ranking(self) -> list[str]:
        return sorted(self.names, key=lambda name: self.loss[name])

    def interval(self, name: str, level: float = LEVEL, runs: int | None = None) -> tuple[float, float]:
        """Of the expected loss; of the mean of so many trainings, if `runs` is given."""
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
        """How probably the expected loss of `a` is below that of `b`."""
        a_D, b_D = (self.loss_DC[:, self.names.index(name)] for name in (a, b))
        return float(np.mean(a_D < b_D))


@dataclass(frozen=True)
class Forecast:
    """Joint draws of whole curves: budgets of one draw belong together, so crossings can be read off."""

    names: list[str]
    budgets: list[float]
    loss_DBC: Floats
    noise: float
    longest: float  # observed
    reach: float
    way: str
    blind: bool = False  # beyond what was observed, see `Prediction`
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
