"""Options and cost of RWKV-7's time mixing (`rwkv7`).

Letters: d model width, H heads, K width of a head's keys and of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.cost import MIXING, Cost, Number, linear
from plait.mixers.options import MixerOptions, option

#: What the token shift feeds: receptance (the query), decay, key, value, in-context learning rate and output gate.
SHIFTED = 6


@dataclass(frozen=True)
class Rwkv7Options(MixerOptions):
    """Goose: a delta rule with a decay and a learning rate per channel, and shifted inputs."""

    name: ClassVar[str] = "rwkv7"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.rwkv7_module:Rwkv7"
    state_knobs: ClassVar[tuple[str, ...]] = ("head_dim",)
    reference: ClassVar[str] = "Peng et al. 2025, arXiv:2503.14456"

    head_dim: int = option(64, "width of a head", minimum=1, choices=(32, 64, 128))
    decay_rank: int = option(64, "rank of the map to the decays", minimum=1)
    rate_rank: int = option(64, "rank of the map to the in-context learning rates", minimum=1)
    gate_rank: int = option(128, "rank of the map to the output gate", minimum=1)
    neg_eigval: bool = option(False, "learning rates up to 2: the state's eigenvalues reach -1", choices=(False, True))

    def check(self, d: int) -> None:
        if d % self.head_dim:
            raise UserError(f"rwkv7: d={d} is not a multiple of head_dim={self.head_dim}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        low = {
            "decay": 2 * d * self.decay_rank,
            "learning rate": 2 * d * self.rate_rank,
            "output gate": 2 * d * self.gate_rank,
        }
        state = d * self.head_dim
        return Cost(
            params={
                "token shift": SHIFTED * d,
                "receptance, key, value": 3 * linear(d, d),
                "decay": low["decay"] + d,
                "learning rate": low["learning rate"] + d,
                "removal key, replacement rate, bonus": 3 * d,
                "output gate": low["output gate"],
                "output norm": 2 * d,
                "output": linear(d, d),
            },
            flops={"projections": 2 * seq * (4 * d * d + sum(low.values())), MIXING: 6 * seq * state},
            fixed_state=state,
            conv_state=d,
        )
