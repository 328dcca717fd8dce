"""Selective state spaces: `mamba`, `mamba2` and `mamba3`.

`step` computes the recurrence token by token; `extend` and `forward` compute the same with a two-level scan
(`plait.ops.scan`) for `mamba`, and in chunks (`plait.ops.gla`) for `mamba2` and
`mamba3`, which are linear attention with one decay per head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mamba import Mamba2Options, Mamba3Options, MambaOptions
from plait.mixers.mixer import ConvolvedMixer, Draw, HeadNorm, Loan, RecurrentMixer, RmsNorm, State
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


WEAKEST_RATE = 1e-4  # smallest −log a per unit of Δ


class Mamba3(RecurrentMixer):
    """Mamba-3: a selective state space with a trapezoidal step and a complex state, and no short convolution.

        Δ_t = softplus(δ_t + b),   a_t = exp(−softplus(A_t) Δ_t),   λ_t = σ(·),   θ_t = θ_{t−1} + π tanh(φ_t) Δ_t
        S_t = a_t S_{t−1} + (1 − λ_t) Δ_t a_t B_{t−1} x_{t−1}ᵀ + λ_t Δ_t B_t x_tᵀ,   y_t = S_tᵀ C_t + D x_t
        out = W_o [ y ∘ silu(z) ]

    z, x, B, C, δ, A, λ and the angles φ are one linear map of the input. B and C are RMS-normed, get a bias per head
    and are rotated by θ_t, pair by pair, which is equivalent to a complex state. The previous input counts with weight
    1 − λ, similar to a short convolution of width 2.

    A rotation by π for every one, and none for a zero, computes parity at any length: Δ = 1 and tanh φ = 1 for a one, Δ
    = 0 for a zero, so that h ← 1 − h (a test checks such weights up to 2,048 tokens). Training gets close to this
    solution but does not reach it. Nothing keeps a learned step at exactly 1, as a saturated sigmoid keeps β of the
    delta rule at 2, and an error of ε per token grows to T ε after T tokens: an error of 1 % of π, too small to affect
    the loss on 32 tokens, is out of phase at 128. Steps initialised at 0.1 or less rotate by at most a tenth of π,
    where the gradient nearly vanishes: parity is learned with `step_max=1`. With `turn=held`, which is ours, a token
    rotates by π clamp(φ_t / 6 + 1/2, 0, 1), whatever its step: 0 and π are the ends of the range, which can be reached
    exactly and then kept.

    With rank R > 1 (MIMO) a token has R columns of B and C for the same state, x_r = x ∘ m_r, and the outputs y_r ∘
    silu(z ∘ n_r) are summed with weights o_r. The plain recurrence (`_mix`) writes once per token: token j has weight
    λ_j Δ_j + (1 − λ_{j+1}) Δ_{j+1} for all later tokens, including what the next token adds for it, and λ_j Δ_j for
    itself.

    Lahoti et al. 2026, "Mamba-3: Improved Sequence Modeling using State Space Principles", arXiv:2603.15569; norms,
    biases and initial values as in the authors' public code.

    Letters: B batch, T new tokens, D model width, I inner width, H heads, P head width, N state size, G groups, R rank,
    A angles.
    """

    def __init__(self, d: int, options: Mamba3Options) -> None:
        super().__init__(d, options)
        inner = int(options.inner_width(d))
        self.heads, self.width, self.rank = int(options.heads(d)), options.head_dim, options.rank
        self.step_max, self.held = options.step_max, options.turn == "held"
        self.groups, self.state_size, self.angles = options.groups, options.state, options.angles()
        shared = self.rank * self.groups * self.state_size
        self.splits = [inner, inner, shared, shared, self.heads, self.heads, self.heads, self.angles]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.step_bias_H = nn.Parameter(torch.zeros(self.heads))
        self.skip_H = nn.Parameter(torch.ones(self.heads))
        self.key_norm, self.query_norm = (RmsNorm(self.state_size, 1e-5) for _ in range(2))
        self.key_bias_HRN = nn.Parameter(torch.ones(self.heads, self.rank, self.state_size))
        self.query_bias_HRN = nn.Parameter(torch.ones(self.heads, self.rank, self.state_size))
        if self.rank > 1:
            shape = self.heads, self.rank, self.width
            self.rank_in_HRP = nn.Parameter(torch.full(shape, 1 / self.rank))
            self.rank_gate_HRP = nn.Parameter(torch.ones(shape))
            self.rank_out_HRP = nn.Parameter(torch.full(shape, 1 / self.rank))
        self.output = nn.Linear(inner, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        init_steps(self.step_bias_H, draw, self.step_max)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        H, N, P = self.heads, self.state_size, self.width
        sizes = {"S": (H, N, P), "angle": (H, self.angles), "B": (H, self.rank, N), "x": (H, P)}
        return {name: self.zeros(batch, *size, dtype=self.state_dtype) for name, size in sizes.items()}

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        state = state or self.init_state_like(x_BTD)
        z, x, b, c, delta, rate, share, turn = self.input(x_BTD).split(self.splits, dim=-1)
        x_BTHP, z_BTHP = (part.unflatten(-1, (self.heads, self.width)) for part in (x, z))
        step_BTH = F.softplus(delta.to(self.state_dtype) + self.step_bias_H)
        g_BTH = -F.softplus(rate.to(self.state_dtype)).clamp(min=WEAKEST_RATE) * step_BTH
        share_BTH = share.to(self.state_dtype).sigmoid()
        angle_BTHA = state["angle"][:, None] + self._turned(turn.to(self.state_dtype), step_BTH).cumsum(1)
        k_BTHRN = self._placed(self.key_norm, b, self.key_bias_HRN, angle_BTHA)
        q_BTHRN = self._placed(self.query_norm, c, self.query_bias_HRN, angle_BTHA)

        now_BTH, before_BTH = share_BTH * step_BTH, (1 - share_BTH) * step_BTH
        later_BTH = F.pad(before_BTH[:, 1:], (0, 0, 0, 1))  # what the next token adds; for the last token, added later
        # The last token of the state gets its second contribution before it decays.
        S_BHNP = state["S"] + before_BTH[:, 0, :, None, None] * self._write(state["B"], state["x"])
        y_BTHRP, S_BHNP = self._mix(q_BTHRN, k_BTHRN, self._ranks(x_BTHP), now_BTH + later_BTH, g_BTH, S_BHNP)
        own_BTHRR = q_BTHRN @ k_BTHRN.mT  # a token does not see what the next one adds for it
        y_BTHRP = y_BTHRP - later_BTH[..., None, None] * (own_BTHRR @ self._ranks(x_BTHP))
        new = {"S": S_BHNP, "angle": angle_BTHA[:, -1] % (2 * math.pi), "B": k_BTHRN[:, -1], "x": x_BTHP[:, -1]}
        exact = {name: value.to(self.state_dtype) for name, value in new.items()}
        return self._combine(y_BTHRP, x_BTHP, z_BTHP), exact

    def _turned(self, turn_BTA: Tensor, step_BTH: Tensor) -> Tensor:
        """The rotation angle of each token for every head's state."""
        if self.held:
            return math.pi * F.hardsigmoid(turn_BTA)[..., None, :].expand(-1, -1, self.heads, -1)
        return math.pi * turn_BTA.tanh()[..., None, :] * step_BTH[..., None]

    def init_state_like(self, x_BTD: Tensor) -> State:
        return {name: value.to(x_BTD.device) for name, value in self.init_state(x_BTD.shape[0]).items()}

    def _placed(self, norm: nn.Module, flat: Tensor, bias_HRN: Tensor, angle_BTHA: Tensor) -> Tensor:
        """B or C of every head, normed, with its bias, and its first 2 A channels rotated pair by pair; only the
        angles, which accumulate, are in full precision."""
        by_group: Tensor = flat.unflatten(-1, (self.rank, self.groups, 1, self.state_size))
        normed: Tensor = norm(by_group).expand(*by_group.shape[:-2], self.heads // self.groups, -1).flatten(-3, -2)
        x_BTHRN = normed.transpose(-3, -2).to(flat.dtype) + bias_HRN.to(flat.dtype)
        if not self.angles:
            return x_BTHRN
        turning, still = x_BTHRN.split([2 * self.angles, self.state_size - 2 * self.angles], dim=-1)
        first, second = turning.unflatten(-1, (self.angles, 2)).unbind(-1)
        cos, sin = (part[..., None, :].to(flat.dtype) for part in (angle_BTHA.cos(), angle_BTHA.sin()))
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        return torch.cat((turned, still), dim=-1)

    def _ranks(self, x_BTHP: Tensor) -> Tensor:
        """The R inputs of every head, (…, R, P)."""
        return x_BTHP[..., None, :] * self.rank_in_HRP if self.rank > 1 else x_BTHP[..., None, :]

    def _write(self, k_BHRN: Tensor, x_BHP: Tensor) -> Tensor:
        written: Tensor = k_BHRN.mT @ self._ranks(x_BHP)
        return written

    def _mix(
        self, q_BTHRN: Tensor, k_BTHRN: Tensor, v_BTHRP: Tensor, weight_BTH: Tensor, g_BTH: Tensor, S_BHNP: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The plain recurrence. With rank R a token becomes 2 R − 1 tokens: R write, of which the last also reads, and
        the others only read; only the first decays."""
        R, v_BTHRP = self.rank, (weight_BTH[..., None, None] * v_BTHRP).to(k_BTHRN.dtype)
        if R == 1 and q_BTHRN.shape[1] == 1:
            y, S_BHNP = gla_step(q_BTHRN[:, 0, :, 0], k_BTHRN[:, 0, :, 0], v_BTHRP[:, 0, :, 0], g_BTH[:, 0], S_BHNP)
            return y[:, None, :, None], S_BHNP
        reads, writes = (0, 0, 0, 0, R - 1, 0), (0, 0, 0, 0, 0, R - 1)
        q = F.pad(q_BTHRN.transpose(2, 3), reads).flatten(1, 2)
        k, v = (F.pad(part.transpose(2, 3), writes).flatten(1, 2) for part in (k_BTHRN, v_BTHRP))
        g = F.pad(g_BTH[:, :, None], (0, 0, 0, 2 * R - 2)).flatten(1, 2)
        y, S_BHNP = gla(q, k, v, g, state=S_BHNP)
        return y.unflatten(1, (-1, 2 * R - 1))[:, :, R - 1 :].transpose(2, 3), S_BHNP

    def _combine(self, y_BTHRP: Tensor, x_BTHP: Tensor, z_BTHP: Tensor) -> Tensor:
        y_BTHRP = y_BTHRP + self.skip_H[:, None, None] * self._ranks(x_BTHP)
        z_BTHRP = z_BTHP[..., None, :] * self.rank_gate_HRP if self.rank > 1 else z_BTHP[..., None, :]
        gated = y_BTHRP * F.silu(z_BTHRP)
        if self.rank > 1:
            gated = gated * self.rank_out_HRP
        out: Tensor = self.output(gated.sum(-2).flatten(-2).to(z_BTHP.dtype))
        return out
