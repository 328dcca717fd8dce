"""Options and cost of DeltaProduct (`deltaproduct`).

Letters: d model width, H heads, K width of a head's keys and of its values, n steps per token, W width of the short
convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.cost import MIXING, SHORT_CONV, Cost, Number, linear
from plait.mixers.options import MixerOptions, option


@dataclass(frozen=True)
class DeltaProductOptions(MixerOptions):
    """DeltaNet with several steps of the delta rule per token: its state can be turned, not only reflected."""

    name: ClassVar[str] = "deltaproduct"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.deltaproduct_module:DeltaProduct"
    state_knobs: ClassVar[tuple[str, ...]] = ("head_dim",)
    reference: ClassVar[str] = "Siems et al. 2025, arXiv:2502.10297"

    head_dim: int = option(128, "width of a head", minimum=1, choices=(32, 64, 128))
    steps: int = option(2, "steps of the delta rule per token", minimum=1, choices=(2, 3, 4))
    conv: int = option(4, "width of the short convolutions on queries, keys and values", minimum=1)
    neg_eigval: bool = option(True, "write strengths up to 2: the state's eigenvalues reach -1", choices=(False, True))
    forget: bool = option(False, "the state decays first, one gate per head (Gated DeltaProduct)")
    out_gate: str = option("none", "gate on the output", allowed=("none", "silu", "sigmoid"))

    def check(self, d: int) -> None:
        if d % self.head_dim:
            raise UserError(f"deltaproduct: d={d} is not a multiple of head_dim={self.head_dim}.")

    def conv_width(self, d: Number) -> Number:
        """Channels of the queries and of every step's keys and values, which go through the convolution together."""
        return d * (1 + 2 * self.steps)

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        heads, state, channels = d // self.head_dim, d * self.head_dim, self.conv_width(d)
        params = {
            "query": linear(d, d),
            "key, value": 2 * self.steps * linear(d, d),
            "write strength": linear(d, self.steps * heads),
            SHORT_CONV: channels * self.conv,
            "output norm": self.head_dim,
            "output": linear(d, d),
        }
        weights = d * channels + d * self.steps * heads + d * d
        if self.forget:
            params["forget gate"] = linear(d, heads) + 2 * heads
            weights = weights + d * heads
        if self.out_gate != "none":
            params["output gate"] = linear(d, d)
            weights = weights + d * d
        return Cost(
            params=params,
            flops={
                "projections": 2 * seq * weights,
                SHORT_CONV: 2 * seq * channels * self.conv,
                # Each step reads and writes; the output is read once.
                MIXING: 2 * seq * state * (2 * self.steps + 1),
            },
            fixed_state=state,
            conv_state=channels * (self.conv - 1),
        )
