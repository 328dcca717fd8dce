"""Options and cost of linear attention (`linear`).

Letters: d model width, H heads, K key width of a head (and value width: d / H).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.cost import MIXING, Cost, Number, linear
from plait.mixers.options import MixerOptions, option


@dataclass(frozen=True)
class LinearOptions(MixerOptions):
    """Attention by a product of features instead of a softmax: the past is one matrix per head."""

    name: ClassVar[str] = "linear"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.linear_module:LinearAttention"
    reference: ClassVar[str] = "Katharopoulos et al. 2020, arXiv:2006.16236"

    heads: int = option(8, "heads", minimum=1, choices=(2, 4, 8, 16))
    feature: str = option(
        "elu1", "feature of queries and keys", allowed=("elu1", "relu", "squared_relu", "softmax", "identity")
    )
    normalize: bool = option(True, "divide by the sum of the weights, as softmax attention does")

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
