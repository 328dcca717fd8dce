"""Compare architectures by training them: same text, same batches, same held-out windows, several seeds, each at a
learning rate that suits it.

1. Learning rates: one seed at a few rates around the default one, for an eighth of the budget (`rates`).
2. Training: every seed to the full budget; branches with a decayed learning rate give the points of the learning curve.
   With a time limit, budgets are adapted to the machine's speed as training proceeds (`planning`).
3. Verdict: paired differences over seeds and windows (`analysis.paired`), and the best architecture at other budgets
   (`analysis.forecast`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from plait.analysis.forecast import Foresight, foresee
from plait.analysis.learning_curve import CALIBRATION, extrapolate
from plait.analysis.paired import Compared, compare_losses
from plait.model.reference_curves import reference_known
from plait.model.user_mixers import sources_of
from plait.racing.contenders import Contender
from plait.racing.leg import Course, loss_of, windows_of
from plait.racing.planning import Planner, Terms, train_in_stages
from plait.racing.rates import best_rate, rate_steps, search_rates, usual_rate
from plait.racing.workers import Workers
from plait.records import Record, Store
from plait.workers.pool import Place

REACH = 8.0  # how far foresight goes, in multiples of the longest training

#: Called with the name of the stage and the share of the work that is done, from 0 to 1.
OnStage = Callable[[str, float], object]


@dataclass(frozen=True)
class Row:
    contender: Contender
    lr: float
    tokens: int
    records: list[list[Record]]  # by budget and seed
    rates: dict[float, float]  # the search: rate → loss

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The learning curve: (tokens, mean loss of the seeds that did not diverge)."""
        curve = []
        for at_budget in self.records:
            losses = [loss for loss in map(loss_of, at_budget) if math.isfinite(loss)]
            curve.append((int(at_budget[0].result["tokens"]), sum(losses) / len(losses) if losses else math.inf))
        return curve


@dataclass(frozen=True)
class Comparison:
    course: Course
    terms: Terms
    rows: list[Row]
    seconds: float  # of this call
    trained_seconds: float  # of all trainings, including those reused from the store

    @cached_property
    def compared(self) -> Compared:
        last = {row.contender.name: row.records[-1] for row in self.rows}
        count = max(1, *(len(record.result["windows"]) for records in last.values() for record in records))
        return compare_losses(
            {
                name: {seed: windows_of(record, count) for seed, record in enumerate(records)}
                for name, records in last.items()
            }
        )

    @cached_property
    def foresight(self) -> Foresight | None:
        """The best architecture at each budget, from the shortest observed one beyond the warm-up to `REACH` times the
        longest. None if budgets are not equal in tokens, fewer than two contenders have a finite loss, or none trained
        beyond the warm-up."""
        observations = {
            row.contender.name: {
                seed: [(at[seed].result["tokens"], loss_of(at[seed])) for at in row.records]
                for seed in range(self.terms.seeds)
            }
            for row in self.rows
            if all(math.isfinite(loss) for _, loss in row.curve)
        }
        if len(observations) < 2 or self.terms.equal != "tokens":
            return None
        budgets = [float(tokens) for tokens, _ in self.rows[0].curve if not self.course.starved(tokens)]
        if not budgets:
            return None
        longest = budgets[-1]
        budgets += [longest * 2**k for k in range(1, int(math.log2(min(REACH, CALIBRATION.reach))) + 1)]
        archs = {row.contender.name: row.contender.arch for row in self.rows if row.contender.name in observations}
        return foresee(extrapolate(observations, budgets, known=reference_known(archs)))


def compare(
    contenders: Sequence[Contender],
    course: Course,
    terms: Terms,
    store: Store,
    runs: Path,
    *,
    place: Place = Place(),  # noqa: B008 (a frozen value)
    log: tuple[str, ...] = (),
    on_stage: OnStage = lambda stage, share: None,
    started: float | None = None,
) -> Comparison:
    """Train what is not in the store, and compare. `started`: the `time.perf_counter()` at which `terms.seconds`
    began."""
    began = time.perf_counter() if started is None else started
    with Workers(course, store, place, sources_of(c.arch for c in contenders), log) as pool:
        on_stage("timing", 0.0)
        plan = Planner(contenders, course, terms, store, pool, began)
        budgets = plan.first()
        rates: dict[str, dict[float, float]] = {c.name: {} for c in contenders}
        usual = {c.name: terms.lr or usual_rate(c, course) for c in contenders}
        share = searching_took = 0.0
        if plan.searches:
            share = plan.search_share(budgets)
            steps = {c.name: rate_steps(budgets[c.name], course) for c in contenders}

            def searching(done: float) -> None:
                on_stage(_stage_name("learning rates", pool), share * done)

            search = search_rates(contenders, steps, usual, pool, runs, on_share=searching)
            rates, budgets, searching_took = search.losses, plan.after(search), search.seconds
        chosen = {c.name: best_rate(rates[c.name], usual[c.name]) for c in contenders}
        by_name = train_in_stages(
            plan, budgets, chosen, searching_took, runs,
            on_share=lambda done: on_stage(_stage_name("training", pool), share + (1 - share) * done),
        )  # fmt: skip
    rows = [
        Row(c, chosen[c.name], int(by_name[c.name][-1][0].result["tokens"]), by_name[c.name], rates[c.name])
        for c in contenders
    ]
    trained = sum(float(r.result["seconds"]) for row in rows for at in row.records for r in at)
    return Comparison(course, terms, rows, time.perf_counter() - began, trained)


def _stage_name(stage: str, pool: Workers) -> str:
    return f"{stage} ({pool.where})" if pool.where else stage
