"""Options and cost of HGRN2 (`hgrn2`).

Letters: d model width, H heads, K width of a head's keys and of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.cost import MIXING, Cost, Number, linear
from plait.mixers.options import MixerOptions, option


@dataclass(frozen=True)
class Hgrn2Options(MixerOptions):
    """Gated linear RNN with an outer-product state: what a key channel does not keep, it writes."""

    name: ClassVar[str] = "hgrn2"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.hgrn2_module:Hgrn2"
    reference: ClassVar[str] = "Qin et al. 2024, arXiv:2404.07904"

    head_dim: int = option(128, "width of a head: how far the state is expanded", minimum=1, choices=(32, 64, 128))

    def check(self, d: int) -> None:
        if d % self.head_dim:
            raise UserError(f"hgrn2: d={d} is not a multiple of head_dim={self.head_dim}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        state = d * self.head_dim
        return Cost(
            params={
                "query": linear(d, d),
                "forget gate": linear(d, d),
                "value": linear(d, d),
                "output norm": d,
                "output": linear(d, d),
            },
            flops={"projections": 2 * seq * 4 * d * d, MIXING: 4 * seq * state},
            fixed_state=state,
        )
