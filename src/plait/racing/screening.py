"""Screening: before a race, every candidate is trained shortly with a small batch.

A race that may spend a tenth of the cost of training everybody sees only the first steps of each training, before
anybody has learnt to copy from the context, and that decides who wins in the end. A small batch takes more steps with
the same tokens. On complete trainings of 29 architectures (`benchmarks/results/2026-11-17-screening.md`) its loss told
more about the final ranking than the usual batch's after as many tokens. The library of learning curves that comes with
plait holds screenings of its architectures, so that a candidate's own is one more observation (`Known.screened`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plait.analysis.curve_library import Known
from plait.racing.contenders import Contender
from plait.racing.leg import Course, Leg
from plait.training.track import Replica

SMALLER = 4  # the batch is divided by this
SHARE = 1 / 16  # of the target's tokens
RATE = 0.5  # of the learning rate: the square root of the batch's share (Malladi et al. 2022, arXiv:2205.10287)
MOST = 0.7  # of the limit on a race's cost
FAR = 1.5  # how far outside of the library's screenings a screening may be, as a ratio of tokens


@dataclass(frozen=True)
class Screening:
    """What is trained of every candidate: `steps` of a course with a small batch. `cost`: the share of training all
    to the target."""

    course: Course
    steps: int
    cost: float

    @property
    def tokens(self) -> int:
        return self.steps * self.course.tokens_per_step

    def legs(self, contenders: Sequence[Contender], rates: Mapping[str, float], runs: Path) -> list[Leg]:
        """One training of each candidate, at a rate for the small batch."""
        return [Leg(self.course, c.arch, (Replica(RATE * rates[c.name], 0),), (self.steps,), runs) for c in contenders]


def small_batch_course(course: Course) -> Course | None:
    """The course with a smaller batch; None if the batch cannot be divided."""
    batch, rest = divmod(course.recipe.batch, SMALLER)
    return None if rest or not batch else replace(course, recipe=replace(course.recipe, batch=batch))


def can_screen(known: Known, names: Sequence[str], target: float) -> bool:
    """Whether the library has screenings of about that length, and speaks of these candidates."""
    budgets = known.library.screen_budgets
    if not budgets or len(names) < 2 or not known.speaks_of(names):
        return False
    return min(budgets) / FAR <= SHARE * target <= FAR * max(budgets)


def plan_screening(
    course: Course, target: float, speed: Mapping[str, float], small_speed: Mapping[str, float], limit: float
) -> Screening | None:
    """The screening for a target (tokens); None if it would take more than `MOST` of the limit. `speed`: seconds per
    token of each candidate, `small_speed`: with the small batch of `course`."""
    steps = course.steps(SHARE * target)
    tokens = steps * course.tokens_per_step
    cost = tokens * sum(small_speed.values()) / (target * sum(speed.values()))
    return Screening(course, steps, cost) if cost <= MOST * limit else None
