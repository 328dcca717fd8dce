"""Simulated runs from a known surface, to test fits and to show the pitfall of batch sizes that vary with model size.

A batch larger than the critical one wastes tokens: D tokens in batches of B have the effect of D / (1 + B / B_crit),
with B_crit = 2.1e8 tokens / L^(1 / 0.21) at loss L (McCandlish et al. 2018; Kaplan et al. 2020, section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.analysis.scaling_frontier import Surface, TokenCost
from plait.analysis.scaling_runs import ALL, COLUMNS, OPTIONAL, Runs
from plait.analysis.scaling_surface import Floats

#: Transformers after Chinchilla: κ = 6 FLOPs per parameter and token.
SIX = TokenCost(6.0, 1.0, 0.0)
_CRITICAL, _CRITICAL_POWER = 2.1e8, 1 / 0.21


def surface(E: float, A: float, B: float, alpha: float, beta: float) -> Surface:
    return Surface(*(np.asarray(value) for value in (E, np.log(A), np.log(B), alpha, beta)))


#: The fit of Besiroglu et al. 2024 (arXiv:2404.10102) to 245 runs of Hoffmann et al. 2022.
CHINCHILLA = surface(1.817, 482.0, 2085.0, 0.348, 0.366)


@dataclass(frozen=True)
class Design:
    """Budgets and sizes: from `lowest` to `highest` times the optimal size, evenly spaced in log N."""

    budgets: Sequence[float] | Floats
    sizes: int = 7
    lowest: float = 1 / 6
    highest: float = 6.0

    def points(self, truth: Surface, cost: TokenCost = SIX) -> tuple[Floats, Floats, Floats]:
        """FLOPs, sizes and tokens of all runs."""
        flops_R = np.repeat(np.asarray(self.budgets, np.float64), self.sizes)
        offsets = np.exp(np.linspace(np.log(self.lowest), np.log(self.highest), self.sizes))
        params_R = np.concatenate([float(truth.optimum(flops, cost)[0]) * offsets for flops in self.budgets])
        return flops_R, params_R, cost.tokens(flops_R, params_R)


def simulated(
    truth: Surface,
    design: Design,
    noise: float,
    rng: np.random.Generator,
    *,
    cost: TokenCost = SIX,
    group_noise: float = 0.0,
    name: str = ALL,
) -> Runs:
    """Simulated runs. Noise is the standard deviation of log L, per run and per group."""
    flops_R, params_R, tokens_R = design.points(truth, cost)
    group_R = np.repeat(np.arange(len(design.budgets)), design.sizes)
    off_R = noise * rng.standard_normal(len(flops_R))
    off_R += group_noise * rng.standard_normal(len(design.budgets))[group_R]
    loss_R = truth.loss(params_R, tokens_R) * np.exp(off_R)
    return Runs(flops_R, params_R, tokens_R, loss_R, (name,) * len(flops_R), group_R)


def joined(parts: Sequence[Runs]) -> Runs:
    """Runs of several architectures as one table."""
    first = np.cumsum([0, *(int(part.group.max()) + 1 for part in parts)])
    group = np.concatenate([part.group + at for part, at in zip(parts, first, strict=False)])
    names = tuple(name for part in parts for name in part.architecture)
    there = [*COLUMNS, *(name for name in OPTIONAL if all(getattr(part, name) is not None for part in parts))]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in there}
    return Runs(**columns, architecture=names, group=group)


def critical_batch(loss: Floats) -> Floats:
    """The critical batch size in tokens."""
    return np.asarray(_CRITICAL / loss**_CRITICAL_POWER)


def batch_loss(truth: Surface, params: Floats, tokens: Floats, batch: Floats) -> Floats:
    """The loss with `batch` tokens per step, at the effective number of tokens; solved by fixed-point iteration."""
    loss = truth.loss(params, tokens)
    for _ in range(30):
        loss = truth.loss(params, tokens / (1 + batch / critical_batch(loss)))
    return loss


def pitfall(
    truth: Surface, flops: float, batch: float, growth: float = 1.0, *, sizes: int = 9, span: float = 4.0
) -> dict[str, Floats | float]:
    """One IsoFLOP group with a fixed batch, and with a batch that grows as N^growth above the optimal size (Poli et al.
    2024, Figure C.1): both curves and the N* of both parabolas."""
    best = float(truth.optimum(flops, SIX)[0])
    params = best * np.exp(np.linspace(-np.log(span), np.log(span), sizes))
    tokens = SIX.tokens(np.asarray(flops), params)
    growing = batch * np.maximum(1.0, params / best) ** growth
    fixed_loss = batch_loss(truth, params, tokens, np.full(sizes, batch))
    growing_loss = batch_loss(truth, params, tokens, growing)
    from plait.analysis.scaling_frontier import parabola

    fits = [parabola(flops, np.arange(sizes), params, loss[None]) for loss in (fixed_loss, growing_loss)]
    fixed_best, growing_best = (np.nan if fit is None else float(np.exp(fit.best_n)) for fit in fits)
    return {
        "params": params,
        "batch": growing,
        "fixed_loss": fixed_loss,
        "growing_loss": growing_loss,
        "fixed_best": fixed_best,
        "growing_best": growing_best,
    }
