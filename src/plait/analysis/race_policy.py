"""Race policies: given the learning curves so far, which candidates continue training and which stop.

A race has rungs: increasing budgets, up to the target. At each rung the learning rate is decayed on a branch, which
gives one observed loss; training resumes from the state before the branch. After each round all curves are extrapolated
to the target (`learning_curve`), and a policy (`POLICIES`) chooses who trains to the next rung, until the cost limit is
reached or one candidate is best with probability `CERTAIN`:

    halving               successive halving (Jamieson and Talwalkar 2016): at each rung the half with the lower
                          forecast loss at the target continues; starts at the highest rung that fits into the limit
    top-two               top-two Thompson sampling (Russo 2016): of the winners of two draws, if they differ, the one
                          trained less
    knowledge-gradient    the largest expected decrease in the selected candidate's loss per cost (Frazier, Powell and
                          Dayanik 2008), looking several rungs ahead, since one rung alone may not change the selection

With every policy all candidates train to `LEAST` rungs. Then all but those with P(best) below `NEGLIGIBLE` continue to
the highest rung that costs at most the fraction `FIRST` of the limit (halving: to its first rung). After a screening
(`curve_screening`) one rung suffices: it shows the level of the losses on this text, and the screening predicts the
differences better. Nothing is trained here: `decide` is a pure function of the observations.

`replay` runs a race on complete learning curves: what a policy would have selected, at what cost, and how well. Every
architecture of the table is a candidate. The race observes one of its seeds; the truth is the mean over all seeds at
the last budget. A replay takes a second.

Letters: D draws, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from plait.analysis.curve_library import Known
from plait.analysis.curve_table import CurveTable
from plait.analysis.forecast import Forecast, Prediction
from plait.analysis.learning_curve import CALIBRATION, WAY, Calibration, Observations, extrapolate
from plait.analysis.pareto import Floats
from plait.analysis.rank import spearman
from plait.core.errors import UserError
from plait.core.units import probability

FIRST = 0.6  # fraction of the limit that the rounds of all candidates may cost
LEAST = 3  # rungs before a candidate may stop
NEGLIGIBLE = 0.01  # P(best) below which a candidate stops
CERTAIN = 0.99  # P(best) at which the race ends
POLICY = "knowledge-gradient"  # the lowest regret in the backtest; halving is close, and cheaper
POINTS = 15  # quantiles of the normal distribution over which a gain is averaged


@dataclass(frozen=True)
class RaceState:
    """`rungs`: budgets in tokens; the last is the target. `reached`: how many of them each candidate has completed.
    `cost`: of each candidate per token, in any unit. `limit`: on the cost of the race, as a fraction of training all to
    the target. `decay`: the fraction of a budget that is trained on its branch. `screening`: the cost of screening all,
    as the same fraction; 0 without a screening."""

    rungs: Sequence[float]
    reached: Mapping[str, int]
    cost: Mapping[str, float]
    limit: float
    decay: float = 0.2
    batch: int = 1  # candidates trained at once
    screening: float = 0.0

    @property
    def names(self) -> list[str]:
        return list(self.reached)

    @property
    def whole(self) -> float:
        """The cost of training all candidates to the target once, without branches."""
        return sum(self.cost[name] for name in self.names) * self.rungs[-1]

    @property
    def spent(self) -> float:
        raced = sum(self.cost_until(name, count) for name, count in self.reached.items())
        return raced + self.screening * self.whole

    @property
    def left(self) -> float:
        return self.limit * self.whole - self.spent

    def cost_until(self, name: str, count: int) -> float:
        """The cost of training one candidate to the `count`-th rung, with a branch at every rung."""
        if not count:
            return 0.0
        tokens = (1 - self.decay) * self.rungs[count - 1] + self.decay * sum(self.rungs[:count])
        return self.cost[name] * tokens

    def cost_of(self, name: str, rungs: int = 1) -> float:
        """The cost of training one candidate for so many more rungs."""
        return self.cost_until(name, self.reached[name] + rungs) - self.cost_until(name, self.reached[name])

    def common(self, share: float) -> int:
        """The largest number of rungs, at least one, that all can complete for this fraction of the limit."""
        fits = [
            count
            for count in range(1, len(self.rungs) + 1)
            if sum(self.cost_until(name, count) for name in self.names) <= share * self.limit * self.whole
        ]
        return max(fits, default=1)


@dataclass(frozen=True)
class Decision:
    """`train`: the candidates that train to their next rung; if empty, the race is over. `stopped`: P(best) of those
    that diverged or for which it is negligible. `forecast`: None in the first rounds."""

    train: list[str]
    stopped: dict[str, float]
    forecast: Forecast | None
    why: str

    @property
    def prediction(self) -> Prediction | None:
        return None if self.forecast is None else self.forecast.at(self.forecast.budgets[-1])


#: (state, candidates that may continue, forecast, generator) → those that do, in order of priority.
Policy = Callable[[RaceState, Sequence[str], Forecast, np.random.Generator], list[str]]


def decide(
    state: RaceState,
    observations: Observations,
    policy: str = POLICY,
    way: str = WAY,
    calibration: Calibration = CALIBRATION,
    draws: int = 1000,
    seed: int = 0,
    known: Known | None = None,
) -> Decision:
    """Decide the next round. The decision depends only on the arguments (`observations`: losses at the rungs reached),
    so an interrupted race resumes unchanged, and a stopped candidate may return if the others fall short."""
    if policy not in POLICIES:
        raise UserError(f"there is no policy {policy!r} for a race; known: {', '.join(POLICIES)}.")
    stopped = {name: 0.0 for name, runs in observations.items() if _diverged(runs)}
    least = min((count for name, count in state.reached.items() if name not in stopped), default=0)
    if least < min(LEAST, first := _first(state, policy)):
        train = [name for name in state.names if state.reached[name] == least and name not in stopped]
        return Decision(train, stopped, None, "all start")
    forecast = extrapolate(observations, list(state.rungs), way, calibration, draws, seed, math.inf, known)
    p_best = forecast.at(state.rungs[-1]).best_share
    stopped |= {name: p for name, p in p_best.items() if p < NEGLIGIBLE}
    able = [n for n in state.names if n not in stopped and state.reached[n] < len(state.rungs)]
    if len(stopped) >= len(state.names) - 1 or max(p_best.values()) >= CERTAIN:
        return Decision([], stopped, forecast, f"P(best) is {probability(max(p_best.values()))}")
    least = min((state.reached[name] for name in able), default=len(state.rungs))
    if least < first:
        train = [name for name in able if state.reached[name] == least]
        return Decision(train, stopped, forecast, "all start")
    able = [name for name in able if state.cost_of(name) <= state.left * (1 + 1e-9)]
    if not able:
        return Decision([], stopped, forecast, "the limit is reached")
    rng = np.random.default_rng([seed, sum(state.reached.values())])
    train = _within(state, POLICIES[policy](state, able, forecast, rng))
    return Decision(train, stopped, forecast, policy if train else "nothing more to learn")


def _first(state: RaceState, policy: str) -> int:
    """The number of rungs to which all candidates train."""
    if state.screening:
        return 1
    return _halving_start(state) if policy == "halving" else state.common(FIRST)


def _diverged(runs: Mapping[int, Sequence[tuple[float, float]]]) -> bool:
    return bool(runs) and all(run and not all(math.isfinite(loss) for _, loss in run) for run in runs.values())


def _within(state: RaceState, train: Sequence[str]) -> list[str]:
    """The candidates, in order, for which the remaining cost suffices."""
    left, kept = state.left * (1 + 1e-9), []
    for name in train:
        if (cost := state.cost_of(name)) <= left:
            left -= cost
            kept.append(name)
    return kept


def _kept(count: int, halvings: int) -> int:
    """How many of `count` candidates remain after so many halvings."""
    return max(1, math.ceil(count * 0.5**halvings))


def _halving_start(state: RaceState) -> int:
    """The highest first rung with which halving stays within the limit, at the mean cost of the candidates."""
    mean = float(np.mean(list(state.cost.values())))
    flat = RaceState(
        state.rungs, dict.fromkeys(state.names, 0), dict.fromkeys(state.names, mean), state.limit, state.decay
    )
    some, best = state.names[0], 1
    for start in range(1, len(state.rungs) + 1):
        total = len(state.names) * flat.cost_until(some, start)
        for place in range(start, len(state.rungs)):
            survivors = _kept(len(state.names), place - start + 1)
            if survivors > 1 or place == start:
                total += survivors * (flat.cost_until(some, place + 1) - flat.cost_until(some, place))
        if total <= state.limit * flat.whole:
            best = start
    return best


def _halving(state: RaceState, able: Sequence[str], forecast: Forecast, rng: np.random.Generator) -> list[str]:
    start = _halving_start(state)
    seen = forecast.at(state.rungs[-1])
    for rung in range(start, len(state.rungs)):
        goes_on = [n for n in seen.ranking if state.reached[n] >= rung][: _kept(len(state.names), rung - start + 1)]
        if len(goes_on) < 2 and rung > start:
            return []
        if behind := [name for name in goes_on if state.reached[name] == rung and name in able]:
            return behind
    return []


def _top_two(state: RaceState, able: Sequence[str], forecast: Forecast, rng: np.random.Generator) -> list[str]:
    """Pairs are drawn from all candidates; a pair is drawn again if neither of the two can continue."""
    winner_D = np.argmin(forecast.at(state.rungs[-1]).loss_DC, axis=1)
    chosen: list[str] = []
    for _ in range(50 * state.batch):
        first = forecast.names[int(rng.choice(winner_D))]
        others = [forecast.names[w] for w in rng.choice(winner_D, 50).tolist()]
        second = next((name for name in others if name != first), first)
        pair = [name for name in (first, second) if name in able and name not in chosen]
        if pair:
            chosen.append(min(pair, key=lambda name: state.reached[name]))
        if len(chosen) == state.batch:
            break
    return chosen


def _knowledge_gradient(
    state: RaceState, able: Sequence[str], forecast: Forecast, rng: np.random.Generator
) -> list[str]:
    final_DC = forecast.at(state.rungs[-1]).loss_DC
    finite = np.isfinite(final_DC).all(axis=0)
    final_DC = final_DC[:, finite]
    normal_P = np.array([NormalDist().inv_cdf((place + 0.5) / POINTS) for place in range(POINTS)])
    worth: dict[str, float] = {}
    for name in able:
        place = forecast.names.index(name)
        for rungs in range(1, len(state.rungs) - state.reached[name] + 1):
            if (cost := state.cost_of(name, rungs)) > state.left * (1 + 1e-9) and rungs > 1:
                break
            rung = state.reached[name] + rungs - 1
            seen_D = np.log(forecast.loss_DBC[:, rung, place]) + rng.normal(0, forecast.noise, len(final_DC))
            worth[name] = max(worth.get(name, 0.0), _gain(final_DC, seen_D, normal_P) / cost)
    ordered = sorted(worth, key=lambda name: -worth[name])
    return [name for name in ordered[: state.batch] if worth[name] > 0]


def _gain(final_DC: Floats, seen_D: Floats, normal_P: Floats) -> float:
    """The expected decrease in the lowest posterior mean loss after this observation, to which each final loss responds
    by linear regression."""
    mean_C = final_DC.mean(axis=0)
    apart_D = seen_D - seen_D.mean()
    slope_C = apart_D @ (final_DC - mean_C) / max(1e-300, float(apart_D @ apart_D))
    step_C = slope_C * float(seen_D.std())
    return float(mean_C.min() - (mean_C + normal_P[:, None] * step_C).min(axis=1).mean())


POLICIES: dict[str, Policy] = {
    "halving": _halving,
    "top-two": _top_two,
    "knowledge-gradient": _knowledge_gradient,
}


@dataclass(frozen=True)
class Replayed:
    """`regret`: the loss of the selected candidate minus that of the best one, in nats; `regret_share` is relative to
    the best loss, `regret_noise` to the standard deviation between seeds. `cost`: as a fraction of training all to the
    end. `held`: the fraction of 90 % intervals that contain the truth. `p_best`: for each candidate, the forecast
    probability of the lowest mean over the table's seeds, and whether it had the lowest."""

    pick: str
    best: str
    regret: float
    regret_share: float
    regret_noise: float
    cost: float
    spearman: float
    held: float
    p_best: list[tuple[float, bool]]
    rounds: int
    why: str


def replay(
    table: CurveTable,
    policy: str,
    way: str,
    limit: float = 0.1,
    calibration: Calibration = CALIBRATION,
    seed: int = 0,
    decay: float = 0.2,
    batch: int = 1,
    draws: int = 1000,
    noise: float | None = None,
    known: Known | None = None,
    screening: float = 0.0,
) -> Replayed:
    """`noise`: standard deviation between seeds, in nats, if known better than from this table alone. `screening`: the
    cost of the screenings in `known`, see `RaceState`."""
    run = int(np.random.default_rng(seed).integers(table.loss_ASB.shape[1]))
    cost = dict(zip(table.names, table.cost.tolist(), strict=True))
    state = RaceState(table.budgets, dict.fromkeys(table.names, 0), cost, limit, decay, batch, screening)
    rounds = 0
    while True:
        seen = {name: count for name, count in state.reached.items() if count}
        decision = decide(state, table.observations(seen, [run]), policy, way, calibration, draws, seed, known)
        if not decision.train:
            return _judged(table, state, decision, rounds, noise or table.noise)
        rounds += 1
        on = {name: count + (name in decision.train) for name, count in state.reached.items()}
        state = replace(state, reached=on)


def _judged(table: CurveTable, state: RaceState, decision: Decision, rounds: int, noise: float) -> Replayed:
    seen = decision.prediction
    assert seen is not None  # a race ends after its first rounds, so there is a forecast
    truth = dict(zip(table.names, table.truth.tolist(), strict=True))
    best = min(truth, key=lambda name: truth[name])
    regret = truth[seen.pick] - truth[best]
    runs = table.loss_ASB.shape[1]
    intervals = {name: seen.interval(name, runs=runs) for name in table.names}
    p_best = seen.p_best_of_means(runs)
    return Replayed(
        seen.pick,
        best,
        regret,
        regret / truth[best],
        regret / noise if noise else math.inf if regret else 0.0,
        state.spent / state.whole,
        spearman([seen.loss[name] for name in table.names], [truth[name] for name in table.names]),
        float(np.mean([intervals[name][0] <= truth[name] <= intervals[name][1] for name in table.names])),
        [(p_best[name], name == best) for name in table.names],
        rounds,
        decision.why,
    )
