"""How many tokens each contender gets (equal tokens, FLOPs or time), and how long the whole comparison takes.

A comparison with a time limit is planned before it starts, from a few timed steps of every contender, and replanned
after the learning-rate search, which shows how fast each contender really trains. On a CPU, whose speed depends on the
load, all contenders and seeds then train in stages, and before each stage all budgets are rescaled to the remaining
time. Every plan is stored (`planning`), so that an interrupted comparison resumes with the same budgets. Durations come
from simulating the schedule of legs on the workers: nine equal legs on two workers take as long as ten.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from plait.core.errors import UserError
from plait.core.registry import require_one_of
from plait.core.units import duration
from plait.racing.contenders import Contender
from plait.racing.leg import Course
from plait.racing.rates import rate_steps
from plait.racing.workers import seconds_of_all

EQUAL = ("tokens", "flops", "time")
SHARES = tuple(2.0**-k for k in range(4, -1, -1))  # fractions of a budget at which the learning curve is measured
STAGES = (0.125, 0.5, 1.0)  # fractions of a budget after which the rest is replanned
APART = 1.25  # smallest ratio of two consecutive points of a learning curve
MOST_SCALED = 8.0  # largest factor by which a budget may grow, if the machine was busy when it was timed
SCORING = 1 / 3  # cost of scoring a token, relative to training on it
TIMED_SLACK, TRAINED_SLACK = 1.12, 1.04  # margins for speeds from a few steps, and from a rate search
LAST_SECONDS = 2.0  # reserved for computing the verdict and stopping processes
LEAST_STEPS = 32  # fewest steps of a meaningful budget


@dataclass(frozen=True)
class Workload:
    """What is trained for each contender. `rates`: how many learning rates are tried, 1 for no search."""

    seeds: int
    rates: int
    decay: float
    held_out: int

    def training(self, budget: float, shares: Sequence[float] = SHARES, reached: float = 0.0) -> float:
        """Cost of training one seed from the fraction `reached` of a budget to `shares` of it and scoring it at each,
        in trained tokens."""
        trunk = (1 - self.decay) * (shares[-1] - reached)
        return (trunk + self.decay * sum(shares)) * budget + SCORING * self.held_out * len(shares)

    def search(self, steps: int, course: Course) -> float:
        """Cost of trying one learning rate, in trained tokens."""
        return steps * course.tokens_per_step + SCORING * self.held_out


@dataclass(frozen=True)
class Plan:
    """Durations and budgets of a comparison, from the contenders' seconds per token."""

    contenders: Sequence[Contender]
    seconds_per_token: Mapping[str, float]
    workload: Workload
    course: Course
    equal: str = "tokens"
    workers: int = 1

    def searching(self, budgets: Mapping[str, float]) -> float:
        """Seconds of the rate search: all its rates, plus one more for each contender."""
        if self.workload.rates < 2:
            return 0.0
        steps = {name: rate_steps(tokens, self.course) for name, tokens in budgets.items()}
        seconds = [
            self.seconds_per_token[name] * self.workload.search(count, self.course) for name, count in steps.items()
        ]
        return seconds_of_all(seconds * self.workload.rates, self.workers) + seconds_of_all(seconds, self.workers)

    def training(self, budgets: Mapping[str, float], shares: Sequence[float] = SHARES, reached: float = 0.0) -> float:
        """Seconds of training all seeds of all contenders from one fraction of their budgets to others."""
        seconds = [
            self.seconds_per_token[name] * self.workload.training(tokens, shares, reached)
            for name, tokens in budgets.items()
        ]
        return seconds_of_all(seconds * self.workload.seeds, self.workers)

    def scale(self, budgets: Mapping[str, float], reached: float, seconds: float) -> float:
        """The factor for all budgets, of which the fraction `reached` is trained, so that training ends within
        `seconds`; `reached` if there is no time for more, but always enough for `LEAST_STEPS` steps."""
        least = LEAST_STEPS / min(map(self.course.steps, budgets.values()))
        tried = [reached * APART]
        while tried[-1] < MOST_SCALED:
            tried.append(1.02 * tried[-1])
        fitting = [
            scale
            for scale in tried
            if TRAINED_SLACK * self.training(budgets, further_shares(scale, reached), reached) + LAST_SECONDS < seconds
        ]
        return max([reached, least, *fitting])

    def budgets(self, seconds: float, spent: float = 0.0) -> dict[str, float]:
        """Tokens for each contender such that search and training end within `seconds`, of which `spent` have
        passed."""
        least, slack = self._budgets(self._least), TIMED_SLACK
        takes = slack * (self.searching(least) + self.training(least)) + LAST_SECONDS
        if takes > seconds - spent:
            count = len(self.contenders)
            raise UserError(
                f"{duration(seconds)} are too short for {count} architecture{'s' * (count > 1)} of "
                f"{self.workload.seeds} seed{'s' * (self.workload.seeds > 1)}: the shortest comparison takes about "
                f"{duration(takes + spent)} here. Give more --time, fewer architectures or --seeds, a smaller --batch, "
                f"or smaller models{_or_wait()}."
            )
        return self._largest(seconds - spent, lambda b: slack * (self.searching(b) + self.training(b)) + LAST_SECONDS)

    def budgets_after_search(self, seconds: float) -> dict[str, float]:
        """Tokens for each contender such that training ends within `seconds`, but at least `LEAST_STEPS` steps."""
        return self._largest(seconds, lambda b: TRAINED_SLACK * self.training(b) + LAST_SECONDS)

    @cached_property
    def _least(self) -> float:
        return LEAST_STEPS * self.course.tokens_per_step / min(self._weights.values())

    @cached_property
    def _weights(self) -> dict[str, float]:
        return weights(self.contenders, self.course, self.equal, self.seconds_per_token)

    def _budgets(self, unit: float) -> dict[str, float]:
        return {name: unit * share for name, share in self._weights.items()}

    def _largest(self, seconds: float, takes: Callable[[dict[str, float]], float]) -> dict[str, float]:
        low = high = self._least
        if takes(self._budgets(low)) >= seconds:
            return self._budgets(low)
        while takes(self._budgets(high)) < seconds:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if takes(self._budgets(middle)) < seconds else (low, middle)
        return self._budgets(low)


def _or_wait() -> str:
    """Advice for a machine that is busy with other work."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < 2 * cores:
        return ""
    return f", or wait: other work keeps this machine busy (load {load:.0f} on {cores} cores)"


def weights(
    contenders: Sequence[Contender], course: Course, equal: str, seconds_per_token: Mapping[str, float]
) -> dict[str, float]:
    """How many tokens each contender gets, relative to the one that gets most."""
    require_one_of(equal, EQUAL, f"--at {equal}")
    seq_len = course.recipe.seq_len
    cost = {
        "tokens": {c.name: 1.0 for c in contenders},
        "flops": {c.name: c.flops_per_token(seq_len) for c in contenders},
        "time": {c.name: seconds_per_token.get(c.name, math.nan) for c in contenders},
    }[equal]
    return {name: min(cost.values()) / per_token for name, per_token in cost.items()}


def further_shares(scale: float, reached: float) -> list[float]:
    """Points beyond `reached` at which learning curves are measured if the budget becomes `scale` times as large, as
    fractions of the planned budget; the last is the whole new budget."""
    return [share for share in (scale * part for part in SHARES) if share >= 0.999 * APART * reached]


def rungs(tokens: float, course: Course, shares: Sequence[float] = SHARES, after: int = 0) -> list[int]:
    """Steps beyond `after` at which the learning curve of a budget is measured; the last is the whole budget."""
    steps = course.steps(tokens)
    return sorted({rung for share in shares if (rung := max(4, round(share * steps))) > after})
