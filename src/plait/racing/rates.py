"""A learning rate for every architecture, because one trained at a bad rate is judged unfairly.

The default rate decreases with the width. A search trains one seed at half, one and two times the default rate, for an
eighth of the budget and at least 96 steps. If the best rate is the smallest or the largest tried, the next one beyond
it is tried too. The best rate is then used for the whole budget. This transfers well: for 29 architectures, the rate
that was best after 128 steps lost 0.002 nats on average after 512 steps. After fewer than 100 steps, rates that are too
large look best, which costs 0.03 to 0.06 nats (benchmarks/results).
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
from plait.records import Record
from plait.training.track import Replica

FACTORS = (0.5, 1.0, 2.0)  # of the default rate
FURTHER = 2  # rates that a search may try beyond its range
RATE_SHARE = 1 / 8  # the rate is chosen after this fraction of the budget
RATE_STEPS = 96  # fewest steps after which rates are compared
USUAL_WIDTH, WIDEST = 128, 2.0  # the width that the recipe's rate is for; narrower models get at most twice that rate


def usual_rate(contender: Contender, course: Course) -> float:
    """The rate used without a search, and the middle of a search: the recipe's at width 128, falling as 1 / width
    (Yang et al. 2022, arXiv:2203.03466, for matrices under Adam)."""
    return course.recipe.lr * min(WIDEST, USUAL_WIDTH / contender.arch.header.d)


def rate_steps(tokens: float, course: Course) -> int:
    """Steps after which the learning rate of a budget is chosen."""
    steps = course.steps(tokens)
    return max(min(steps, RATE_STEPS), round(RATE_SHARE * steps))


def stacks(replicas: Sequence[Replica], course: Course) -> list[tuple[Replica, ...]]:
    """Groups of replicas that train as one stack: all of them on a GPU, where stacking is faster; single replicas on a
    CPU, where workers run in parallel."""
    alone = course.device == "cpu" or not replicas
    return [(replica,) for replica in replicas] if alone else [tuple(replicas)]


@dataclass(frozen=True)
class Search:
    """The result of a search. `records`, `losses`: for each contender, rate → its training of `steps` and the loss
    after it. `each`: mean seconds per training."""

    records: dict[str, dict[float, Record]]
    losses: dict[str, dict[float, float]]
    steps: dict[str, int]
    each: dict[str, float]
    seconds: float  # of the whole search with these workers


def search_rates(
    contenders: Sequence[Contender],
    steps: Mapping[str, int],
    usual: Mapping[str, float],
    pool: Workers,
    runs: Path,
    further: int = FURTHER,
    on_share: Callable[[float], object] = lambda share: None,
) -> Search:
    """Try rates around each contender's `usual` (default) one, training one seed for `steps`; while the best rate is
    the smallest or largest tried, try the next one, at most `further` times."""
    course = pool.course
    trainings: dict[str, dict[float, Record]] = {c.name: {} for c in contenders}
    losses: dict[str, dict[float, float]] = {c.name: {} for c in contenders}
    wanted = {c.name: [factor * usual[c.name] for factor in FACTORS] for c in contenders}
    took: dict[str, list[float]] = {c.name: [] for c in contenders}
    seconds = 0.0
    for round_ in range(1 + further):
        asked = [(c, stack) for c in contenders for stack in stacks([Replica(lr, 0) for lr in wanted[c.name]], course)]
        legs = [Leg(course, c.arch, stack, (steps[c.name],), runs) for c, stack in asked]
        if not legs:
            break
        first = len(FACTORS) / (len(FACTORS) + 1)  # fraction of the search that is its first round
        begin, end = [(0.0, first), (first, 1.0), (1.0, 1.0)][min(round_, 2)]
        trained = pool.run(legs, partial(_report_share, on_share, begin, end))
        for (c, stack), (records,) in zip(asked, trained, strict=True):
            for replica, record in zip(stack, records, strict=True):
                trainings[c.name][replica.lr] = record
                losses[c.name][replica.lr] = loss_of(record)
                took[c.name].append(float(record.result["seconds"]))
        seconds += seconds_of_all([sum(float(r.result["seconds"]) for r in leg[0]) for leg in trained], pool.workers)
        wanted = {c.name: _rates_beyond(losses[c.name]) for c in contenders}
    return Search(
        trainings, losses, dict(steps), {name: sum(times) / len(times) for name, times in took.items()}, seconds
    )


def _report_share(on_share: Callable[[float], object], begin: float, end: float, done: float, total: float) -> None:
    on_share(begin + (end - begin) * done / total)


def _rates_beyond(losses: Mapping[float, float]) -> list[float]:
    """The next rate to try if the best is the smallest or the largest so far; empty otherwise."""
    best, rates = best_rate(losses, math.nan), sorted(losses)
    if not math.isfinite(losses.get(best, math.inf)):
        return [rates[0] / 2]  # all diverged
    return [rates[0] / 2] if best == rates[0] else [rates[-1] * 2] if best == rates[-1] else []


def best_rate(losses: Mapping[float, float], usual: float) -> float:
    """The rate with the lowest loss (the smaller of equally good ones), or `usual` if no rate was tried."""
    return min(sorted(losses), key=lambda lr: losses[lr]) if losses else usual
