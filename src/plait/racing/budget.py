"""How far each contender is trained: equal tokens, FLOPs or time, and what a whole comparison then takes.

A comparison in a given time is planned before it begins, from a few timed steps of every contender; the plan is kept,
so that a comparison that was interrupted goes on to the same end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.core.errors import UserError
from plait.core.units import duration
from plait.racing.contenders import Contender
from plait.racing.leg import Course

EQUAL = ("tokens", "flops", "time")
SHARES = tuple(2.0**-k for k in range(4, -1, -1))  # of a budget, at which a learning curve is taken
RATE_SHARE = 1 / 8  # of a budget, after which the learning rate is chosen
SCORING = 1 / 3  # a token that is scored, in trained ones
SLACK = 1.12  # workers do not all end at once, and processes have to start
LEAST_STEPS = 64  # of a budget: its sixteenth would be no training
RATE_STEPS = 32  # at least, before a rate is judged: in fewer, the largest that does not diverge always wins


@dataclass(frozen=True)
class Workload:
    """What is trained of each contender."""

    seeds: int
    rates: int
    decay: float
    held_out: int

    def tokens(self, budget: float, course: Course) -> float:
        """Trained, or as good as, for one contender."""
        curve = (1 - self.decay) + self.decay * sum(SHARES)
        # The rate that wins is gone on with, but one more may be asked for.
        searched = self.rates * rate_steps(budget, course) * course.tokens_per_step if self.rates > 1 else 0.0
        scored = SCORING * self.held_out * (len(SHARES) * self.seeds + (self.rates if self.rates > 1 else 0))
        return self.seeds * curve * budget + searched + scored


def budgets_in(
    seconds: float,
    contenders: Sequence[Contender],
    seconds_per_token: Mapping[str, float],
    workload: Workload,
    course: Course,
    *,
    equal: str = "tokens",
    workers: int = 1,
) -> dict[str, float]:
    """Tokens for each contender so that everything ends in time."""
    weight = weights(contenders, course, equal, seconds_per_token)

    def takes(unit: float) -> float:
        each = (seconds_per_token[c.name] * workload.tokens(unit * weight[c.name], course) for c in contenders)
        return SLACK * sum(each) / workers

    least = LEAST_STEPS * course.tokens_per_step / min(weight.values())
    if takes(least) > seconds:
        raise UserError(
            f"{duration(seconds)} are too short for {len(contenders)} architectures of {workload.seeds} seeds: the "
            f"shortest comparison takes about {duration(takes(least))} here. Give more --time, fewer architectures or "
            "--seeds, a smaller --batch, or smaller models."
        )
    low, high = least, least
    while takes(high) < seconds:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if takes(middle) < seconds else (low, middle)
    return {name: low * share for name, share in weight.items()}


def weights(
    contenders: Sequence[Contender], course: Course, equal: str, seconds_per_token: Mapping[str, float]
) -> dict[str, float]:
    """Tokens of each contender, relative to each other."""
    if equal not in EQUAL:
        raise UserError(f"--at {equal}: must be one of {', '.join(EQUAL)}.")
    seq_len = course.recipe.seq_len
    cost = {
        "tokens": {c.name: 1.0 for c in contenders},
        "flops": {c.name: c.flops_per_token(seq_len) for c in contenders},
        "time": {c.name: seconds_per_token.get(c.name, math.nan) for c in contenders},
    }[equal]
    return {name: min(cost.values()) / each for name, each in cost.items()}


def rate_steps(tokens: float, course: Course) -> int:
    """After which the learning rate of a budget is chosen."""
    steps = course.steps(tokens)
    return max(min(steps, RATE_STEPS), round(RATE_SHARE * steps))


def rungs(tokens: float, course: Course) -> list[int]:
    """Steps at which the learning curve of a budget is taken, the whole budget last."""
    steps = course.steps(tokens)
    return sorted({max(4, round(share * steps)) for share in SHARES})
