"""The race: candidates train in rounds of growing budgets, and further training goes where it is most informative.

After every round each learning curve is extrapolated to the target budget, with its uncertainty
(`analysis.learning_curve`). Candidates with a negligible probability of being best there are stopped, and a policy
chooses which ones continue (`analysis.race_policy`; its defaults performed best on complete trainings, see
`benchmarks/verdict.py`). Trainings are paused and resumed, never repeated. The result depends only on the losses and on
speeds that are measured once and stored, so a race that was killed resumes with the same decisions.

If the race is long enough and the cost limit allows it, a screening (`screening`) comes first: training for all steps
with a fraction of their tokens. All candidates then train to the first rung only, which determines the loss level of
the text.

Learning rates: each candidate's is chosen among three at the first rung that has enough steps to compare them, if the
cost limit allows it; otherwise each trains at the default rate for its width (`rates`). If the best of the three is the
smallest or the largest, the next one beyond it is tried as well: among the reference architectures, those with
attention did best at half the default rate, and may do better below it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from plait.analysis.curve_library import Known
from plait.analysis.forecast import Forecast, Foresight, Prediction, foresee
from plait.analysis.learning_curve import CALIBRATION, WAY, extrapolate
from plait.analysis.race_policy import POLICY, Decision, RaceState, decide
from plait.core.errors import UserError
from plait.model.architecture import Architecture
from plait.model.reference_curves import library_text, reference_known
from plait.racing.budget import SCORING
from plait.racing.contenders import Contender
from plait.racing.leg import Course, Leg, loss_of
from plait.racing.rates import FACTORS, FURTHER, RATE_STEPS, best_rate, search_rates, usual_rate
from plait.racing.screening import (
    AT_MOST,
    FEWEST_STEPS,
    known_after,
    screening_course,
    screening_rate,
    too_dear,
    too_short,
    unlike_library,
)
from plait.racing.workers import Workers
from plait.records import Record
from plait.training.track import Replica

SPEED = "race-speed"
PROTOCOL = 1
DOUBLINGS = 7  # largest number, from the first rung to the target
FIRST_STEPS = 16  # fewest steps of the first rung
RATES_AT_MOST = 0.35  # largest fraction of the race's cost for a rate search; otherwise there is none
BEYOND_AT_MOST = 0.55  # the same including rates beyond the first three; always enough for one of them
SLACK = 1.25  # margin for workers that wait for the last training of a round
REACH = 4.0  # how far beyond the target foresight goes, in multiples of it

#: Called with the name of the stage and the share of the race that is done, from 0 to 1.
OnStage = Callable[[str, float], object]


@dataclass(frozen=True)
class Raced:
    """A finished race. `records`: those of every candidate, by rung. `cost`: as a fraction of training all candidates
    to the target, including the rate search."""

    course: Course
    contenders: list[Contender]
    rungs: list[int]  # steps
    rates: dict[str, float]
    searched: bool  # whether learning rates were searched
    screened: dict[str, Record]  # screenings by candidate; empty if there was none
    records: dict[str, list[list[Record]]]
    decision: Decision
    cost: float
    seconds: float
    slowdown: float = 1.0  # of the last round: seconds relative to those expected from the timing before it
    unscreened: str = ""  # why there was no screening; empty if there was one

    @property
    def slowed(self) -> bool:
        """Whether the race was cut short because trainings took longer than the slack allows for."""
        return self.slowdown > SLACK

    @property
    def target(self) -> int:
        """The target budget in tokens."""
        return self.rungs[-1] * self.course.tokens_per_step

    @cached_property
    def known(self) -> Known:
        return known_of(self.course, self.contenders, self.screened)

    @property
    def reach(self) -> float:
        """The largest budget, in tokens, for which forecasts are valid. A screening trains for all steps of the target,
        and its forecasts were validated on trainings to the target (`benchmarks/verdict.py`)."""
        return max(CALIBRATION.reach * self.longest, self.target if self.known.tested else 0.0)

    @property
    def longest(self) -> float:
        """Tokens of the longest training."""
        return max(float(at[0].result["tokens"]) for records in self.records.values() for at in records)

    @property
    def starved(self) -> bool:
        """Whether no candidate trained far beyond its warm-up."""
        return self.course.starved(self.longest)

    @property
    def observations(self) -> dict[str, dict[int, list[tuple[float, float]]]]:
        return observed(self.records)

    @cached_property
    def forecast(self) -> Forecast:
        """Losses at every rung, and beyond the target as far as the observed curves allow."""
        budgets = [float(steps * self.course.tokens_per_step) for steps in self.rungs]
        budgets += [budgets[-1] * 2**k for k in range(1, int(math.log2(REACH)) + 1)]
        spoken_for = [tokens for tokens in budgets if tokens <= self.reach]
        return self._extrapolate(spoken_for)

    def _extrapolate(self, budgets: Sequence[float]) -> Forecast:
        forecast = extrapolate(self.observations, budgets, WAY, reach=self.reach / self.longest, known=self.known)
        return replace(forecast, blind=True) if self.starved else forecast

    def prediction_at(self, tokens: Mapping[str, float]) -> Prediction:
        """Every candidate's loss at its own number of tokens, for budgets of equal time or equal FLOPs."""
        budgets = sorted(set(tokens.values()))
        forecast = self._extrapolate(budgets)
        places = [budgets.index(tokens[name]) for name in forecast.names]
        loss_DC = forecast.loss_DBC[:, places, range(len(places))]
        shift_DC = None if forecast.shift_DB is None else forecast.shift_DB[:, places]
        last = forecast.at(max(budgets))
        return Prediction(forecast.names, last.tokens, loss_DC, forecast.noise, last.blind, shift_DC)

    @cached_property
    def foresight(self) -> Foresight | None:
        return foresee(self.forecast) if len(self.contenders) > 1 else None


def known_of(course: Course, contenders: Sequence[Contender], screened: Mapping[str, Record]) -> Known:
    """Prior knowledge about these candidates from the library of complete learning curves and from their screenings."""
    archs = {c.name: c.arch for c in contenders}
    known = known_after(contenders, screened) if screened else reference_known(archs)
    data = course.data if course.tokenizer is None else ""
    return replace(known, text=library_text(data, course.tokens_per_step, archs))


def observed(records: Mapping[str, Sequence[Sequence[Record]]]) -> dict[str, dict[int, list[tuple[float, float]]]]:
    """Learning curves: name → seed → [(tokens, loss)]."""
    curves: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for name, by_rung in records.items():
        for at_rung in by_rung:
            for record in at_rung:
                curve = curves.setdefault(name, {}).setdefault(int(record.config["seed"]), [])
                curve.append((float(record.result["tokens"]), loss_of(record)))
    return curves


def race(
    contenders: Sequence[Contender],
    target: float,
    pool: Workers,
    runs: Path,
    *,
    speed: Mapping[str, float],
    seconds: float | None = None,
    limit: float = 0.1,
    rates: Mapping[str, float] | None = None,
    on_stage: OnStage = lambda stage, share: None,
) -> Raced:
    """Race to `target` tokens at `limit` times the cost of training all candidates to it, or, if `seconds` is given,
    within that time. `speed`: seconds per token of each candidate, from `speeds`. If `rates` is given, there is no rate
    search."""
    if not contenders:
        raise UserError("a race needs a candidate.")
    began, course, rungs = time.perf_counter(), pool.course, rungs_to(target, pool.course)
    if seconds is not None:
        scoring = SCORING * course.held_out * sum(speed.values()) * len(rungs)
        whole = sum(speed[c.name] for c in contenders) * rungs[-1] * course.tokens_per_step
        limit = max(0.0, seconds * pool.workers / SLACK - scoring) / whole
    race_ = _Race(list(contenders), rungs, speed, limit, pool, runs, on_stage, timed=seconds is not None)
    if rates is not None:
        race_.rates = dict(rates)
    else:
        race_.search_rates()
    race_.screen()
    decision = race_.run()
    return Raced(
        course, list(contenders), rungs, race_.rates, race_.searched, race_.screened, race_.records, decision,
        limit - race_.state.limit + race_.state.spent / race_.state.whole, time.perf_counter() - began, race_.slowdown,
        race_.unscreened,
    )  # fmt: skip


def rungs_to(target: float, course: Course) -> list[int]:
    """Numbers of steps, doubling up to the target's."""
    steps = course.steps(target)
    doublings = max(2, min(DOUBLINGS, int(math.log2(max(1.0, steps / FIRST_STEPS)))))
    return sorted({max(4, round(steps / 2**k)) for k in range(doublings + 1)})


def speeds(
    contenders: Sequence[Contender], pool: Workers, course: Course | None = None, most: float | None = None
) -> dict[str, float]:
    """Seconds per token of each candidate, timed with all workers busy for about `most` seconds; stored, so that a
    resumed race makes the same plan."""
    course = course or pool.course
    config = {
        "protocol": PROTOCOL,
        "architectures": [c.arch.identity() for c in contenders],
        "course": {**course.config(contenders[0].arch, Replica(course.recipe.lr, 0), None), "spec": ""},
        "workers": pool.workers,
    }

    def timed() -> dict[str, list[float]]:
        seconds = pool.step_seconds([c.arch for c in contenders], course, most)
        return {"seconds_per_token": [took / course.tokens_per_step for took in seconds]}

    known = pool.store.computed(SPEED, config, timed)
    return dict(zip([c.name for c in contenders], known.result["seconds_per_token"], strict=True))


class _Race:
    """A race in progress."""

    def __init__(
        self,
        contenders: list[Contender],
        rungs: list[int],
        speed: Mapping[str, float],
        limit: float,
        pool: Workers,
        runs: Path,
        on_stage: OnStage,
        timed: bool = False,
    ) -> None:
        """`timed`: the cost limit represents a time limit, so it is lowered if trainings take longer than `speed`
        predicts."""
        course = pool.course
        self.contenders, self.course, self.rungs, self.pool, self.runs = contenders, course, rungs, pool, runs
        self.on_stage, self.timed = on_stage, timed
        self.taken, self.slowdown = 0.0, 1.0  # seconds of all trainings; actual over expected seconds of the last round
        self.rates = {c.name: usual_rate(c, course) for c in contenders}
        self.searched = False
        self.searched_at: tuple[int, dict[str, Record]] = 0, {}  # rungs up to the rate search; its best trainings
        self.screened: dict[str, Record] = {}
        self.unscreened = ""
        self.records: dict[str, list[list[Record]]] = {c.name: [] for c in contenders}
        budgets = [float(steps * course.tokens_per_step) for steps in rungs]
        reached = {c.name: 0 for c in contenders}
        self.state = RaceState(budgets, reached, speed, limit, course.recipe.decay, batch=max(1, pool.workers))

    def search_rates(self) -> None:
        """Compare learning rates at an early rung with one seed. The best training continues; the cost of the others
        counts towards the limit."""
        enough = [steps for steps in self.rungs[:-1] if steps >= RATE_STEPS]
        share = enough[0] / self.rungs[-1] if enough else math.inf
        if (len(FACTORS) - 1) * share > RATES_AT_MOST * self.state.limit:
            return
        steps = {c.name: enough[0] for c in self.contenders}
        further = min(FURTHER, int(BEYOND_AT_MOST * self.state.limit / share) - (len(FACTORS) - 1))
        search = search_rates(
            self.contenders, steps, self.rates, self.pool, self.runs, further,
            on_share=lambda done: self._report("learning rates"),
        )  # fmt: skip
        self.rates = {name: best_rate(losses, self.rates[name]) for name, losses in search.losses.items()}
        self.searched = True
        best = {name: records[self.rates[name]] for name, records in search.records.items()}
        self.searched_at = self.rungs.index(enough[0]) + 1, best
        cost = self.state.cost
        spent = sum((len(losses) - 1) * share * cost[name] for name, losses in search.losses.items())
        expected = (
            sum(len(losses) * share * cost[name] for name, losses in search.losses.items()) * self.state.rungs[-1]
        )
        self.taken += max(0.0, search.seconds * self.pool.workers - SLACK * expected)  # beyond the allowance
        self.state = replace(self.state, limit=self.state.limit - spent / sum(cost.values()))

    def screen(self) -> None:
        """Train every candidate for all steps with a fraction of their tokens, in cases for which this was validated;
        otherwise `unscreened` says why not."""
        steps, names = self.rungs[-1], [c.name for c in self.contenders]
        course = screening_course(self.course, steps)
        known = reference_known({c.name: c.arch for c in self.contenders})
        share, most = course.tokens_per_step / self.course.tokens_per_step, AT_MOST * self.state.limit
        if len(names) < 2:
            self.unscreened = "there is only one candidate"
        elif steps < FEWEST_STEPS:
            self.unscreened = too_short(steps, FEWEST_STEPS * self.course.tokens_per_step)
        elif not known.speaks_of(names):
            self.unscreened = unlike_library([c.arch for c in self.contenders], known.library)
        elif share > most:
            self.unscreened = too_dear(share, most)
        if self.unscreened:
            return
        # Small steps may take longer per token, on a GPU much longer, so their real cost is measured.
        speed, cost = speeds(self.contenders, self.pool, course), self.state.cost
        share *= sum(speed.values()) / sum(cost.values())
        if share > most:
            self.unscreened = too_dear(share, most)
            return
        rates = {name: screening_rate(rate, self.course) for name, rate in self.rates.items()}
        legs = [Leg(course, c.arch, (Replica(rates[c.name], 0),), (steps,), self.runs) for c in self.contenders]
        trained = self.pool.run(legs, lambda done, total: self.on_stage("screening", share * done / total))
        self.screened = {c.name: record for c, ((record,),) in zip(self.contenders, trained, strict=True)}
        self.state = replace(self.state, screening=share)

    def run(self) -> Decision:
        archs = {c.name: c.arch for c in self.contenders}
        known = known_of(self.course, self.contenders, self.screened)
        while True:
            seen = {name: records for name, records in self.records.items() if records}
            decision = decide(self._in_time(), observed(seen), POLICY, WAY, known=known)
            if not decision.train and self._take_searched(decision):
                continue
            if not decision.train:
                return decision
            legs = [self._next_leg(name, archs[name]) for name in decision.train]
            cost = sum(self.state.cost_of(name) for name in decision.train)
            trained = self.pool.run(legs, partial(self._report_round, cost))
            for name, (records,) in zip(decision.train, trained, strict=True):
                self.records[name].append(records)
            self._note_slowdown({name: records for name, (records,) in zip(decision.train, trained, strict=True)})
            reached = {name: count + (name in decision.train) for name, count in self.state.reached.items()}
            self.state = replace(self.state, reached=reached)
            self._report("racing")

    def _take_searched(self, decision: Decision) -> bool:
        """Use the trainings of the rate search if time ran out before its rung: they tell more than the first rungs and
        have been paid for. Returns whether there were any."""
        rungs, best = self.searched_at
        later = [name for name in best if self.state.reached[name] < rungs and name not in decision.stopped]
        if not (self.timed and self.slowdown > SLACK and later):
            return False
        for name in later:
            self.records[name].append([best[name]])
        self.state = replace(self.state, reached={**self.state.reached, **dict.fromkeys(later, rungs)})
        return True

    def _note_slowdown(self, round_: Mapping[str, Sequence[Record]]) -> None:
        """Computed from the records alone, so that a killed race resumes with the same decisions."""
        cost, scoring = self.state.cost, SCORING * self.course.held_out
        results = [(name, record.result) for name, records in round_.items() for record in records]
        taken = sum(float(result["seconds"]) for _, result in results)
        self.slowdown = taken / sum(
            cost[name] * (float(result["tokens_trained"]) + scoring) for name, result in results
        )
        self.taken += taken - sum(cost[name] * scoring for name, _ in results)

    def _in_time(self) -> RaceState:
        """The state, with a lower cost limit if trainings are so much slower than expected that the rest would miss the
        deadline."""
        state = self.state
        if not self.timed or self.slowdown <= SLACK:
            return state
        left = max(0.0, SLACK * (state.limit - state.screening) * state.whole - self.taken)
        return replace(state, limit=min(state.limit, (state.spent + left / self.slowdown) / state.whole))

    def _next_leg(self, name: str, arch: Architecture) -> Leg:
        """The leg from the current rung to the next one."""
        rungs = [0, *self.rungs]
        after, steps = rungs[self.state.reached[name] :][:2]
        return Leg(self.course, arch, (Replica(self.rates[name], 0),), (steps,), self.runs, after)

    def _report_round(self, cost: float, done: float, total: float) -> None:
        self._report("racing", cost * done / total)

    def _report(self, stage: str, more: float = 0.0) -> None:
        """Report progress. `more`: cost spent so far in the current round."""
        limit = self.state.limit * self.state.whole
        self.on_stage(stage, min(1.0, (self.state.spent + more) / limit) if limit else 1.0)
