"""Learning rates: an architecture judged at a bad one is judged wrongly, so each is judged at one that suits it.

The usual rate falls with the width. A search trains one seed at half, once and twice that, to an eighth of the budget
and at least 96 steps, and, where the best is at the edge, one further; the best is used for the whole budget. That is
the rule by which rates transfer here: of 29 architectures, the best after 128 steps cost 0.002 nats on average at four
times as many; judged after fewer than 100 steps, too large rates win and cost 0.03 to 0.06 (benchmarks/results).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plait.racing.contenders import Contender
from plait.racing.leg import Course, Leg, loss_of
from plait.racing.workers import Workers, seconds_of_all
from plait.training.track import Replica

FACTORS = (0.5, 1.0, 2.0)  # of the usual rate
FURTHER = 2  # times that the search may go on beyond its edge
RATE_SHARE = 1 / 8  # of a budget, after which the rate is chosen
RATE_STEPS = 96  # at least, before a rate is judged
USUAL_WIDTH, WIDEST = 128, 2.0  # at which the recipe's rate is meant, and how many times it narrow models may have


def usual_rate(contender: Contender, course: Course) -> float:
    """Where a search begins, and the rate where none is made: the recipe's at a width of 128, falling as 1 / width
    (Yang et al. 2022, arXiv:2203.03466, for matrices under Adam)."""
    return course.recipe.lr * min(WIDEST, USUAL_WIDTH / contender.arch.header.d)


def rate_steps(tokens: float, course: Course) -> int:
    """After which the learning rate of a budget is chosen."""
    steps = course.steps(tokens)
    return max(min(steps, RATE_STEPS), round(RATE_SHARE * steps))


def stacks(replicas: Sequence[Replica], course: Course) -> list[tuple[Replica, ...]]:
    """Which replicas are trained as one: all on a GPU, where that is faster; each alone on a CPU, where workers are."""
    alone = course.device == "cpu" or not replicas
    return [(replica,) for replica in replicas] if alone else [tuple(replicas)]


@dataclass(frozen=True)
class Search:
    """Of learning rates. `losses`: of each contender, rate → loss after `steps`; `each`: seconds of a training."""

    losses: dict[str, dict[float, float]]
    steps: dict[str, int]
    each: dict[str, float]
    seconds: float  # of all, with the workers there are


def search_rates(
    contenders: Sequence[Contender],
    steps: Mapping[str, int],
    usual: Mapping[str, float],
    pool: Workers,
    runs: Path,
    further: int = FURTHER,
    on_share: Callable[[float], object] = lambda share: None,
) -> Search:
    """Rates of each contender around its `usual` one, after so many `steps` of one seed; up to so many `further` ones
    where the best is at the edge."""
    course = pool.course
    losses: dict[str, dict[float, float]] = {c.name: {} for c in contenders}
    wanted = {c.name: [factor * usual[c.name] for factor in FACTORS] for c in contenders}
    took: dict[str, list[float]] = {c.name: [] for c in contenders}
    seconds = 0.0
    for round_ in range(1 + further):
        asked = [(c, stack) for c in contenders for stack in stacks([Replica(lr, 0) for lr in wanted[c.name]], course)]
        legs = [Leg(course, c.arch, stack, (steps[c.name],), runs) for c, stack in asked]
        if not legs:
            break
        begun = 0.0 if round_ == 0 else 1.0
        found = pool.run(legs, partial(_tell, on_share, begun))
        for (c, stack), (records,) in zip(asked, found, strict=True):
            for replica, record in zip(stack, records, strict=True):
                losses[c.name][replica.lr] = loss_of(record)
                took[c.name].append(float(record.result["seconds"]))
        seconds += seconds_of_all([sum(float(r.result["seconds"]) for r in leg[0]) for leg in found], pool.workers)
        wanted = {c.name: _beyond(losses[c.name]) for c in contenders}
    return Search(losses, dict(steps), {name: sum(each) / len(each) for name, each in took.items()}, seconds)


def _tell(on_share: Callable[[float], object], begun: float, done: float, total: float) -> None:
    on_share(begun or done / total)


def _beyond(losses: Mapping[float, float]) -> list[float]:
    """The next rate, where the best is at the edge."""
    best, rates = best_rate(losses, math.nan), sorted(losses)
    if not math.isfinite(losses.get(best, math.inf)):
        return [rates[0] / 2]  # all diverged
    return [rates[0] / 2] if best == rates[0] else [rates[-1] * 2] if best == rates[-1] else []


def best_rate(losses: Mapping[float, float], usual: float) -> float:
    """Of equally good ones the smaller; the usual one where none was searched."""
    return min(sorted(losses), key=lambda lr: losses[lr]) if losses else usual
