"""Who trains on: from learning curves so far to the candidates that get the next tokens, and those that stop.

A race has rungs, budgets that rise up to the target. At a rung a candidate's learning rate is decayed on a branch,
which gives one observed loss, and its training can go on from before the branch. After each round every curve is
carried on to the target (`learning_curve`), and a policy (`POLICIES`) says who trains to its next rung, until the limit
on cost is reached, or one candidate is certain enough:

    halving               at each rung the better half goes on (Jamieson and Talwalkar 2016), by the forecast loss at
                          the target; it starts at the highest rung from which the whole race fits into the limit
    top-two               of two draws with different winners, the candidate that is trained less (Russo 2016)
    knowledge-gradient    most expected gain in the pick's loss per cost (Frazier, Powell and Dayanik 2008), where
                          looking several rungs ahead counts, too: one rung alone may change no mind, three may

All of them train everybody to `LEAST` rungs, and, but those that are best with a probability below `NEGLIGIBLE`, on to
a rung that takes at most `FIRST` of the limit (halving: to where it starts). After a screening (`curve_screening`) the
first rung is enough: it tells the level of this text, and all else is known better. Nothing here trains: `decide` is a
pure function of what has been observed.

Letters: D draws, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from plait.analysis.curve_library import Known
from plait.analysis.forecast import Forecast, Prediction
from plait.analysis.learning_curve import CALIBRATION, WAY, Calibration, Observations, extrapolate
from plait.analysis.pareto import Floats
from plait.core.errors import UserError
from plait.core.units import probability

FIRST = 0.6  # of the limit, at most, for the rounds that everybody takes part in
LEAST = 3  # rungs before anybody stops
NEGLIGIBLE = 0.01  # P(best) below which a candidate stops
CERTAIN = 0.99  # P(best) at which the race is over
POLICY = "knowledge-gradient"  # the least regret in the backtest; halving is close, and cheaper
POINTS = 15  # of the normal distribution over which a gain is averaged


@dataclass(frozen=True)
class RaceState:
    """`rungs`: budgets in tokens, the last is the target. `reached`: how many of them each candidate has finished.
    `cost`: of one token of each, in any one unit. `limit`: on the cost of the whole race, as a share of training all
    to the target. `decay`: the share of a budget that its branch takes. `screening`: what a screening of all has cost,
    in the same share; 0: there was none."""

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
        """The cost of training all to the target, once, without branches."""
        return sum(self.cost[name] for name in self.names) * self.rungs[-1]

    @property
    def spent(self) -> float:
        raced = sum(self.cost_until(name, count) for name, count in self.reached.items())
        return raced + self.screening * self.whole

    @property
    def left(self) -> float:
        return self.limit * self.whole - self.spent

    def cost_until(self, name: str, count: int) -> float:
        """Of the training up to the last of so many rungs, and of a branch at each."""
        if not count:
            return 0.0
        tokens = (1 - self.decay) * self.rungs[count - 1] + self.decay * sum(self.rungs[:count])
        return self.cost[name] * tokens

    def cost_of(self, name: str, rungs: int = 1) -> float:
        """To go on by so many rungs."""
        return self.cost_until(name, self.reached[name] + rungs) - self.cost_until(name, self.reached[name])

    def common(self, share: float) -> int:
        """The most rungs, at least one, that all can finish for this share of the limit."""
        fits = [
            count
            for count in range(1, len(self.rungs) + 1)
            if sum(self.cost_until(name, count) for name in self.names) <= share * self.limit * self.whole
        ]
        return max(fits, default=1)


@dataclass(frozen=True)
class Decision:
    """`train`: who goes on to the next rung (nobody: the race is over). `stopped`: who is best with negligible
    probability or has diverged, with that probability. `forecast`: None before anything was observed."""

    train: list[str]
    stopped: dict[str, float]
    forecast: Forecast | None
    why: str

    @property
    def prediction(self) -> Prediction | None:
        return None if self.forecast is None else self.forecast.at(self.forecast.budgets[-1])


#: (state, who may go on, forecast, stream) → who does, the first first.
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
    """The next round. The answer depends on `observations` (losses at the rungs reached) and on nothing else, so a race
    that was killed goes on as it would have, and who stopped may be called back when the others disappoint."""
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
    """Rungs that everybody takes part in."""
    if state.screening:
        return 1
    return _halving_start(state) if policy == "halving" else state.common(FIRST)


def _diverged(runs: Mapping[int, Sequence[tuple[float, float]]]) -> bool:
    return bool(runs) and all(run and not all(math.isfinite(loss) for _, loss in run) for run in runs.values())


def _within(state: RaceState, train: Sequence[str]) -> list[str]:
    """As many, in order, as the limit lets."""
    left, kept = state.left * (1 + 1e-9), []
    for name in train:
        if (cost := state.cost_of(name)) <= left:
            left -= cost
            kept.append(name)
    return kept


def _kept(count: int, halvings: int) -> int:
    """Of so many candidates, after halving so many times."""
    return max(1, math.ceil(count * 0.5**halvings))


def _halving_start(state: RaceState) -> int:
    """The highest first rung from which halving fits into the limit (costs: the mean candidate's)."""
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
    """Draws among all, also those that cannot go on: where both winners are such, another two are drawn."""
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
    """How much lower the pick's expected loss will be once this is seen: each final loss by its regression on it."""
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
