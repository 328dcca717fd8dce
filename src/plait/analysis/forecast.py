"""Forecasts of several candidates' losses: joint posterior draws, and the losses, ranks and P(best) that follow.

`plait.analysis.learning_curve` computes them. Each draw is one joint sample over all candidates and budgets, so
differences between candidates and crossings of curves can be computed draw by draw.

`foresee` gives the best candidate as a function of the training budget: P(best) against tokens, and the crossings
between leaders.

    outlook = foresee(extrapolate(observations, budgets))
    outlook.text        "gdn is most likely best up to about 20 M tokens, then attn (crossing at 14–31 M)"

A crossing is located in every posterior sample of the two curves: the last budget at which the early leader is still
ahead. The estimate is the median over samples, clipped to the budgets between which each leads clearly; the range holds
80 % of the samples, and is open on a side where samples cross outside the budgets considered.

Letters: D draws, B budgets, C candidates.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plait.analysis.pareto import Floats
from plait.core.errors import UserError
from plait.core.units import PREFIXES, probability

LEVEL = 0.9  # probability of the credible intervals
SO_FEW_STEPS = "after so few steps"  # in the verdict of a blind forecast


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
    blind: bool = False  # the trainings were too short to say which is best; `interval` is too narrow
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


HELD = 0.8  # fraction of the samples in a crossing's range
AHEAD = 0.2  # lead in P(best) that makes a clear leader (of two candidates: 60 % to 40 %)


@dataclass(frozen=True)
class Row:
    """One training budget. `best` has the largest `p_best`. `leader` leads clearly, or was the last to do so, or will
    be the first: it does not change while candidates are about even, so crossings are changes of leader."""

    tokens: float
    best: str
    p_best: dict[str, float]
    leader: str


@dataclass(frozen=True)
class Crossing:
    """`before` is best up to `tokens`, `after` beyond. `low` or `high` is None if the range is open on that side."""

    before: str
    after: str
    tokens: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Foresight:
    rows: list[Row]
    crossings: list[Crossing]
    observed: float  # tokens of the longest training
    reach: float  # tokens beyond which no forecast is made

    @property
    def text(self) -> str:
        end = f"; no forecast beyond {count(self.reach)} tokens"
        if all(_leader(row.p_best) is None for row in self.rows):
            least, most = count(self.rows[0].tokens), count(self.rows[-1].tokens)
            return f"no architecture is clearly the best at any budget from {least} to {most} tokens{end}"
        if not self.crossings:
            return self._one_leader(end)
        parts = [f"{self.crossings[0].before} is most likely best up to about {count(self.crossings[0].tokens)} tokens"]
        for at, crossing in enumerate(self.crossings):
            last = at == len(self.crossings) - 1
            until = "" if last else f" up to about {count(self.crossings[at + 1].tokens)}"
            parts.append(f"then {crossing.after}{until} (crossing {span(crossing.low, crossing.high)})")
        last_clear = max(row.tokens for row in self.rows if _leader(row.p_best) is not None)
        if last_clear < self.rows[-1].tokens:
            parts.append(f"clearly so up to about {count(last_clear)}; beyond that none is clearly the best")
        return ", ".join(parts) + end

    def _one_leader(self, end: str) -> str:
        """One candidate leads clearly, if not at every budget."""
        clear = [row for row in self.rows if _leader(row.p_best) is not None]
        first, last = clear[0], clear[-1]
        chance = f"P(best) {probability(last.p_best[last.leader])} at {count(last.tokens)} tokens"
        if last is not self.rows[-1]:
            since = "up to" if first is self.rows[0] else f"from about {count(first.tokens)} to"
            until = f"{since} about {count(last.tokens)} tokens"
            return f"{last.leader} is most likely best {until} ({chance}); beyond that none is clearly the best{end}"
        if first is self.rows[0]:
            always = f"at every budget from {count(first.tokens)} tokens on"
            return f"{last.leader} is most likely best {always} ({chance}){end}"
        since = f"{last.leader} is most likely best from about {count(first.tokens)} tokens on ({chance})"
        return f"{since}; before that none is clearly the best{end}"


def foresee(forecast: Forecast) -> Foresight:
    if list(forecast.budgets) != sorted(forecast.budgets):
        raise UserError("foresight needs budgets in increasing order.")
    chances = [forecast.at(budget).p_best for budget in forecast.budgets]
    clear = [_leader(p_best) for p_best in chances]
    best = [max(p_best, key=p_best.__getitem__) for p_best in chances]
    leader = next((name for name in clear if name), None) or best[-1]
    rows: list[Row] = []
    for budget, p_best, first, now in zip(forecast.budgets, chances, best, clear, strict=True):
        leader = now or leader
        rows.append(Row(budget, first, p_best, leader))
    changes = [0, *(i for i in range(1, len(rows)) if rows[i].leader != rows[i - 1].leader), len(rows)]
    periods = itertools.pairwise(itertools.pairwise(changes))
    crossings = [_crossing(forecast, rows, begin, middle, end) for (begin, middle), (_, end) in periods]
    return Foresight(rows, crossings, forecast.longest, forecast.reach * forecast.longest)


def _leader(p_best: dict[str, float]) -> str | None:
    first, *others = sorted(p_best, key=lambda name: -p_best[name])
    # 60 % to 40 % is a lead, although 0.4 + 0.2 > 0.6 in floating point.
    return first if not others or p_best[first] - p_best[others[0]] >= AHEAD - 1e-9 else None


def _crossing(forecast: Forecast, rows: list[Row], begin: int, middle: int, end: int) -> Crossing:
    """The crossing between the leader from row `begin` and the leader from row `middle` to `end`, interpolated linearly
    in the logarithm of the budget."""
    before, after = rows[begin].leader, rows[middle].leader
    loss_DBC = forecast.loss_DBC[:, begin:end]
    gap_DB = np.log(loss_DBC[:, :, forecast.names.index(after)]) - np.log(loss_DBC[:, :, forecast.names.index(before)])
    x_B = np.log(forecast.budgets[begin:end])
    where = np.empty(len(gap_DB))
    for draw, gap_B in enumerate(gap_DB):
        led = np.flatnonzero(gap_B > 0)
        if not len(led):
            where[draw] = -np.inf  # crosses before the first budget
        elif led[-1] == len(gap_B) - 1:
            where[draw] = np.inf  # crosses after the last budget
        else:
            i = led[-1]
            where[draw] = x_B[i] + (x_B[i + 1] - x_B[i]) * gap_B[i] / (gap_B[i] - gap_B[i + 1])
    low, median, high = np.quantile(where, [(1 - HELD) / 2, 0.5, (1 + HELD) / 2], method="nearest")
    last = max((i for i in range(begin, middle) if _leader(rows[i].p_best) == before), default=begin)
    at = float(np.clip(median, x_B[last - begin], x_B[middle - begin]))
    ends = [float(np.exp(x)) if np.isfinite(x) else None for x in (min(low, at), max(high, at))]
    return Crossing(before, after, math.exp(at), ends[0], ends[1])


def span(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "not determined" if low == high else f"before {count(high)}" if high else f"after {count(low or 0.0)}"
    a, b = count(low), count(high)
    return f"at {a.split()[0]}–{b}" if a.split()[1:] == b.split()[1:] else f"at {a}–{b}"


def count(tokens: float) -> str:
    """Tokens with two significant digits: 20 M, 1.3 G."""
    for size, prefix in PREFIXES:
        if tokens >= 0.95 * size:
            value = tokens / size
            return f"{value:.2g} {prefix}" if value < 99.5 else f"{value:.0f} {prefix}"
    return f"{tokens:.0f}"
