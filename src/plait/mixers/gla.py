"""Options and cost of linear attention: plain (`linear`), with forget gates (`gla`, `hgrn2`), and with fixed decays,
which is retention (`retnet`) and lightning attention.

Letters: d model width, H heads, K key width and V value width of a head, R rank of the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class LinearOptions(MixerOptions):
    """Attention by a product of features instead of a softmax: the past is one matrix per head."""

    name: ClassVar[str] = "linear"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.gla_module:LinearAttention"
    state_knobs: ClassVar[tuple[str, ...]] = ("heads",)
    reference: ClassVar[str] = "Katharopoulos et al. 2020, arXiv:2006.16236"
    canon_points: ClassVar[str | None] = "ab"

    heads: int = option(8, "heads", minimum=1, choices=(2, 4, 8, 16))
    feature: str = option(
        "elu1", "feature of queries and keys", allowed=("elu1", "relu", "squared_relu", "softmax", "identity")
    )
    normalize: bool = option(True, "divide by the sum of the weights, as softmax attention does")

    def canon_width(self, point: str, d: Number) -> Number:
        return d if point == "a" else 3 * d

    def check(self, d: int) -> None:
        if d % self.heads:
            raise UserError(f"linear: d={d} is not a multiple of heads={self.heads}.")
        if self.normalize and self.feature == "identity":
            raise UserError("linear: feature=identity gives negative weights, whose sum may be 0; set normalize=false.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        matrix = d * (d // self.heads)
        summed = d if self.normalize else 0
        # The sum of keys is written (an addition) and read (an inner product) like one more value channel.
        return Cost(
            params={"query, key, value": linear(d, 3 * d), "output": linear(d, d)},
            flops={"projections": 2 * seq * 4 * d * d, MIXING: 4 * seq * (matrix + summed)},
            fixed_state=matrix + summed,
        )


@dataclass(frozen=True)
class GlaOptions(MixerOptions):
    """Linear attention whose state decays by data-dependent gates, one per key channel."""

    name: ClassVar[str] = "gla"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.gla_module:GatedLinearAttention"
    state_knobs: ClassVar[tuple[str, ...]] = ("heads", "expand_k")
    reference: ClassVar[str] = "Yang et al. 2023, arXiv:2312.06635"
    canon_points: ClassVar[str | None] = "ab"

    heads: int = option(4, "heads", minimum=1, choices=(2, 4, 8, 16))
    expand_k: float = option(1.0, "width of all keys, in d", minimum=1e-3, choices=(0.5, 1.0))
    expand_v: float = option(1.0, "width of all values, in d", minimum=1e-3, choices=(1.0, 2.0))
    gate_rank: int = option(16, "rank of the map to the decays", minimum=1)
    tau: float = option(16.0, "temperature of the decays: the larger, the longer the memory", minimum=1e-3)
    conv: int = option(0, "width of short convolutions on q, k and v (0: none)", minimum=0, choices=(0, 4))
    out_gate: str = option("silu", "gate on the output", allowed=("none", "silu", "sigmoid"))

    def canon_width(self, point: str, d: Number) -> Number:
        return d if point == "a" else 2 * self.key_width(d) + self.value_width(d)

    def key_width(self, d: Number) -> Number:
        return fraction(d, self.expand_k)

    def value_width(self, d: Number) -> Number:
        return fraction(d, self.expand_v)

    def check(self, d: int) -> None:
        for option_name, factor in (("expand_k", self.expand_k), ("expand_v", self.expand_v)):
            width = d * factor
            if width % self.heads or width < self.heads:
                raise UserError(f"gla: d × {option_name} = {width:.15g} is not a multiple of heads={self.heads}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        keys, values = self.key_width(d), self.value_width(d)
        gate = linear(d, self.gate_rank) + linear(self.gate_rank, keys)
        output_gate = linear(d, values) if self.out_gate != "none" else 0
        weights = 2 * d * keys + 2 * d * values + gate + output_gate
        convolved = (2 * keys + values) * (self.conv > 0)
        state = keys * (values // self.heads)
        return Cost(
            params={
                "query, key": 2 * linear(d, keys),
                "value": linear(d, values),
                "forget gate": gate + keys,
                "output gate": output_gate,
                SHORT_CONV: convolved * self.conv,
                "output norm": values // self.heads,
                "output": linear(values, d),
            },
            flops={
                "projections": 2 * seq * weights,
                SHORT_CONV: 2 * seq * convolved * self.conv,
                MIXING: 4 * seq * state,
            },
            fixed_state=state,
            conv_state=convolved * (self.conv - (self.conv > 0)),
        )


def fraction(d: Number, factor: Number) -> Number:
    """`factor` times the width `d`, an integer (which `check` ensures), or an array of them."""
    width = d * factor
    return round(width) if isinstance(width, float) else width


@dataclass(frozen=True)
class Hgrn2Options(MixerOptions):
    """Gated linear RNN with an outer-product state: a key channel writes to the extent that it forgets."""

    name: ClassVar[str] = "hgrn2"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.gla_module:Hgrn2"
    state_knobs: ClassVar[tuple[str, ...]] = ("head_dim",)
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


@dataclass(frozen=True)
class RetNetOptions(MixerOptions):
    """Retention: linear attention whose heads forget at fixed rates. Lightning attention is
    `retnet[decay=alibi,act=silu,out_gate=sigmoid,expand_v=1]`."""

    name: ClassVar[str] = "retnet"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.gla_module:Retention"
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
        """Key width of all heads."""
        return d if not self.head_dim else self.heads * self.head_dim

    def value_width(self, d: Number) -> Number:
        """Value width of all heads."""
        return fraction(self.key_width(d), self.expand_v)

    def check(self, d: int) -> None:
        if not self.head_dim and d % self.heads:
            raise UserError(f"retnet: d={d} is not a multiple of heads={self.heads}; change one or set head_dim.")
        if self.pos == "rope" and self.key_width(d) // self.heads % 2:
            raise UserError(f"retnet: pos=rope needs an even head width, not {self.key_width(d) // self.heads}.")
        width = self.key_width(d) * self.expand_v
        if width % self.heads or width < self.heads:
            raise UserError(f"retnet: a value width of {width:.15g} is not a multiple of heads={self.heads}.")

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
