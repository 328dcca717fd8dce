"""How many tokens each contender gets (equal tokens, FLOPs or time), and how long the whole comparison takes.

A comparison in a given time is planned twice: before it begins, from a few timed steps of every contender, and again
after the search of learning rates, which shows how fast each contender really trains. Both plans are stored, so that an
interrupted comparison resumes with the same budgets. Durations are found by scheduling the legs on the workers: nine
equal legs on two workers take as long as ten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from plait.core.errors import UserError, did_you_mean
from plait.core.units import duration
from plait.racing.contenders import Contender
from plait.racing.leg import Course
from plait.racing.rates import rate_steps
from plait.racing.workers import seconds_of_all

EQUAL = ("tokens", "flops", "time")
SHARES = tuple(2.0**-k for k in range(4, -1, -1))  # of a budget, at which the learning curve is measured
SCORING = 1 / 3  # cost of scoring a token, relative to training on it
TIMED_SLACK, TRAINED_SLACK = 1.12, 1.04  # margins for speeds from a few steps, and from a search of rates
LAST_SECONDS = 2.0  # for computing the verdict and ending processes
LEAST_STEPS = 32  # of the shortest budget that makes sense


@dataclass(frozen=True)
class Workload:
    """What is trained for each contender. `rates`: how many learning rates are tried, 1 for no search."""

    seeds: int
    rates: int
    decay: float
    held_out: int

    def training(self, budget: float) -> float:
        """Cost of training one seed and measuring its learning curve, in trained tokens."""
        curve = (1 - self.decay) + self.decay * sum(SHARES)
        return curve * budget + SCORING * self.held_out * len(SHARES)

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
        """Seconds of the search of rates: all of them, and one further rate for each contender."""
        if self.workload.rates < 2:
            return 0.0
        steps = {name: rate_steps(tokens, self.course) for name, tokens in budgets.items()}
        each = [
            self.seconds_per_token[name] * self.workload.search(count, self.course) for name, count in steps.items()
        ]
        return seconds_of_all(each * self.workload.rates, self.workers) + seconds_of_all(each, self.workers)

    def training(self, budgets: Mapping[str, float]) -> float:
        """Seconds of training all seeds of all contenders."""
        each = [self.seconds_per_token[name] * self.workload.training(tokens) for name, tokens in budgets.items()]
        return seconds_of_all(each * self.workload.seeds, self.workers)

    def budgets(self, seconds: float, spent: float = 0.0) -> dict[str, float]:
        """Tokens for each contender such that search and training end within `seconds`, of which `spent` are gone."""
        least, slack = self._budgets(self._least), TIMED_SLACK
        takes = slack * (self.searching(least) + self.training(least)) + LAST_SECONDS
        if takes > seconds - spent:
            count = len(self.contenders)
            raise UserError(
                f"{duration(seconds)} are too short for {count} architecture{'s' * (count > 1)} of "
                f"{self.workload.seeds} seed{'s' * (self.workload.seeds > 1)}: the shortest comparison takes about "
                f"{duration(takes + spent)} here. Give more --time, fewer architectures or --seeds, a smaller --batch, "
                "or smaller models."
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


def weights(
    contenders: Sequence[Contender], course: Course, equal: str, seconds_per_token: Mapping[str, float]
) -> dict[str, float]:
    """How many tokens each contender gets, relative to the one that gets most."""
    require_equal(equal)
    seq_len = course.recipe.seq_len
    cost = {
        "tokens": {c.name: 1.0 for c in contenders},
        "flops": {c.name: c.flops_per_token(seq_len) for c in contenders},
        "time": {c.name: seconds_per_token.get(c.name, math.nan) for c in contenders},
    }[equal]
    return {name: min(cost.values()) / each for name, each in cost.items()}


def require_equal(equal: str) -> None:
    if equal not in EQUAL:
        raise UserError(f"--at {equal}: must be one of {', '.join(EQUAL)}.{did_you_mean(equal, EQUAL)}")


def rungs(tokens: float, course: Course) -> list[int]:
    """Steps at which the learning curve of a budget is measured; the last is the whole budget."""
    steps = course.steps(tokens)
    return sorted({max(4, round(share * steps)) for share in SHARES})
