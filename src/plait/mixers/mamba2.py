"""Options and cost of Mamba-2 (`mamba2`).

Letters: d model width, I inner width, H heads, P head width, N state size, G groups that share B and C, W width of
the short convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.cost import MIXING, SHORT_CONV, Cost, Number, linear
from plait.mixers.options import MixerOptions, option


@dataclass(frozen=True)
class Mamba2Options(MixerOptions):
    """Selective state space with one decay per head (SSD). It holds its own gate and stands without an MLP."""

    name: ClassVar[str] = "mamba2"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.mamba2_module:Mamba2"
    reference: ClassVar[str] = "Dao & Gu 2024, arXiv:2405.21060"

    state: int = option(128, "state per channel", minimum=1, choices=(16, 32, 64, 128))
    expand: int = option(2, "inner width, in d", minimum=1, choices=(1, 2))
    head_dim: int = option(64, "inner channels that share a decay", minimum=1, choices=(32, 64, 128))
    conv: int = option(4, "width of the short convolution", minimum=1)
    groups: int = option(1, "groups of heads, each with its own B and C", minimum=1)

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
