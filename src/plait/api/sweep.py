"""One training at several learning rates and seeds, with averages: `plait.sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.api.train import TrainResult, train
from plait.core.errors import UserError
from plait.core.result import Result
from plait.model.architecture import Architecture


@dataclass(frozen=True)
class RateLosses:
    """Validation losses at one learning rate, seed by seed. `interval`: 95 % of their mean, by Student's t; None for a
    single seed."""

    lr: float | None  # None: the recipe's
    losses: tuple[float, ...]  # nats per token
    mean: float | None  # None where every seed diverged
    interval: tuple[float, float] | None
    diverged: int
    runs: tuple[str, ...]  # names, as `plait eval` takes them


@dataclass(frozen=True)
class SweepResult(Result):
    spec: str
    rates: tuple[RateLosses, ...]
    best: float | None  # the learning rate with the least mean loss
    #: Whether its interval lies below all the others'; None where there is nothing to compare.
    distinguishable: bool | None

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"lr": one.lr, "mean": one.mean, "seeds": len(one.losses), "diverged": one.diverged} for one in self.rates
        ]


def sweep(
    spec: str | Architecture | None = None,
    *,
    lr: Sequence[float] = (),
    seeds: int = 1,
    seed: int = 0,
    runs: str | Path = "runs",
    **options: Any,
) -> SweepResult:
    """Train at each learning rate (none: the recipe's) with `seeds` seeds from `seed` on. `options` are those of
    `plait.train`. Every training is a run of its own: what was trained before is not trained again."""
    from plait.training.trainer import Diverged

    if seeds < 1:
        raise UserError(f"seeds={seeds} given; must be at least 1.")
    found = []
    for rate in lr or (None,):
        trained: list[TrainResult] = []
        for number in range(seed, seed + seeds):
            try:
                trained.append(train(spec, lr=rate, seed=number, runs=runs, **options))
            except Diverged:  # noqa: PERF203 (a rate that is too high is an answer, not the end)
                continue
        found.append((rate, trained))
    return _result(found, seeds)


def _result(found: Sequence[tuple[float | None, Sequence[TrainResult]]], seeds: int) -> SweepResult:
    from plait.analysis.intervals import mean_interval

    rates = []
    for rate, trained in found:
        losses = tuple(one.loss for one in trained)
        mean = sum(losses) / len(losses) if losses else None
        interval = mean_interval(losses) if len(losses) > 1 else None
        rates.append(RateLosses(rate, losses, mean, interval, seeds - len(losses), tuple(one.run for one in trained)))
    there = [one for one in rates if one.mean is not None]
    if not there:
        raise UserError("every training of the sweep diverged: try lower learning rates.")
    best = min(there, key=lambda one: one.mean or 0.0)
    others = [one for one in there if one is not best]
    apart = None
    if others and all(one.interval for one in there):
        assert best.interval is not None
        apart = all(best.interval[1] < one.interval[0] for one in others if one.interval)
    spec = next(one.spec for _, trained in found for one in trained)
    return SweepResult(spec, tuple(rates), best.lr, apart)
