"""Options and cost of Mamba-3 (`mamba3`).

Letters: d model width, I inner width, H heads, P head width, N state size, G groups that share B and C, R rank,
A angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class Mamba3Options(MixerOptions):
    """Mamba-2 with a state rotated by data-dependent angles, a trapezoidal step and no short convolution."""

    name: ClassVar[str] = "mamba3"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.mamba3_module:Mamba3"
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
