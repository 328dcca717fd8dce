"""How well a proxy ranks models: rank correlation, and its overlap with the true top.

LiteTransformerSearch, Sec. 4 and App. J (Javaheripi et al. 2022, arXiv:2203.02094): SRC is Spearman's rank
correlation, SRC(k %) the same among the true top k %, CR(k %) the common ratio, the fraction of the true top k % that
is in the proxy's top k %. k % of n models are floor(k n / 100), at least one.

More is better in all functions: negate a perplexity or a loss. The correlation with a constant ranking is nan.

`spearman_interval` is a 95 % interval that is valid even for correlations near 1, where good proxies are. There the
sample correlation is biased towards 0 by more than its standard deviation, so Fisher's z and the bootstrap do not cover
the truth. The sample r is first converted to the correlation ρ of a normal distribution under which r is expected
(Moran 1948):

    E r = (3 τ + (n − 2) ρ_s) / (n + 1),    τ = 2/π asin ρ,    ρ_s = 6/π asin(ρ/2)

and z = atanh ρ is approximately normal. From 20 models on its standard error is estimated by the jackknife, which makes
no assumption about the joint distribution. With fewer models the ends are the ρ under which a normal sample with the
same ties has a correlation as high, or as low, with probability 1/80, by simulation with a fixed seed (1/40 would give
95 % for normal samples, but too little with outliers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.distributions import t_quantile
from plait.analysis.pareto import Floats, Mask
from plait.core.errors import UserError

PAIRS = 1 << 22  # pairs that `kendall` compares at once


def ranks(values: ArrayLike) -> Floats:
    """Ranks from 1 for the lowest value; ties get the mean of their ranks."""
    _, place, copies = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(copies)
    return np.asarray((last - (copies - 1) / 2)[place], np.float64)


def spearman(proxy: ArrayLike, truth: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's correlation of the ranks."""
    proxy_N, truth_N = _pair(proxy, truth)
    if len(proxy_N) < 2:
        return float("nan")
    a_N, b_N = (ranks(values) - (len(values) + 1) / 2 for values in (proxy_N, truth_N))
    size = float(np.sqrt((a_N @ a_N) * (b_N @ b_N)))
    return float(np.clip(a_N @ b_N / size, -1, 1)) if size else float("nan")


def kendall(proxy: ArrayLike, truth: ArrayLike) -> float:
    """Kendall's tau-b: concordant minus discordant pairs, corrected for ties."""
    a_N, b_N = _pair(proxy, truth)
    agree, apart_a, apart_b = 0, 0, 0
    step = max(1, PAIRS // max(1, len(a_N)))
    for start in range(0, len(a_N), step):
        chunk = slice(start, start + step)
        a_SN, b_SN = (_sign(values[chunk, None], values[None, :]) for values in (a_N, b_N))
        agree += int((a_SN * b_SN).sum(dtype=np.int64))
        apart_a += int(np.count_nonzero(a_SN))
        apart_b += int(np.count_nonzero(b_SN))
    return agree / float(np.sqrt(float(apart_a) * float(apart_b))) if apart_a and apart_b else float("nan")


def common_ratio(proxy: ArrayLike, truth: ArrayLike, percent: float) -> float:
    """CR(k %); with ties at the cut, the expected ratio if they are broken at random."""
    proxy_N, truth_N = _pair(proxy, truth)
    count = top_count(len(proxy_N), percent)
    return float(_share(proxy_N, count) @ _share(truth_N, count)) / count


def top_spearman(proxy: ArrayLike, truth: ArrayLike, percent: float) -> float:
    """SRC(k %): among the true top k %, including all ties with the last of them."""
    proxy_N, truth_N = _pair(proxy, truth)
    chosen_N = truth_N >= _cut(truth_N, top_count(len(truth_N), percent))
    return spearman(proxy_N[chosen_N], truth_N[chosen_N])


def top_count(models: int, percent: float) -> int:
    if not 0 < percent <= 100:
        raise UserError(f"the top {percent:g} %: give more than 0 and at most 100.")
    if models == 0:
        raise UserError("there is nothing to rank.")
    return max(1, int(np.floor(models * percent / 100 + 1e-9)))


@dataclass(frozen=True)
class Bin:
    """The models of one size range, and the proxy's rank correlation among them."""

    low: float
    high: float
    models: int
    src: float


def spearman_by_size(proxy: ArrayLike, truth: ArrayLike, size: ArrayLike, bins: int | Sequence[float]) -> list[Bin]:
    """SRC by model size (Fig. 12): a number of bins with equally many models each, or bins with the given edges.

    A bin is low ≤ size < high, and the last bin includes its upper end. Models outside the edges are left out.
    """
    proxy_N, truth_N = _pair(proxy, truth)
    size_N = np.asarray(size, np.float64)
    if isinstance(bins, int):
        if bins < 1:
            raise UserError(f"{bins} bins: there must be at least 1.")
        edges = np.unique(np.quantile(size_N, np.linspace(0, 1, bins + 1)))
    else:
        edges = np.asarray(bins, np.float64)
        if len(edges) < 2 or (np.diff(edges) <= 0).any():
            listed = ", ".join(f"{edge:g}" for edge in edges)
            raise UserError(f"bins need at least two increasing edges; given: {listed}.")
    if len(edges) == 1:  # all of one size
        edges = np.repeat(edges, 2)
    groups = []
    for place, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        within_N = (size_N >= low) & ((size_N <= high) if place == len(edges) - 2 else (size_N < high))
        src = spearman(proxy_N[within_N], truth_N[within_N])
        groups.append(Bin(low, high, int(within_N.sum()), src))
    return groups


def _sign(left: Floats, right: Floats) -> np.ndarray:
    """The sign of the comparison. Not the sign of the difference, which is nan between infinities."""
    return (left > right).astype(np.int8) - (left < right).astype(np.int8)


def _pair(proxy: ArrayLike, truth: ArrayLike) -> tuple[Floats, Floats]:
    proxy_N, truth_N = np.asarray(proxy, np.float64), np.asarray(truth, np.float64)
    if proxy_N.shape != truth_N.shape or proxy_N.ndim != 1:
        raise UserError(f"a value a model is needed on both sides; the shapes are {proxy_N.shape} and {truth_N.shape}.")
    if np.isnan(proxy_N).any() or np.isnan(truth_N).any():
        raise UserError("missing values cannot be ranked; leave those models out.")
    return proxy_N, truth_N


def _cut(values_N: Floats, count: int) -> float:
    """The `count`-th highest value."""
    return float(np.partition(values_N, len(values_N) - count)[len(values_N) - count])


def _share(values_N: Floats, count: int) -> Floats:
    """The probability of each model to be in the top if ties at the cut are broken at random."""
    cut = _cut(values_N, count)
    above_N: Mask = values_N > cut
    at_N: Mask = values_N == cut
    tied = (count - above_N.sum()) / at_N.sum()
    return np.where(above_N, 1.0, np.where(at_N, tied, 0.0))


FEWEST = 4  # models needed for an interval
JACKKNIFED = 20  # models from which the standard error is that of the jackknife
MOST_GROUPS = 500  # groups of models that the jackknife leaves out in turn
DRAWS = 1000
HALVINGS = 12
TAIL = 1 / 80  # probability of normal samples beyond either end
LIMIT = 5.5  # largest z: a correlation of 0.99997
POPULATION = 20_000  # sample size for the correlation that remains of ρ with ties

_Z_G = np.linspace(-LIMIT - 1, LIMIT + 1, 4001)


def spearman_interval(proxy: ArrayLike, truth: ArrayLike) -> tuple[float, float] | None:
    """The 95 % interval of Spearman's correlation; None for fewer than 4 models or a constant side."""
    a_N, b_N = (ranks(values) for values in (proxy, truth))
    if len(a_N) < FEWEST or not np.ptp(a_N) or not np.ptp(b_N):
        return None
    low, high = (_jackknifed if len(a_N) >= JACKKNIFED else _simulated)(a_N, b_N)
    r = float(_correlation(a_N, b_N))
    return min(low, r), max(high, r)  # the interval always includes the estimate


def _correlation(a: Floats, b: Floats) -> Floats:
    """Spearman's correlation along the last dimension; 0 if one side is constant."""
    a, b = (values - values.mean(axis=-1, keepdims=True) for values in (a, b))
    size = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.asarray((a * b).sum(axis=-1) / np.where(size > 0, size, np.inf))


def _z(r: Floats, n: int) -> Floats:
    most = 1 - 6 / (n**3 - n)  # half a step below 1
    return np.asarray(np.interp(np.clip(r, -most, most), _expected(n), _Z_G))


@lru_cache(maxsize=4)
def _expected(n: int) -> Floats:
    """The expected r of samples of size n at every z of the grid."""
    rho_G = np.tanh(_Z_G)
    return np.asarray((6 / np.pi * np.arcsin(rho_G) + (n - 2) * _population(rho_G)) / (n + 1))


def _population(rho: ArrayLike) -> Floats:
    return np.asarray(6 / np.pi * np.arcsin(np.asarray(rho) / 2))


def _jackknifed(a_N: Floats, b_N: Floats) -> tuple[float, float]:
    z, left_out_G = z_left_out(a_N, b_N)
    reach = t_quantile(len(left_out_G) - 1) * jackknife_error(left_out_G)
    low, high = _population(np.tanh([z - reach, z + reach]))
    return float(low), float(high)


def jackknife_error(left_out_G: Floats) -> float:
    """The standard error of an estimate, from the estimates without one group at a time."""
    groups = len(left_out_G)
    return float(np.sqrt((groups - 1) / groups * ((left_out_G - left_out_G.mean()) ** 2).sum()))


def z_left_out(proxy: ArrayLike, truth: ArrayLike) -> tuple[float, Floats]:
    """The z of Spearman's correlation, of all models and with one group of them left out at a time. The groups depend
    only on the number of models."""
    a_N, b_N = (ranks(values) for values in (proxy, truth))
    n, groups = len(a_N), min(len(a_N), MOST_GROUPS)
    group_N = np.random.default_rng(0).permutation(n) % groups
    left_out = []
    for group in range(groups):
        kept = group_N != group
        r = _correlation(_without(a_N, kept), _without(b_N, kept))
        left_out.append(float(_z(r, int(kept.sum()))))
    return float(_z(_correlation(a_N, b_N), n)), np.array(left_out)


def _without(ranks_N: Floats, kept: Mask) -> Floats:
    """Ranks without the removed models: lower by one for each removed value below, and by a half for each tie."""
    gone = np.sort(ranks_N[~kept])
    ranks = ranks_N[kept]
    return np.asarray(ranks - (gone.searchsorted(ranks, "left") + gone.searchsorted(ranks, "right")) / 2)


def _simulated(a_N: Floats, b_N: Floats) -> tuple[float, float]:
    n, stream = len(a_N), np.random.default_rng(0)
    r = float(_correlation(a_N, b_N))
    x_RN, noise_RN = np.sort(stream.normal(size=(DRAWS, n)), axis=1), stream.normal(size=(DRAWS, n))
    a_N, b_N = np.sort(a_N), np.sort(b_N)

    def sample(z: float) -> Floats:
        """Correlations of normal samples with the same ties as the models."""
        return _correlation(a_N, b_N[_order(np.tanh(z) * x_RN + noise_RN / np.cosh(z))])

    def end(as_extreme: float) -> float:
        """The ρ at which samples are as high (1) or as low (−1) as r with probability 1/80."""
        low, high = -LIMIT, LIMIT
        for _ in range(HALVINGS):
            z = (low + high) / 2
            often = np.mean(as_extreme * sample(z) >= as_extreme * r - 1e-9)
            low, high = (z, high) if (often < TAIL) == (as_extreme > 0) else (low, z)
        return (low + high) / 2

    ends = end(1.0), end(-1.0)
    low, high = (float(_population(np.tanh(z))) for z in ends)
    if len(np.unique(a_N)) < n or len(np.unique(b_N)) < n:
        # Ties reduce a correlation, in the population more or less than in the sample: either may be the end.
        u_P, v_P = np.sort(stream.normal(size=POPULATION)), stream.normal(size=POPULATION)
        models_P = np.arange(POPULATION) * n // POPULATION
        a_P, b_P = a_N[models_P], b_N[models_P]
        tied = [float(_correlation(a_P, b_P[_order(np.tanh(z) * u_P + v_P / np.cosh(z))])) for z in ends]
        low, high = min(low, tied[0]), max(high, tied[1])
    # If the order is perfect, up to ties, no correlation is too high.
    least, most = float(_correlation(a_N, b_N[::-1])), float(_correlation(a_N, b_N))
    return (-1.0 if r <= least + 1e-12 else low), (1.0 if r >= most - 1e-12 else high)


def _order(values: Floats) -> np.ndarray:
    return values.argsort(axis=-1).argsort(axis=-1)
