"""Mamba: a gated, selective state space.

    u, z = W_in x                                      the input and its gate
    u = silu(shortconv(u))
    r, B, C = W_x u;   Δ = softplus(W_Δ r + b_Δ)       the selection: step size, write and read vectors
    h_t = exp(Δ_t A) ∘ h_{t−1} + (Δ_t u_t) B_t         with A = −exp(log A) < 0
    y = W_o [(⟨h_t, C_t⟩ + D ∘ u_t) ∘ silu(z)]

Gu and Dao 2023, arXiv:2312.00752, Sec. 3.4 and Algorithm 2; initial values from Sec. 3.6 (A_n = −n; Δ in [0.001, 0.1],
drawn log-uniformly as in the authors' public code).

Letters: B batch, T time, D model width, E inner width, N state per channel, R rank of the step size, W width of the
short convolution.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mamba import MambaOptions
from plait.mixers.mixer import Draw, State
from plait.mixers.shared import RecurrentMixer
from plait.ops.scan import selective_scan, selective_scan_step
from plait.ops.shortconv import short_conv, short_conv_step

_SHORTEST_STEP, _LONGEST_STEP = 1e-3, 0.1


class Mamba(RecurrentMixer):
    def __init__(self, d: int, options: MambaOptions) -> None:
        super().__init__(d, options)
        self.inner, self.state, self.rank = int(options.inner_width(d)), options.state, int(options.rank(d))
        self.input_gate = nn.Linear(d, 2 * self.inner, bias=options.bias)
        self.taps_std = (3 * options.conv) ** -0.5
        self.taps_EW = nn.Parameter(self.taps_std * torch.randn(self.inner, options.conv))
        self.taps_bias_E = nn.Parameter(torch.zeros(self.inner)) if options.conv_bias else None
        self.selection = nn.Linear(self.inner, self.rank + 2 * self.state, bias=False)
        self.step_size = nn.Linear(self.rank, self.inner)
        self.log_A_EN = nn.Parameter(torch.arange(1.0, self.state + 1).log().repeat(self.inner, 1))
        self.D_E = nn.Parameter(torch.ones(self.inner))
        self.output = nn.Linear(self.inner, d, bias=options.bias)

    def init_weights(self, draw: Draw) -> None:
        # Both as wide as the authors' uniform draws, from ±W^(−1/2) and ±R^(−1/2).
        draw(self.taps_EW, self.taps_std)
        draw(self.step_size.weight, (3 * self.rank) ** -0.5)
        # Normal noise through its own distribution function is uniform.
        draw(self.step_size.bias, 1.0)
        uniform_E = torch.special.ndtr(self.step_size.bias)
        step_E = _SHORTEST_STEP * torch.exp(uniform_E * math.log(_LONGEST_STEP / _SHORTEST_STEP))
        self.step_size.bias.copy_(step_E + torch.log(-torch.expm1(-step_E)))  # softplus of it is the step again

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {
            "scan": self.zeros(batch, self.inner, self.state, dtype=self.state_dtype),
            "conv": self.zeros(batch, self.taps_EW.shape[1] - 1, self.inner),
        }

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        u_BTE, gate_BTE = self.input_gate(x_BTD).chunk(2, dim=-1)
        u_BTE, conv = short_conv(u_BTE, self.taps_EW, self.taps_bias_E, state_BHC=state.get("conv"), activation="silu")
        y_BTE, scan = selective_scan(*self._select(u_BTE), state_BEN=state.get("scan"))
        return self._combine(y_BTE, gate_BTE), {"scan": scan, "conv": conv}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        u_BE, gate_BE = self.input_gate(x_BD).chunk(2, dim=-1)
        u_BE, conv = short_conv_step(u_BE, self.taps_EW, self.taps_bias_E, state["conv"], activation="silu")
        y_BE, scan = selective_scan_step(*self._select(u_BE), state["scan"])
        return self._combine(y_BE, gate_BE), {"scan": scan, "conv": conv}

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]

    def _select(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the scan takes, in fp32 or wider: the recurrence multiplies its rounding errors. (…, E) in."""
        wide = self.state_dtype
        rank, B, C = self.selection(u).split([self.rank, self.state, self.state], dim=-1)
        delta = F.softplus(self.step_size(rank).to(wide))
        A_EN = -torch.exp(self.log_A_EN.to(wide))
        return u.to(wide), delta, A_EN, B.to(wide), C.to(wide), self.D_E.to(wide)

    def _combine(self, y: Tensor, gate: Tensor) -> Tensor:
        out: Tensor = self.output(y.to(gate.dtype) * F.silu(gate))
        return out
