"""Options and cost of retention (`retnet`), and with it of lightning attention: linear attention with fixed decays.

Letters: d model width, H heads, K key width and V value width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.gla import fraction
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class RetNetOptions(MixerOptions):
    """Retention: linear attention whose heads forget at fixed rates. Lightning attention is
    `retnet[decay=alibi,act=silu,out_gate=sigmoid,expand_v=1]`."""

    name: ClassVar[str] = "retnet"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.retnet_module:Retention"
    state_knobs: ClassVar[tuple[str, ...]] = ("heads", "expand_v")
    reference: ClassVar[str] = "Sun et al. 2023, arXiv:2307.08621; MiniMax 2025, arXiv:2501.08313"

    heads: int = option(4, "heads", minimum=1, choices=(2, 4, 8))
    head_dim: int = option(0, "key width of a head (0: d / heads)", minimum=0)
    expand_v: float = option(2.0, "width of all values, in that of all keys", minimum=1e-3, choices=(1.0, 2.0))
    decay: str = option(
        "retnet", "decay per token of head h of H: 1 - 2^(-5-h), or exp(-2^(-8 (h+1)/H))", allowed=("retnet", "alibi")
    )
    pos: str = option("rope", "positions of queries and keys", allowed=("rope", "none"))
    theta: float = option(10000.0, "base of the rotary frequencies", minimum=1)
    act: str = option("none", "nonlinearity of queries, keys and values", allowed=("none", "silu"))
    out_gate: str = option("silu", "gate on the output", allowed=("none", "silu", "sigmoid"))

    def key_width(self, d: Number) -> Number:
        """Of all heads."""
        return d if not self.head_dim else self.heads * self.head_dim

    def value_width(self, d: Number) -> Number:
        """Of all heads."""
        return fraction(self.key_width(d), self.expand_v)

    def check(self, d: int) -> None:
        if not self.head_dim and d % self.heads:
            raise UserError(f"retnet: d={d} is not a multiple of heads={self.heads}; change one or set head_dim.")
        if self.pos == "rope" and self.key_width(d) // self.heads % 2:
            raise UserError(f"retnet: pos=rope needs an even head width, not {self.key_width(d) // self.heads}.")
        width = self.key_width(d) * self.expand_v
        if width % self.heads or width < self.heads:
            raise UserError(f"retnet: a value width of {width:g} is not a multiple of heads={self.heads}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        keys, values = self.key_width(d), self.value_width(d)
        params = {
            "query, key": 2 * linear(d, keys),
            "value": linear(d, values),
            "output norm": values // self.heads,
            "output": linear(values, d),
        }
        weights = 2 * d * keys + 2 * d * values
        if self.out_gate != "none":
            params["output gate"] = linear(d, values)
            weights = weights + d * values
        state = keys * (values // self.heads)
        return Cost(
            params=params,
            flops={"projections": 2 * seq * weights, MIXING: 4 * seq * state},
            fixed_state=state,
        )
