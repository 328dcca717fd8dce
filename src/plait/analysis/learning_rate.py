"""Whether a single learning rate is fair to all models.

LiteTransformerSearch, App. B (Javaheripi et al. 2022, arXiv:2203.02094) trains 100 models with four learning rates
each: 98 % do best at 0.01, and the proxy's rank correlation is 0.96 at that rate and 0.93 at each model's best rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plait.analysis.distributions import t_quantile
from plait.analysis.pareto import Floats
from plait.analysis.rank import spearman
from plait.core.errors import UserError


@dataclass(frozen=True)
class FixedRate:
    """One learning rate for all models: for how many it is the best, and how well it ranks them.

    `src` is the Spearman rank correlation of the proxy with the quality at this rate, `src_best` that of this quality
    with the quality at each model's best rate. `clear`: the number of wins that are significant given the noise between
    seeds (95 %); None with one seed each.
    """

    rate: float
    models: int
    wins: int
    share: float
    src: float
    src_best: float
    clear: int | None = None


@dataclass(frozen=True)
class LearningRateStudy:
    """`noise`: the standard deviation between seeds, pooled over models and rates; None with one seed each."""

    models: list[Any]
    best_rate: Floats
    best_quality: Floats
    src_best: float  # Spearman correlation of the proxy with the quality at each model's best rate
    rates: list[FixedRate]
    noise: float | None = None


def best_runs(model: Sequence[Any], goodness: ArrayLike) -> list[int]:
    """The index of each model's best run, in the order of the models; the first one of equals."""
    best: dict[Any, int] = {}
    values_N = np.asarray(goodness, np.float64)
    for run, name in enumerate(model):
        if name not in best or values_N[run] > values_N[best[name]]:
            best[name] = run
    return list(best.values())


def learning_rate_study(
    model: Sequence[Any], rate: ArrayLike, quality: ArrayLike, proxy: ArrayLike
) -> LearningRateStudy:
    """Compare learning rates over models; arguments have one entry per run. Lower quality is better, and a larger proxy
    predicts better quality. A run that diverged has infinite or missing quality and loses; of equally good rates the
    smaller wins. The proxy is the same for all runs of a model. Several runs of a model at one rate are seeds: their
    mean is used, and the rate loses if one of them diverged.
    """
    rate_N, quality_N, proxy_N = (np.asarray(values, np.float64) for values in (rate, quality, proxy))
    if not len(model) == len(rate_N) == len(quality_N) == len(proxy_N):
        raise UserError("the learning-rate study needs a model, a rate, a quality and a proxy for every run.")
    quality_N = np.where(np.isnan(quality_N), np.inf, quality_N)
    models, rates = list(dict.fromkeys(model)), np.unique(rate_N)
    row_N = np.array([models.index(name) for name in model], dtype=np.int64)
    column_N = np.searchsorted(rates, rate_N)
    seeds: dict[tuple[int, int], list[float]] = {}
    proxy_M = np.full(len(models), np.nan)
    for row, column, value, promise in zip(row_N, column_N, quality_N, proxy_N, strict=True):
        seeds.setdefault((int(row), int(column)), []).append(float(value))
        if not np.isnan(proxy_M[row]) and proxy_M[row] != promise:
            raise UserError(f"model '{models[row]}' has several values of the proxy.")
        proxy_M[row] = promise
    quality_MR = np.full((len(models), len(rates)), np.nan)  # nan: not run
    for model_and_rate, values in seeds.items():
        quality_MR[model_and_rate] = np.mean(values)
    best_M = np.nanargmin(quality_MR, axis=1)
    best_quality_M = quality_MR[np.arange(len(models)), best_M]
    clear_M, noise = _clear(quality_MR, best_M, seeds)
    fixed = []
    for column, value in enumerate(rates.tolist()):
        ran_M = ~np.isnan(quality_MR[:, column])
        wins = int((best_M == column).sum())
        src = spearman(proxy_M[ran_M], -quality_MR[ran_M, column])
        src_best = spearman(best_quality_M[ran_M], quality_MR[ran_M, column])
        clear = None if noise is None else int((clear_M & (best_M == column)).sum())
        fixed.append(FixedRate(value, int(ran_M.sum()), wins, wins / len(models), src, src_best, clear))
    src_best = spearman(proxy_M, -best_quality_M)
    return LearningRateStudy(models, rates[best_M], best_quality_M, src_best, fixed, noise)


def _clear(
    quality_MR: Floats, best_M: NDArray[np.intp], seeds: Mapping[tuple[int, int], Sequence[float]]
) -> tuple[NDArray[np.bool_], float | None]:
    """Whether each model's best rate significantly beats its second best, and the noise between seeds, pooled because
    seeds are few."""
    finite = [np.array(values) for values in seeds.values() if np.isfinite(values).all()]
    freedom = sum(len(values) - 1 for values in finite)
    clear_M = np.zeros(len(quality_MR), dtype=np.bool_)
    if not freedom:
        return clear_M, None
    noise = float(np.sqrt(sum(float(((values - values.mean()) ** 2).sum()) for values in finite) / freedom))
    for row, best in enumerate(best_M):
        others = [column for column in np.argsort(quality_MR[row]) if column != best and (row, int(column)) in seeds]
        if not others:
            continue
        counts = [len(seeds[row, int(column)]) for column in (best, others[0])]
        half_width = t_quantile(freedom) * noise * float(np.sqrt(sum(1 / count for count in counts)))
        clear_M[row] = quality_MR[row, others[0]] - quality_MR[row, best] > half_width
    return clear_M, noise
