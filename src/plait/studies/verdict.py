"""How far can `plait compare` be trusted on this text? All contenders are trained to the end, and cheaper ranking
methods are compared with the result.

The ground truth is the annealed losses of all contenders and seeds, at budgets that double up to the target. The
cheaper methods are counts (parameters, FLOPs, state), the loss after every shorter training, and races replayed on the
same curves with every policy and every extrapolation method. For each: the rank correlation with the final ranking, the
excess loss of its choice over the best (regret), and its cost as a fraction of training all to the end.
`benchmarks/verdict.py` does the same with a table of trainings from a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from plait.analysis.curve_table import CurveTable
from plait.analysis.learning_curve import WAYS
from plait.analysis.race_policy import POLICIES, replay
from plait.analysis.rank import spearman, spearman_interval
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.units import percent
from plait.model.cost import model_cost
from plait.model.reference_curves import reference_known
from plait.racing.contenders import Contender
from plait.racing.leg import Leg, loss_of
from plait.racing.race import rungs_to
from plait.racing.rates import stacks, usual_rate
from plait.racing.workers import Workers
from plait.training.track import Replica

LIMIT = 0.25  # cost limit of a replayed race, as a fraction of training all to the end
REPLAYS = 4  # of each policy, with different random streams


@dataclass(frozen=True)
class Signal:
    """One ranking method. `cost`: as a fraction of training all to the end. `regret`: excess loss,
    in nats, of the contender that it ranks first."""

    name: str
    spearman: float
    interval: tuple[float, float] | None
    regret: float
    pick: str
    cost: float


@dataclass(frozen=True)
class VerdictFindings:
    contenders: list[Contender]
    table: CurveTable
    rates: dict[str, float]
    notes: tuple[str, ...] = ()  # on how they were trained, for the reader

    @cached_property
    def signals(self) -> list[Signal]:
        """Counts, shorter trainings, and races, the cheapest first."""
        return [*self._counts(), *self._shorter(), *self._races()]

    def _signal(self, name: str, worse: Sequence[float], cost: float) -> Signal:
        """Rank by numbers, lower is better."""
        truth, first = self.table.truth, int(np.argmin(worse))
        regret = float(truth[first] - truth.min())
        interval = spearman_interval(worse, truth)
        return Signal(name, spearman(worse, truth), interval, regret, self.table.names[first], cost)

    def _counts(self) -> list[Signal]:
        costs = [model_cost(c.arch, seq=256) for c in self.contenders]
        counts = {
            "parameters": [-float(c.decoder_params) for c in costs],
            "FLOPs": [-float(c.flops) for c in costs],
            "fixed state": [-float(c.fixed_state) for c in costs],
        }
        return [self._signal(name, values, 0.0) for name, values in counts.items() if len(set(values)) > 1]

    def _shorter(self) -> list[Signal]:
        signals = []
        for place, budget in enumerate(self.table.budgets[:-1]):
            loss = self.table.loss_ASB[:, 0, place]
            share = budget / self.table.budgets[-1]
            signals.append(self._signal(f"loss at {percent(share, 1)} of the tokens", loss.tolist(), share))
        return signals

    def _races(self) -> list[Signal]:
        signals = []
        for policy in POLICIES:
            for way in WAYS:
                known = reference_known({c.name: c.arch for c in self.contenders})
                runs = [replay(self.table, policy, way, LIMIT, seed=seed, known=known) for seed in range(REPLAYS)]
                middle = sorted(runs, key=lambda run: run.regret)[len(runs) // 2]
                rho = float(np.mean([run.spearman for run in runs]))
                cost = float(np.mean([run.cost for run in runs]))
                signals.append(Signal(f"race: {policy}, {way}", rho, None, middle.regret, middle.pick, cost))
        return signals

    def statement(self) -> str:
        races = [signal for signal in self.signals if signal.name.startswith("race")]
        best = min(races, key=lambda signal: (signal.regret, -signal.spearman))
        pick = "it" if best.regret == 0 else f"{best.pick}, {best.regret:.3f} nats above it"
        if 0 < best.regret < self.table.noise:
            pick += ", less than the noise"
        return (
            f"{self.table.names[int(np.argmin(self.table.truth))]} has the lowest loss of {len(self.contenders)} after "
            f"{self.table.budgets[-1]:,.0f} tokens{self._ties()}; noise between seeds {self.table.noise:.3f} nats. At "
            f"{percent(best.cost)} of the cost of training all, '{best.name}' picks {pick}"
        )

    def _ties(self) -> str:
        """Contenders whose mean loss exceeds the lowest by less than the noise."""
        above = self.table.truth - self.table.truth.min()
        ties = [name for name, gap in zip(self.table.names, above, strict=True) if 0 < gap < self.table.noise]
        return f" (above it by less than the noise: {', '.join(ties)})" if ties else ""

    def as_dict(self) -> dict[str, object]:
        curves = self.table.loss_ASB.mean(axis=1)
        return {
            "data": self.table.text,
            "noise": self.table.noise,
            "budgets": self.table.budgets,
            "architectures": [
                {
                    "name": c.name,
                    "spec": c.arch.text,
                    "params": c.params,
                    "lr": self.rates[c.name],
                    "losses": row.tolist(),
                }
                for c, row in zip(self.contenders, curves, strict=True)
            ],
            "signals": [
                {**vars(signal), "interval": None if signal.interval is None else list(signal.interval)}
                for signal in self.signals
            ],
            "statement": self.statement(),
            "notes": list(self.notes),
        }


def verdict_study(
    contenders: Sequence[Contender],
    tokens: float,
    seeds: int,
    pool: Workers,
    runs: Path,
    on_progress: OnProgress = ignore,
) -> VerdictFindings:
    """Train all contenders (those in the store are not trained again), with the usual learning rate of their width."""
    if len(contenders) < 3 or seeds < 2:
        raise UserError("a study of verdicts needs at least 3 architectures and 2 seeds.")
    if not 0 < tokens < math.inf:
        raise UserError(f"--tokens {tokens:g}: must be greater than 0 and finite.")
    course, rungs = pool.course, rungs_to(tokens, pool.course)
    rates = {c.name: usual_rate(c, course) for c in contenders}
    legs = [
        Leg(course, c.arch, stack, tuple(rungs), runs)
        for c in contenders
        for stack in stacks([Replica(rates[c.name], seed) for seed in range(seeds)], course)
    ]
    count = len(contenders)
    results = pool.run(legs, lambda done, total: on_progress("training", count * done / total, count))
    losses = np.array([[loss_of(r) for r in at] for records in results for at in zip(*records, strict=True)])
    loss_ASB = losses.reshape(len(contenders), seeds, len(rungs))
    kept = [i for i in range(len(contenders)) if np.isfinite(loss_ASB[i]).all()]
    if len(kept) < 3:
        raise UserError("fewer than 3 architectures trained without diverging; there is nothing to rank.")
    budgets = [float(steps * course.tokens_per_step) for steps in rungs]
    cost = np.array([contenders[i].flops_per_token(course.recipe.seq_len) for i in kept])
    names = [contenders[i].name for i in kept]
    table = CurveTable(course.data, names, names, budgets, loss_ASB[kept], cost, {})
    notes = [f"{c.name}: {c.note}" for c in contenders if c.note]
    notes += [f"{c.name} diverged and is left out" for i, c in enumerate(contenders) if i not in kept]
    if few := course.few_steps(budgets[-1], "give more --tokens"):
        notes.append(few)
    return VerdictFindings([contenders[i] for i in kept], table, rates, tuple(notes))
