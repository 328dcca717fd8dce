"""Races replayed on complete learning curves: what a policy would have selected, at what cost, and how well.

Every architecture of the table is a candidate. The race observes one of its seeds; the truth is the mean over all
seeds at the last budget. Nothing is trained: a replay takes a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from plait.analysis.curve_library import Known
from plait.analysis.curve_table import CurveTable
from plait.analysis.learning_curve import CALIBRATION, Calibration
from plait.analysis.race_policy import Decision, RaceState, decide
from plait.analysis.rank import spearman


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
