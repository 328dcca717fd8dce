"""Options and cost of Mamba's selective state spaces (`mamba`, `mamba2`, `mamba3`).

Letters of `mamba`: d model width, E = expand · d inner width, N state per channel, R rank of the step size, W width of
the convolution; of `mamba2`: I inner width, H heads, P head width, N state size, G groups that share B and C; of
`mamba3`: also R rank, A angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class MambaOptions(MixerOptions):
    """Selective state space with its own gate: a sequence and a channel mixer in one.

    MAD's setting is `mamba[state=4,conv_bias=false]`, four layers of it in place of two blocks.
    """

    name: ClassVar[str] = "mamba"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.mamba_module:Mamba"
    reference: ClassVar[str] = "Gu and Dao 2023, arXiv:2312.00752"
    state_knobs: ClassVar[tuple[str, ...]] = ("state", "expand")

    state: int = option(16, "numbers of state per channel", minimum=1, choices=(4, 8, 16, 32))
    expand: float = option(2.0, "inner width, in units of d", minimum=0, choices=(1.0, 2.0))
    conv: int = option(4, "width of the short convolution", minimum=1, choices=(2, 4))
    dt_rank: int = option(0, "rank of the step size's projection (0: d / 16, rounded up)", minimum=0)
    conv_bias: bool = option(True, "bias on the short convolution")
    bias: bool = option(False, "biases on the input and output projections")

    @property
    def lends(self) -> str:
        return "memory"

    def inner_width(self, d: Number) -> Number:
        width = self.expand * d
        return round(width) if isinstance(width, (int, float)) else width

    def rank(self, d: Number) -> Number:
        return -(-d // 16) if isinstance(self.dt_rank, int) and not self.dt_rank else self.dt_rank

    def check(self, d: int) -> None:
        if self.inner_width(d) < 1 or self.expand * d != self.inner_width(d):
            raise UserError(f"mamba: expand={self.expand:g} times d={d} is {self.expand * d:g}, not a whole width.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        E, N, R, W = self.inner_width(d), self.state, self.rank(d), self.conv
        return Cost(
            params={
                "input, gate": linear(d, 2 * E, self.bias),
                SHORT_CONV: E * W + (E if self.conv_bias else 0),
                "selection": linear(E, R + 2 * N),
                "step size": linear(R, E, bias=True),
                "A": E * N,
                "D": E,
                "output": linear(E, d, self.bias),
            },
            flops={
                "projections": 2 * seq * (d * 2 * E + E * (R + 2 * N) + R * E + E * d),
                SHORT_CONV: 2 * seq * E * W,
                # Each number of state is written and read once per token; decays and the skip are elementwise.
                MIXING: 4 * seq * E * N,
            },
            fixed_state=E * N,
            conv_state=(W - 1) * E,
        )


@dataclass(frozen=True)
class Mamba2Options(MixerOptions):
    """Selective state space with one decay per head (SSD). It has its own gate and is used without an MLP."""

    name: ClassVar[str] = "mamba2"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.mamba_module:Mamba2"
    state_knobs: ClassVar[tuple[str, ...]] = ("state", "expand")
    reference: ClassVar[str] = "Dao & Gu 2024, arXiv:2405.21060"

    state: int = option(128, "state per channel", minimum=1, choices=(16, 32, 64, 128))
    expand: int = option(2, "inner width, in d", minimum=1, choices=(1, 2))
    head_dim: int = option(64, "inner channels that share a decay", minimum=1, choices=(32, 64, 128))
    conv: int = option(4, "width of the short convolution", minimum=1)
    groups: int = option(1, "groups of heads, each with its own B and C", minimum=1)

    @property
    def lends(self) -> str:
        return "memory"

    def inner_width(self, d: Number) -> Number:
        return self.expand * d

    def heads(self, d: Number) -> Number:
        return self.expand * d // self.head_dim

    def conv_width(self, d: Number) -> Number:
        """Channels of x, B and C, which go through the short convolution together."""
        return self.expand * d + 2 * self.groups * self.state

    def check(self, d: int) -> None:
        if self.inner_width(d) % self.head_dim:
            raise UserError(
                f"mamba2: expand × d = {self.inner_width(d)} is not a multiple of head_dim={self.head_dim}."
            )
        if self.heads(d) % self.groups:
            raise UserError(f"mamba2: the {self.heads(d)} heads are not a multiple of groups={self.groups}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        inner, heads, channels = self.inner_width(d), self.heads(d), self.conv_width(d)
        weights_in = linear(d, inner + channels + heads)
        return Cost(
            params={
                "input": weights_in,
                SHORT_CONV: channels * (self.conv + 1),
                "decay, step, skip": 3 * heads,
                "output norm": inner,
                "output": linear(inner, d),
            },
            flops={
                "projections": 2 * seq * (weights_in + inner * d),
                SHORT_CONV: 2 * seq * channels * self.conv,
                MIXING: 4 * seq * inner * self.state,
            },
            fixed_state=inner * self.state,
            conv_state=channels * (self.conv - 1),
        )


@dataclass(frozen=True)
class Mamba3Options(MixerOptions):
    """Mamba-2 with a state rotated by data-dependent angles, a trapezoidal step and no short convolution."""

    name: ClassVar[str] = "mamba3"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.mamba_module:Mamba3"
    state_knobs: ClassVar[tuple[str, ...]] = ("state", "expand")
    reference: ClassVar[str] = "Lahoti et al. 2026, arXiv:2603.15569"

    state: int = option(128, "state per channel", minimum=2, choices=(16, 32, 64, 128))
    expand: int = option(2, "inner width, in d", minimum=1, choices=(1, 2))
    head_dim: int = option(64, "inner channels that share a decay", minimum=1, choices=(32, 64, 128))
    groups: int = option(1, "groups of heads, each with its own B and C", minimum=1)
    rotate: float = option(0.5, "share of the state that turns (0: none of it)", minimum=0, choices=(0.0, 0.5, 1.0))
    step_max: float = option(
        0.1, "largest initial step Δ; what turns by more at the start learns to turn sooner", minimum=1e-3
    )
    turn: str = option(
        "step",
        "angle per token: π tanh(φ) Δ; held: from 0 to π, whatever Δ, with both ends held once reached",
        allowed=("step", "held"),
        choices=("step", "held"),
    )
    rank: int = option(1, "inputs and outputs of the state per channel (MIMO)", minimum=1, choices=(1, 4))

    def inner_width(self, d: Number) -> Number:
        return self.expand * d

    def heads(self, d: Number) -> Number:
        return self.expand * d // self.head_dim

    def angles(self) -> int:
        """Pairs of state channels that are rotated."""
        return int(self.state * self.rotate) // 2

    def check(self, d: int) -> None:
        if self.inner_width(d) % self.head_dim:
            raise UserError(
                f"mamba3: expand × d = {self.inner_width(d)} is not a multiple of head_dim={self.head_dim}."
            )
        if self.heads(d) % self.groups:
            raise UserError(f"mamba3: the {self.heads(d)} heads are not a multiple of groups={self.groups}.")
        if self.rotate > 1:
            raise UserError(f"mamba3: rotate={self.rotate} given, but it is a share of the state, at most 1.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        inner, heads, n, r = self.inner_width(d), self.heads(d), self.state, self.rank
        # What one token writes and the next token needs again: B of every head, and x.
        last = heads * r * n + inner
        turned = self.angles() if isinstance(n, int) else (n * self.rotate).astype(int) // 2
        weights_in = linear(d, 2 * inner + 2 * n * self.groups * r + 3 * heads + turned)
        params = {
            "input": weights_in,
            "step bias, skip": 2 * heads,
            "norms of B and C": 2 * n,
            "biases of B and C": 2 * heads * r * n,
            "output": linear(inner, d),
        }
        if not isinstance(r, int) or r > 1:
            params["ranks"] = 3 * r * inner * (r > 1)
        return Cost(
            params=params,
            flops={"projections": 2 * seq * (weights_in + inner * d), MIXING: 4 * seq * inner * n * r},
            fixed_state=inner * n + heads * turned + last,
        )
