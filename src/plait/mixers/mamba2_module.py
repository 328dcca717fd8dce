"""Mamba-2: a selective state space whose decay is one number a head and token (state space duality, SSD).

    Δ_t = softplus(δ_t + b),   a_t = exp(−exp(A) Δ_t),   S_t = a_t S_{t−1} + B_t (Δ_t x_t)ᵀ,   y_t = S_tᵀ C_t + D x_t
    out = W_o RMSNorm(y ∘ silu(z))

z, x, B, C and δ are one linear map of the input; x, B and C then pass a short convolution with silu. B and C serve
all heads of a group. Read as linear attention, C is the query, B the key and Δx the value. The norm runs over the
whole inner width, whatever the groups.

Dao & Gu 2024, arXiv:2405.21060.

Letters: B batch, T new tokens, D model width, I inner width, H heads, P head width, N state size, G groups,
C convolved channels (I + 2 G N), W width of the convolution.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mamba2 import Mamba2Options
from plait.mixers.mixer import Draw, State
from plait.mixers.shared import HeadNorm, RecurrentMixer
from plait.ops.gla import gla, gla_step
from plait.ops.shortconv import short_conv, short_conv_step

# Ranges of the initial rates exp(A) and steps Δ, the authors'.
RATES = (1.0, 16.0)
STEPS = (1e-3, 1e-1)


class Mamba2(RecurrentMixer):
    def __init__(self, d: int, options: Mamba2Options) -> None:
        super().__init__(d, options)
        inner, channels = int(options.inner_width(d)), int(options.conv_width(d))
        self.heads, self.width = int(options.heads(d)), options.head_dim
        self.groups, self.state_size = options.groups, options.state
        self.taps_std = (3 * options.conv) ** -0.5  # that of torch's own convolutions, U(±1/√W)
        self.splits = [inner, channels, self.heads]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.taps_CW = nn.Parameter(self.taps_std * torch.randn(channels, options.conv))
        self.taps_bias_C = nn.Parameter(torch.zeros(channels))
        self.log_rate_H = nn.Parameter(torch.zeros(self.heads))
        self.step_bias_H = nn.Parameter(torch.zeros(self.heads))
        self.skip_H = nn.Parameter(torch.ones(self.heads))
        self.norm = HeadNorm(1, inner, eps=1e-5, shared=True)  # the whole width as one head
        self.output = nn.Linear(inner, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        draw(self.taps_CW, self.taps_std)
        init_decay(self.log_rate_H, self.step_bias_H, draw)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        channels, width = self.taps_CW.shape
        return {
            "S": self.zeros(batch, self.heads, self.state_size, self.width, dtype=self.state_dtype),
            "conv": self.zeros(batch, width - 1, channels),
        }

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        z, mixed_BTC, step = self.input(x_BTD).split(self.splits, dim=-1)
        mixed_BTC, conv = short_conv(
            mixed_BTC, self.taps_CW, self.taps_bias_C, state_BHC=state.get("conv"), activation="silu"
        )
        q, k, v_BTHP = self._heads(mixed_BTC)
        step_BTH, g_BTH = self._decay(step)
        y_BTHP, S_BHNP = gla(q, k, step_BTH[..., None] * v_BTHP, g_BTH, state=state.get("S"))
        return self._combine(y_BTHP, v_BTHP, z), {"S": S_BHNP, "conv": conv}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        z, mixed_BC, step = self.input(x_BD).split(self.splits, dim=-1)
        mixed_BC, conv = short_conv_step(mixed_BC, self.taps_CW, self.taps_bias_C, state["conv"], activation="silu")
        q, k, v_BHP = self._heads(mixed_BC)
        step_BH, g_BH = self._decay(step)
        y_BHP, S_BHNP = gla_step(q, k, step_BH[..., None] * v_BHP, g_BH, state["S"])
        return self._combine(y_BHP, v_BHP, z), {"S": S_BHNP, "conv": conv}

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries C and keys B, repeated for the heads of their group, and values x."""
        shared = self.groups * self.state_size
        v, k, q = mixed.to(self.state_dtype).split([self.heads * self.width, shared, shared], dim=-1)
        return self._to_heads(q), self._to_heads(k), v.unflatten(-1, (self.heads, self.width))

    def _to_heads(self, shared: Tensor) -> Tensor:
        by_group: Tensor = shared.unflatten(-1, (self.groups, 1, self.state_size))
        return by_group.expand(*by_group.shape[:-2], self.heads // self.groups, -1).flatten(-3, -2)

    def _decay(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The step Δ and the log decay −exp(A) Δ."""
        step = F.softplus(step.to(self.state_dtype) + self.step_bias_H)
        return step, -self.log_rate_H.to(step.dtype).exp() * step

    def _combine(self, y: Tensor, v: Tensor, z: Tensor) -> Tensor:
        y = (y + self.skip_H[:, None] * v).flatten(-2)
        out: Tensor = self.output(self.norm(y * F.silu(z)).to(z.dtype))
        return out


def init_decay(log_rate_H: nn.Parameter, step_bias_H: nn.Parameter, draw: Draw) -> None:
    """Rates exp(A) uniform in RATES; steps softplus(b) uniform in their logarithm over STEPS."""
    log_rate_H.copy_(_uniform(log_rate_H, draw, *RATES).log())
    init_steps(step_bias_H, draw)


def init_steps(step_bias_H: nn.Parameter, draw: Draw) -> None:
    """Steps softplus(b) uniform in their logarithm over STEPS."""
    step_H = _uniform(step_bias_H, draw, math.log(STEPS[0]), math.log(STEPS[1])).exp()
    step_bias_H.copy_(step_H + torch.log(-torch.expm1(-step_H)))  # the inverse of softplus


def _uniform(parameter: nn.Parameter, draw: Draw, low: float, high: float) -> Tensor:
    """Uniform numbers from the parameter's own normal stream, through the normal distribution function."""
    draw(parameter, 1.0)
    share: Tensor = torch.special.ndtr(parameter.detach())
    return low + (high - low) * share
