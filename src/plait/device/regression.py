"""Regression of a positive quantity on sizes, with uncertainty, from a few dozen points: roofline × Gaussian process.

    log y(x) = log Σ_k w_k φ_k(x) + g(x) + noise,    w ≥ 0,    g ~ GP(0, s² k)

The terms φ determine how y grows far from the data; g (Rasmussen & Williams 2006, eq. 2.25, 2.26) captures what they
miss, such as how well a matrix product of this width suits the processor. k is Matérn with ν = 3/2, because speed is
not a smooth function of sizes; its length scales, one per coordinate, s and the noise maximise the marginal likelihood
(eq. 5.8) times a prior, on a grid.

The predictive uncertainty is that of a new measurement: g between the points, the noise, and the weights (eq. 2.42),
which were estimated from the same points. If the residuals are larger than the hyperparameters imply, it is scaled up;
it uses Student's t with the number of points minus fitted parameters as degrees of freedom, so that 1.96 standard
deviations cover 95 % from a dozen points on (`benchmarks/intervals.py`).

Letters: N points, M queries, K terms, D coordinates, C names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from plait.analysis.distributions import t_quantile
from plait.analysis.intervals import NORMAL
from plait.device.features import Features

Floats = NDArray[np.float64]

LENGTHS = (1.0, 2.0, 4.0, 8.0)  # octaves
SCALES = (0.03, 0.06, 0.12, 0.25, 0.5)  # standard deviation of g: 0.12 is twelve per cent
#: Relative noise between two measurements of one layer, minutes apart.
NOISES = (0.01, 0.02, 0.04, 0.08)
#: Priors of the length scales and of s: mean and standard deviation (in e-folds). A few points that the terms happen to
#: fit exactly do not prove that everything between them is known.
USUAL_LENGTH, USUAL_SCALE, EXPECTED = 2.0, 0.12, 0.7
FEW = 15  # points, below which s is not assumed to be smaller than usual
TUNED_ON = 60  # most points: the cost of each evaluation is cubic in their number
LEAST_FREEDOM = 4  # degrees of freedom: with fewer points than parameters, the priors determine the rest
OTHER_NAME = 0.7  # distance, in length scales, between layers that differ in a categorical option


@dataclass(frozen=True)
class Shape:
    """Hyperparameters of the covariance, chosen by likelihood."""

    lengths_D: tuple[float, ...]
    scale: float = USUAL_SCALE
    noise: float = NOISES[1]

    def log_prior(self) -> float:
        unusual = np.log([*(length / USUAL_LENGTH for length in self.lengths_D), self.scale / USUAL_SCALE]) / EXPECTED
        return -0.5 * float(unusual @ unusual)


@dataclass(frozen=True)
class Inputs:
    """Many layers of one kind as arrays."""

    terms_NK: Floats
    place_ND: Floats
    names_NC: NDArray[np.int64]  # names encoded as integers, because comparing text is slow

    def __len__(self) -> int:
        return len(self.terms_NK)

    def __getitem__(self, rows: NDArray[np.int64]) -> Inputs:
        return Inputs(self.terms_NK[rows], self.place_ND[rows], self.names_NC[rows])


class Surface:
    """Fitted to one kind of layer.

    like   an earlier fit to fewer points, whose hyperparameters are kept
    tune   whether to choose hyperparameters at all; not needed if the terms explain everything exactly
    """

    def __init__(
        self,
        points: Sequence[Features],
        values: Floats,
        noise: Floats,
        *,
        like: Surface | None = None,
        tune: bool = True,
    ) -> None:
        self._coordinates = sorted({name for point in points for name in point.place})
        self._names = sorted({name for point in points for name in point.names})
        self._inputs = self.inputs(points)
        self._size_K = np.maximum(self._inputs.terms_NK.max(axis=0), 1e-30)
        self._weights_K = nonnegative_least_squares(
            self._inputs.terms_NK / self._size_K / values[:, None], np.ones(len(values))
        )
        self._left_N = np.log(values / self._roofline(self._inputs))
        self._noise_N = noise
        known = like is not None and like._coordinates == self._coordinates
        self.shape: Shape = like.shape if like is not None and known else self._tuned(tune)
        self._factor_NN, half_N, _ = self._solve(self.shape, self._inputs, self._left_N, self._noise_N)
        self._doubt(half_N)
        # Flipping both axes of L' gives a lower triangle again.
        self._solved_N = forward(self._factor_NN.T[::-1, ::-1], half_N[::-1, None])[::-1, 0]

    def inputs(self, points: Sequence[Features]) -> Inputs:
        return Inputs(
            np.array([point.terms for point in points]),
            np.array([[point.place.get(name, 0.0) for name in self._coordinates] for point in points]),
            np.array([[crc32(point.names.get(name, "").encode()) for name in self._names] for point in points]),
        )

    def predict(self, asked: Inputs) -> tuple[Floats, Floats]:
        """The value, and its relative standard deviation."""
        cross_MN = _kernel(asked, self._inputs, self.shape)
        half_NM = forward(self._factor_NN, cross_MN.T)
        unexplained_KM = self._shares(asked).T - self._shares_half_NK.T @ half_NM
        weights_KM = forward(self._weights_factor_KK, unexplained_KM)
        variance_M = np.maximum(self.shape.scale**2 - (half_NM**2).sum(axis=0), 0) + (weights_KM**2).sum(axis=0)
        mean_M = self._roofline(asked) * np.exp(np.einsum("mn,n->m", cross_MN, self._solved_N))
        return mean_M, self._stretch * np.sqrt(variance_M + self.shape.noise**2)

    def _doubt(self, half_N: Floats) -> None:
        """The uncertainty of the weights (each a factor of e a priori), and the ratio of the observed to the expected
        deviation."""
        self._shares_half_NK = forward(self._factor_NN, self._shares(self._inputs))
        terms = self._shares_half_NK.shape[1]
        self._weights_factor_KK = cholesky(self._shares_half_NK.T @ self._shares_half_NK + np.eye(terms))
        explained_K = forward(self._weights_factor_KK, self._shares_half_NK.T @ half_N[:, None])
        misfit = float((half_N**2).sum() - (explained_K**2).sum())
        varying = int((np.ptp(self._inputs.place_ND, axis=0) > 0).sum())
        free = len(half_N) - terms
        spread = np.sqrt(max(1.0, misfit / max(free, LEAST_FREEDOM)))
        self._stretch = float(spread) * t_quantile(max(free - varying, LEAST_FREEDOM)) / NORMAL

    def _shares(self, asked: Inputs) -> Floats:
        """The share of each weighted term in the roofline."""
        used = self._weights_K > 0
        parts_NK = (asked.terms_NK / self._size_K * self._weights_K)[:, used]
        return np.asarray(parts_NK / self._roofline(asked)[:, None])

    def _roofline(self, asked: Inputs) -> Floats:
        return np.asarray(np.maximum(asked.terms_NK / self._size_K @ self._weights_K, 1e-30))

    def _solve(self, shape: Shape, inputs: Inputs, left_N: Floats, noise_N: Floats) -> tuple[Floats, Floats, float]:
        """The Cholesky factor L of the covariance, L⁻¹ y, and the log posterior of the hyperparameters."""
        variance_N = shape.noise**2 + noise_N**2
        factor_NN = cholesky(_kernel(inputs, inputs, shape) + np.diag(variance_N))
        half_N = forward(factor_NN, left_N[:, None])[:, 0]
        likelihood = -0.5 * float((half_N**2).sum()) - float(np.log(np.diag(factor_NN)).sum())
        return factor_NN, half_N, likelihood + shape.log_prior()

    def _tuned(self, tune: bool) -> Shape:
        """Coordinate ascent: optimise one hyperparameter at a time, in two rounds."""
        best = Shape((USUAL_LENGTH,) * len(self._coordinates))
        if not tune:
            return best
        some = np.random.default_rng(0).permutation(len(self._inputs))[:TUNED_ON]
        data = self._inputs[some], self._left_N[some], self._noise_N[some]
        varying = [at for at in range(len(self._coordinates)) if np.ptp(self._inputs.place_ND[:, at]) > 0]
        highest = self._solve(best, *data)[2]
        variations: list[Callable[[Shape], list[Shape]]] = [partial(_lengths, at=at) for at in varying]
        for _ in range(2):
            for trials in (*variations, self._scales, _noises):
                for shape in trials(best):
                    likelihood = self._solve(shape, *data)[2]
                    if likelihood > highest:
                        best, highest = shape, likelihood
        return self._averaged(best, *data)

    def _averaged(self, best: Shape, inputs: Inputs, left_N: Floats, noise_N: Floats) -> Shape:
        """The variances averaged over their posterior instead of the most likely ones: with few points they are
        uncertain, and the most likely values are often too small."""
        pairs = [pair for scaled in self._scales(best) for pair in _noises(scaled)]
        log = np.array([self._solve(shape, inputs, left_N, noise_N)[2] for shape in pairs])
        likely = np.exp(log - log.max())
        scale, noise = np.sqrt(likely @ [[s.scale**2, s.noise**2] for s in pairs] / likely.sum())
        return replace(best, scale=float(scale), noise=float(noise))

    def _scales(self, shape: Shape) -> list[Shape]:
        enough = len(self._inputs) >= FEW
        return [replace(shape, scale=scale) for scale in SCALES if enough or scale >= USUAL_SCALE]


def _lengths(shape: Shape, at: int) -> list[Shape]:
    before, after = shape.lengths_D[:at], shape.lengths_D[at + 1 :]
    return [replace(shape, lengths_D=(*before, length, *after)) for length in LENGTHS]


def _noises(shape: Shape) -> list[Shape]:
    return [replace(shape, noise=noise) for noise in NOISES]


def _kernel(left: Inputs, right: Inputs, shape: Shape) -> Floats:
    apart_MND = (left.place_ND[:, None] - right.place_ND[None]) / np.array(shape.lengths_D)
    differ_MN = (left.names_NC[:, None] != right.names_NC[None]).sum(axis=2)
    r_MN = np.sqrt(3 * ((apart_MND**2).sum(axis=2) + OTHER_NAME**2 * differ_MN))
    return np.asarray(shape.scale**2 * (1 + r_MN) * np.exp(-r_MN))


def cholesky(matrix_NN: Floats) -> Floats:
    """The lower triangle L with L L' = the matrix.

    Without BLAS: for a few dozen rows its threads gain nothing, and on a busy machine they wait for each other a
    hundred times as long as they compute.
    """
    left_NN, factor_NN = matrix_NN.copy(), np.zeros_like(matrix_NN)
    for k in range(len(left_NN)):
        column = left_NN[k:, k] / np.sqrt(left_NN[k, k])
        factor_NN[k:, k] = column
        left_NN[k + 1 :, k + 1 :] -= column[1:, None] * column[None, 1:]
    return factor_NN


def forward(factor_NN: Floats, right_NM: Floats) -> Floats:
    """L⁻¹ times the right-hand sides."""
    solved_NM = np.array(right_NM)
    for k in range(len(solved_NM)):
        solved_NM[k] /= factor_NN[k, k]
        solved_NM[k + 1 :] -= factor_NN[k + 1 :, k, None] * solved_NM[k]
    return solved_NM


def nonnegative_least_squares(a_NK: Floats, y_N: Floats) -> Floats:
    """The w ≥ 0 that minimises |a w - y| (Lawson & Hanson 1974, Solving Least Squares Problems, ch. 23)."""
    free_K = np.zeros(a_NK.shape[1], dtype=bool)
    w_K = np.zeros(a_NK.shape[1])
    for _ in range(3 * len(w_K)):
        slope_K = a_NK.T @ (y_N - a_NK @ w_K)
        slope_K[free_K] = -np.inf
        if slope_K.max() <= 1e-10 * max(1.0, float(np.abs(y_N).sum())):
            break
        free_K[slope_K.argmax()] = True
        while True:
            trial_K = np.zeros_like(w_K)
            trial_K[free_K] = np.linalg.lstsq(a_NK[:, free_K], y_N, rcond=None)[0]
            wrong_K = free_K & (trial_K <= 0)
            if not wrong_K.any():
                break
            step = (w_K[wrong_K] / (w_K[wrong_K] - trial_K[wrong_K] + 1e-300)).min()
            w_K = w_K + step * (trial_K - w_K)
            free_K &= w_K > 1e-15
            w_K[~free_K] = 0
            if not free_K.any():
                break
        w_K = trial_K if free_K.any() else w_K
    return w_K
