"""Options and cost of RWKV's time mixing: version 6, Finch (`rwkv6`), and version 7, Goose (`rwkv7`).

Letters: d model width, H heads, K width of a head's keys and of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option

#: Outputs of the token shift: decay, key, value, receptance (the query) and output gate.
RWKV6_INPUTS = 5


@dataclass(frozen=True)
class Rwkv6Options(MixerOptions):
    """Linear attention with a decay per channel, a bonus for the current token and shifted inputs (Finch)."""

    name: ClassVar[str] = "rwkv6"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.rwkv_module:Rwkv6"
    state_knobs: ClassVar[tuple[str, ...]] = ("head_dim",)
    reference: ClassVar[str] = "Peng et al. 2024, arXiv:2404.05892"

    head_dim: int = option(64, "width of a head", minimum=1, choices=(32, 64, 128))
    decay_rank: int = option(64, "rank of the map to the decays", minimum=1)
    mix_rank: int = option(32, "rank of each map to the weights of the token shift", minimum=1)

    def check(self, d: int) -> None:
        if d % self.head_dim:
            raise UserError(f"rwkv6: d={d} is not a multiple of head_dim={self.head_dim}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        shift, decay = 2 * RWKV6_INPUTS * d * self.mix_rank, 2 * d * self.decay_rank
        state = d * self.head_dim
        return Cost(
            params={
                "token shift": shift + (1 + RWKV6_INPUTS) * d,
                "decay": decay + d,
                "bonus": d,
                "receptance, key, value, gate": 4 * linear(d, d),
                "output norm": 2 * d,
                "output": linear(d, d),
            },
            flops={
                "token shift": 2 * seq * shift,
                "projections": 2 * seq * (5 * d * d + decay),
                MIXING: 4 * seq * state,
            },
            fixed_state=state,
            conv_state=d,
        )


#: Outputs of the token shift: receptance (the query), decay, key, value, in-context learning rate and output gate.
RWKV7_INPUTS = 6


@dataclass(frozen=True)
class Rwkv7Options(MixerOptions):
    """Goose: a delta rule with a decay and a learning rate per channel, and shifted inputs."""

    name: ClassVar[str] = "rwkv7"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.rwkv_module:Rwkv7"
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
                "token shift": RWKV7_INPUTS * d,
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
