"""Options and cost of DeltaNet (`deltanet`).

Letters: d model width, H heads, K width of a head's keys and of its values, W width of the short convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.cost import MIXING, SHORT_CONV, Cost, Number, linear
from plait.mixers.options import MixerOptions, option


@dataclass(frozen=True)
class DeltaNetOptions(MixerOptions):
    """Linear attention that replaces what the state holds at a key instead of adding to it."""

    name: ClassVar[str] = "deltanet"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.deltanet_module:DeltaNet"
    reference: ClassVar[str] = "Yang et al. 2024, arXiv:2406.06484"

    head_dim: int = option(128, "width of a head", minimum=1, choices=(32, 64, 128))
    conv: int = option(4, "width of the short convolutions on queries, keys and values", minimum=1)

    def check(self, d: int) -> None:
        if d % self.head_dim:
            raise UserError(f"deltanet: d={d} is not a multiple of head_dim={self.head_dim}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        heads, state = d // self.head_dim, d * self.head_dim
        return Cost(
            params={
                "query, key, value": linear(d, 3 * d),
                "write strength": linear(d, heads),
                SHORT_CONV: 3 * d * self.conv,
                "output norm": self.head_dim,
                "output": linear(d, d),
            },
            flops={
                "projections": 2 * seq * (4 * d * d + d * heads),
                SHORT_CONV: 2 * seq * 3 * d * self.conv,
                MIXING: 6 * seq * state,
            },
            fixed_state=state,
            conv_state=3 * d * (self.conv - 1),
        )
