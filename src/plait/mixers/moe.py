"""Options and cost of the sparse mixture of experts (`moe`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.cost import Cost, Number, linear
from plait.mixers.options import MixerOptions, option


@dataclass(frozen=True)
class MoeOptions(MixerOptions):
    """SwiGLU experts; each token is computed by its `active` best-scored ones and by no other."""

    name: ClassVar[str] = "moe"
    kind: ClassVar[str] = "channel"
    module: ClassVar[str] = "plait.mixers.moe_module:MixtureOfExperts"
    reference: ClassVar[str] = "Shazeer et al. 2017, arXiv:1701.06538; Lepikhin et al. 2020, arXiv:2006.16668"

    experts: int = option(8, "experts in all", minimum=1, choices=(4, 8, 16))
    active: int = option(2, "experts that compute per token", minimum=1, choices=(1, 2))
    inner: int = option(0, "width of one expert (0: a SwiGLU's, divided by the active experts)", minimum=0)
    balance: float = option(0.01, "weight of the load-balancing loss", minimum=0)

    def inner_width(self, d: Number) -> Number:
        if isinstance(self.inner, int) and not self.inner:
            sixteens = (d + 3 * self.active) // (6 * self.active)  # 8 d / 3 / active to the nearest 16 …
            return 16 * (sixteens + (sixteens == 0))  # … and never none
        return self.inner

    def check(self, d: int) -> None:
        if self.active > self.experts:
            raise UserError(f"moe: active={self.active} is more than experts={self.experts}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        w = self.inner_width(d)
        router, expert = linear(d, self.experts), 3 * linear(d, w)
        return Cost(
            params={"router": router, "experts": self.experts * expert},
            active=router + self.active * expert,
            flops={"router": 2 * seq * router, "experts": 2 * seq * self.active * expert},
        )
