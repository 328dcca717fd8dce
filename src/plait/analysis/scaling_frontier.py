"""The compute-optimal frontier of a fitted surface: how to divide a budget C between size N and tokens D, and the cost
of deviating from it.

FLOPs are D · κ N^p, a power law in the size fitted to the runs (κ = 6 and p = 1 for plain Transformers; attention,
embeddings and experts change both). On E + A N^−α + B D^−β the lowest loss at C has

    N* ∝ C^a,  a = β / (α + p β)        D* ∝ C^b,  b = α / (α + p β)        p a + b = 1

All functions are vectorised over fits, such as the samples of a bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.analysis.scaling_surface import Floats, Points

#: Sizes off the optimum, at the same FLOPs.
OFFSETS = (1 / 8, 1 / 4, 1 / 2, 2.0, 4.0)
#: Logarithm of a number beyond all sizes: draws of runs that cannot say would overflow.
MOST = 250.0


@dataclass(frozen=True)
class TokenCost:
    """Training FLOPs per token: κ N^p; `spread` is the relative deviation of the runs."""

    kappa: float
    power: float
    spread: float

    @classmethod
    def of(cls, flops_R: Floats, params_R: Floats, tokens_R: Floats) -> TokenCost:
        n_R, cost_R = np.log(params_R), np.log(flops_R / tokens_R)
        if np.ptp(n_R) < 1e-9:
            return cls(float(np.exp((cost_R - n_R).mean())), 1.0, 0.0)
        power, level = np.polyfit(n_R, cost_R, 1)
        spread = float(np.abs(np.expm1(cost_R - level - power * n_R)).max())
        return cls(float(np.exp(level)), float(power), spread)

    def tokens(self, flops: Floats, params: Floats) -> Floats:
        return flops / (self.kappa * params**self.power)


@dataclass(frozen=True)
class Surface:
    """E, A, B, α and β, as numbers or as arrays over bootstrap samples."""

    E: Floats
    log_A: Floats
    log_B: Floats
    alpha: Floats
    beta: Floats

    @classmethod
    def of(cls, theta_B5: Floats, points: Points) -> Surface:
        alpha, beta = np.exp(theta_B5[..., 3]), np.exp(theta_B5[..., 4])
        log_A, log_B = theta_B5[..., 1] + alpha * points.n_mean, theta_B5[..., 2] + beta * points.d_mean
        return cls(np.exp(theta_B5[..., 0]), log_A, log_B, alpha, beta)

    @property
    def A(self) -> Floats:
        return np.exp(self.log_A)

    @property
    def B(self) -> Floats:
        return np.exp(self.log_B)

    def loss(self, params: Floats, tokens: Floats) -> Floats:
        size, data = self.log_A - self.alpha * np.log(params), self.log_B - self.beta * np.log(tokens)
        return np.asarray(self.E + np.exp(np.minimum(size, MOST)) + np.exp(np.minimum(data, MOST)))

    def exponents(self, cost: TokenCost) -> tuple[Floats, Floats]:
        """a and b."""
        whole = self.alpha + cost.power * self.beta
        return self.beta / whole, self.alpha / whole

    def optimum(self, flops: float, cost: TokenCost) -> tuple[Floats, Floats, Floats]:
        """N*, D* and their loss at a budget."""
        whole = self.alpha + cost.power * self.beta
        balance = np.log(self.alpha / (cost.power * self.beta)) + self.log_A - self.log_B
        params = np.exp(np.clip((balance + self.beta * np.log(flops / cost.kappa)) / whole, -MOST, MOST))
        tokens = cost.tokens(np.asarray(flops), params)
        return params, tokens, self.loss(params, tokens)

    def gap(self, flops: float, cost: TokenCost, offset: float) -> Floats:
        """The excess loss of a model `offset` times the optimal size at these FLOPs."""
        params, _, least = self.optimum(flops, cost)
        return self.loss(offset * params, cost.tokens(np.asarray(flops), offset * params)) - least

    def overhead(self, flops: float, cost: TokenCost, offset: float) -> Floats:
        """The factor in FLOPs that a model `offset` times the optimal size needs to reach the same loss; infinite if no
        number of tokens is enough."""
        params, tokens, least = self.optimum(flops, cost)
        size = np.exp(np.minimum(self.log_A - self.alpha * np.log(offset * params), MOST))
        left = least - self.E - size
        needed = np.exp(np.minimum((self.log_B - np.log(np.where(left > 0, left, 1.0))) / self.beta, MOST))
        return np.where(left > 0, needed / tokens * offset**cost.power, np.inf)
