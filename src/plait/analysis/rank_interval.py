"""The 95 % interval of Spearman's rank correlation, near 1 too, where proxies are at their best.

There a sample's correlation is biased towards 0 by more than its spread, and Fisher's z or a bootstrap miss the truth.
So a sample's r is first read as the normal correlation ρ under which r is expected (Moran 1948):

    E r = (3 τ + (n − 2) ρ_s) / (n + 1),    τ = 2/π asin ρ,    ρ_s = 6/π asin(ρ/2)

and z = atanh ρ has nearly a normal distribution. From 20 models on its error is the jackknife's, which assumes nothing
about how the two depend on each other. Below, the ends are those ρ under which a normal sample with the same ties has a
correlation as high, or as low, in one case of 80, by simulation from a fixed stream: one of 40 would be 95 % for normal
samples, and too little where a few models lie far out.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.intervals import t_quantile
from plait.analysis.pareto import Floats, Mask

FEWEST = 4  # models that have an interval
JACKKNIFED = 20  # models from which on the jackknife knows the error
MOST_GROUPS = 500  # of models that the jackknife leaves out together
DRAWS = 1000
HALVINGS = 12
TAIL = 1 / 80  # beyond either end, of normal samples
LIMIT = 5.5  # of z: a correlation of 0.99997
POPULATION = 20_000  # drawn for the correlation that ties leave of a ρ

_Z_G = np.linspace(-LIMIT - 1, LIMIT + 1, 4001)


def spearman_interval(proxy: ArrayLike, truth: ArrayLike) -> tuple[float, float] | None:
    """None where it says nothing: for fewer than 4 models, or one side all equal."""
    from scipy.stats import rankdata

    a_N, b_N = (np.asarray(rankdata(values), np.float64) for values in (proxy, truth))
    if len(a_N) < FEWEST or not np.ptp(a_N) or not np.ptp(b_N):
        return None
    low, high = (_jackknifed if len(a_N) >= JACKKNIFED else _simulated)(a_N, b_N)
    r = float(_correlation(a_N, b_N))
    return min(low, r), max(high, r)  # what was found is possible, whatever the population


def _correlation(a: Floats, b: Floats) -> Floats:
    """Along the last dimension; 0 where one side is all equal."""
    a, b = (values - values.mean(axis=-1, keepdims=True) for values in (a, b))
    size = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.asarray((a * b).sum(axis=-1) / np.where(size > 0, size, np.inf))


def _z(r: Floats, n: int) -> Floats:
    most = 1 - 6 / (n**3 - n)  # half a step below 1
    return np.asarray(np.interp(np.clip(r, -most, most), _expected(n), _Z_G))


@lru_cache(maxsize=4)
def _expected(n: int) -> Floats:
    """Of samples of n, r at every z of the grid."""
    rho_G = np.tanh(_Z_G)
    return np.asarray((6 / np.pi * np.arcsin(rho_G) + (n - 2) * _population(rho_G)) / (n + 1))


def _population(rho: ArrayLike) -> Floats:
    return np.asarray(6 / np.pi * np.arcsin(np.asarray(rho) / 2))


def _jackknifed(a_N: Floats, b_N: Floats) -> tuple[float, float]:
    n, groups = len(a_N), min(len(a_N), MOST_GROUPS)
    group_N = np.random.default_rng(0).permutation(n) % groups
    left_out = []
    for group in range(groups):
        kept = group_N != group
        r = _correlation(_without(a_N, kept), _without(b_N, kept))
        left_out.append(float(_z(r, int(kept.sum()))))
    error = float(np.sqrt((groups - 1) / groups * ((np.array(left_out) - np.mean(left_out)) ** 2).sum()))
    z, reach = float(_z(_correlation(a_N, b_N), n)), t_quantile(groups - 1) * error
    low, high = _population(np.tanh([z - reach, z + reach]))
    return float(low), float(high)


def _without(ranks_N: Floats, kept: Mask) -> Floats:
    """Ranks among those kept: lower by one for each that is gone below, and by a half for each equal."""
    gone = np.sort(ranks_N[~kept])
    ranks = ranks_N[kept]
    return np.asarray(ranks - (gone.searchsorted(ranks, "left") + gone.searchsorted(ranks, "right")) / 2)


def _simulated(a_N: Floats, b_N: Floats) -> tuple[float, float]:
    n, stream = len(a_N), np.random.default_rng(0)
    r = float(_correlation(a_N, b_N))
    x_RN, noise_RN = np.sort(stream.normal(size=(DRAWS, n)), axis=1), stream.normal(size=(DRAWS, n))
    a_N, b_N = np.sort(a_N), np.sort(b_N)

    def sample(z: float) -> Floats:
        """Correlations of normal samples whose ranks are tied as the models' are."""
        return _correlation(a_N, b_N[_order(np.tanh(z) * x_RN + noise_RN / np.cosh(z))])

    def end(as_extreme: float) -> float:
        """Where samples are as high (1) or as low (−1) as r in one case of 80."""
        low, high = -LIMIT, LIMIT
        for _ in range(HALVINGS):
            z = (low + high) / 2
            often = np.mean(as_extreme * sample(z) >= as_extreme * r - 1e-9)
            low, high = (z, high) if (often < TAIL) == (as_extreme > 0) else (low, z)
        return (low + high) / 2

    ends = end(1.0), end(-1.0)
    low, high = (float(_population(np.tanh(z))) for z in ends)
    if len(np.unique(a_N)) < n or len(np.unique(b_N)) < n:
        # Ties take from a correlation, more or less of it than the sample's: the ends may lie at either.
        u_P, v_P = np.sort(stream.normal(size=POPULATION)), stream.normal(size=POPULATION)
        models_P = np.arange(POPULATION) * n // POPULATION
        a_P, b_P = a_N[models_P], b_N[models_P]
        tied = [float(_correlation(a_P, b_P[_order(np.tanh(z) * u_P + v_P / np.cosh(z))])) for z in ends]
        low, high = min(low, tied[0]), max(high, tied[1])
    # Where the order is perfect, as far as ties let one see, no correlation is too high.
    least, most = float(_correlation(a_N, b_N[::-1])), float(_correlation(a_N, b_N))
    return (-1.0 if r <= least + 1e-12 else low), (1.0 if r >= most - 1e-12 else high)


def _order(values: Floats) -> np.ndarray:
    return values.argsort(axis=-1).argsort(axis=-1)
