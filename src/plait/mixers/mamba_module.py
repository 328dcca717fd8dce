"""Selective state spaces: `mamba` and `mamba2`.

`step` computes the recurrence token by token; `extend` and `forward` compute the same with a two-level scan
(`plait.ops.scan`) for `mamba`, and in chunks (`plait.ops.gla`) for `mamba2`, which is linear attention with one decay
per head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mamba import Mamba2Options, MambaOptions
from plait.mixers.mixer import ConvolvedMixer, Draw, HeadNorm, Loan, RecurrentMixer, State
from plait.ops.gla import gla, gla_step
from plait.ops.scan import selective_scan, selective_scan_step
from plait.ops.shortconv import short_conv, short_conv_step

# Ranges of the initial rates exp(A) and steps Δ, as in the authors' code.
RATES = (1.0, 16.0)
STEPS = (1e-3, 1e-1)


class Mamba(RecurrentMixer):
    """Mamba: a gated, selective state space.

        u, z = W_in x                                      the input and its gate
        u = silu(shortconv(u))
        r, B, C = W_x u;   Δ = softplus(W_Δ r + b_Δ)       the selection: step size, write and read vectors
        h_t = exp(Δ_t A) ∘ h_{t−1} + (Δ_t u_t) B_t         with A = −exp(log A) < 0
        y = W_o [(⟨h_t, C_t⟩ + D ∘ u_t) ∘ silu(z)]

    Gu and Dao 2023, arXiv:2312.00752, Sec. 3.4 and Algorithm 2; initial values from Sec. 3.6 (A_n = −n; Δ in [0.001,
    0.1], drawn log-uniformly as in the authors' public code).

    Letters: B batch, T time, D model width, E inner width, N state per channel, R rank of the step size, W width of the
    short convolution.
    """

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
        # Both with the standard deviation of the authors' uniform draws, ±W^(−1/2) and ±R^(−1/2).
        draw(self.taps_EW, self.taps_std)
        draw(self.step_size.weight, (3 * self.rank) ** -0.5)
        # Normal noise passed through its cumulative distribution function is uniform.
        draw(self.step_size.bias, 1.0)
        uniform_E = torch.special.ndtr(self.step_size.bias)
        step_E = STEPS[0] * torch.exp(uniform_E * math.log(STEPS[1] / STEPS[0]))
        self.step_size.bias.copy_(step_E + torch.log(-torch.expm1(-step_E)))  # the inverse of softplus

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {
            "scan": self.zeros(batch, self.inner, self.state, dtype=self.state_dtype),
            "conv": self.zeros(batch, self.taps_EW.shape[1] - 1, self.inner),
        }

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.connected(x_BTD, state, {})[:2]

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None = None
    ) -> tuple[Tensor, State, Loan]:
        """Later layers may read the state's output before the gate."""
        state = state or {}
        u_BTE, gate_BTE = self.input_gate(x_BTD).chunk(2, dim=-1)
        u_BTE, conv = short_conv(u_BTE, self.taps_EW, self.taps_bias_E, state_BHC=state.get("conv"), activation="silu")
        y_BTE, scan = selective_scan(*self._select(u_BTE), state_BEN=state.get("scan"))
        return self._combine(y_BTE, gate_BTE), {"scan": scan, "conv": conv}, {"memory": y_BTE.to(x_BTD.dtype)}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        u_BE, gate_BE = self.input_gate(x_BD).chunk(2, dim=-1)
        u_BE, conv = short_conv_step(u_BE, self.taps_EW, self.taps_bias_E, state["conv"], activation="silu")
        y_BE, scan = selective_scan_step(*self._select(u_BE), state["scan"])
        return self._combine(y_BE, gate_BE), {"scan": scan, "conv": conv}

    def _select(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The inputs of the scan for (…, E), all but u in fp32 or wider, because the recurrence amplifies rounding
        errors."""
        wide = self.state_dtype
        rank, B, C = self.selection(u).split([self.rank, self.state, self.state], dim=-1)
        delta = F.softplus(self.step_size(rank).to(wide))
        A_EN = -torch.exp(self.log_A_EN.to(wide))
        return u, delta, A_EN, B.to(wide), C.to(wide), self.D_E.to(wide)

    def _combine(self, y: Tensor, gate: Tensor) -> Tensor:
        out: Tensor = self.output(y.to(gate.dtype) * F.silu(gate))
        return out


class Mamba2(ConvolvedMixer):
    """Mamba-2: a selective state space whose decay is one number per head and token (state space duality, SSD).

        Δ_t = softplus(δ_t + b),   a_t = exp(−exp(A) Δ_t),   S_t = a_t S_{t−1} + B_t (Δ_t x_t)ᵀ
        y_t = S_tᵀ C_t + D x_t
        out = W_o RMSNorm(y ∘ silu(z))

    z, x, B, C and δ are one linear map of the input; x, B and C then pass through a short convolution with silu. B and
    C are shared by all heads of a group. Read as linear attention, C is the query, B the key and Δx the value. The norm
    runs over the whole inner width, whatever the groups.

    Dao & Gu 2024, arXiv:2405.21060.

    Letters: B batch, T new tokens, D model width, I inner width, H heads, P head width, N state size, G groups, C
    convolved channels (I + 2 G N), W width of the convolution.
    """

    def __init__(self, d: int, options: Mamba2Options) -> None:
        super().__init__(d, options)
        inner, channels = int(options.inner_width(d)), int(options.conv_width(d))
        self.heads, self.width = int(options.heads(d)), options.head_dim
        self.groups, self.state_size = options.groups, options.state
        self.state_shape = (self.heads, self.state_size, self.width)
        self.splits = [inner, channels, self.heads]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.add_convolution(channels, options.conv, bias=True)
        self.log_rate_H = nn.Parameter(torch.zeros(self.heads))
        self.step_bias_H = nn.Parameter(torch.zeros(self.heads))
        self.skip_H = nn.Parameter(torch.ones(self.heads))
        self.norm = HeadNorm(1, inner, eps=1e-5, shared=True)  # the whole width as one head
        self.output = nn.Linear(inner, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        super().init_weights(draw)
        init_decay(self.log_rate_H, self.step_bias_H, draw)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.connected(x_BTD, state, {})[:2]

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None = None
    ) -> tuple[Tensor, State, Loan]:
        """Later layers may read the heads' output before gate and norm."""
        state = state or {}
        z, mixed_BTC, step = self.input(x_BTD).split(self.splits, dim=-1)
        mixed_BTC, new = self.convolve(mixed_BTC, state)
        q, k, v_BTHP = self._heads(mixed_BTC)
        step_BTH, g_BTH = self._decay(step)
        written_BTHP = (step_BTH[..., None] * v_BTHP).to(v_BTHP.dtype)
        y_BTHP, new["S"] = gla(q, k, written_BTHP, g_BTH, state=state.get("S"))
        memory_BTE = self._skipping(y_BTHP, v_BTHP)
        return self._combine(memory_BTE, z), new, {"memory": memory_BTE.to(x_BTD.dtype)}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        z, mixed_BC, step = self.input(x_BD).split(self.splits, dim=-1)
        mixed_BC, new = self.convolve(mixed_BC, state)
        q, k, v_BHP = self._heads(mixed_BC)
        step_BH, g_BH = self._decay(step)
        y_BHP, new["S"] = gla_step(q, k, step_BH[..., None] * v_BHP, g_BH, state["S"])
        return self._combine(self._skipping(y_BHP, v_BHP), z), new

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries C and keys B by group, and values x by head."""
        shared = self.groups * self.state_size
        v, k, q = mixed.split([self.heads * self.width, shared, shared], dim=-1)
        q, k = (part.unflatten(-1, (self.groups, self.state_size)) for part in (q, k))
        return q, k, v.unflatten(-1, (self.heads, self.width))

    def _decay(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The step Δ and the log decay −exp(A) Δ."""
        step = F.softplus(step.to(self.state_dtype) + self.step_bias_H)
        return step, -self.log_rate_H.to(step.dtype).exp() * step

    def _skipping(self, y: Tensor, v: Tensor) -> Tensor:
        return (y + self.skip_H[:, None].to(y.dtype) * v).flatten(-2)

    def _combine(self, y: Tensor, z: Tensor) -> Tensor:
        out: Tensor = self.output(self.norm(y * F.silu(z)).to(z.dtype))
        return out


def init_decay(log_rate_H: nn.Parameter, step_bias_H: nn.Parameter, draw: Draw) -> None:
    """Rates exp(A) uniform in RATES; steps softplus(b) log-uniform over STEPS."""
    log_rate_H.copy_(_uniform(log_rate_H, draw, *RATES).log())
    init_steps(step_bias_H, draw)


def init_steps(step_bias_H: nn.Parameter, draw: Draw, largest: float = STEPS[1]) -> None:
    """Steps softplus(b) log-uniform over a hundredfold range that ends at the largest."""
    step_H = _uniform(step_bias_H, draw, math.log(largest * STEPS[0] / STEPS[1]), math.log(largest)).exp()
    step_bias_H.copy_(step_H + torch.log(-torch.expm1(-step_H)))  # the inverse of softplus


def _uniform(parameter: nn.Parameter, draw: Draw, low: float, high: float) -> Tensor:
    """Uniform numbers from the parameter's own normal stream, through the normal CDF."""
    draw(parameter, 1.0)
    share: Tensor = torch.special.ndtr(parameter.detach())
    return low + (high - low) * share
