"""Options and cost of Kimi delta attention (`kda`).

Letters: d model width, H heads, K width of a head's keys and of its values, W width of the short convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class KdaOptions(MixerOptions):
    """Kimi delta attention: the delta rule on a state of which every key channel decays at a rate from the data."""

    name: ClassVar[str] = "kda"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.kda_module:KimiDeltaAttention"
    state_knobs: ClassVar[tuple[str, ...]] = ("head_dim",)
    reference: ClassVar[str] = "Kimi Team 2025, arXiv:2510.26692"

    heads: int = option(0, "heads (0: d / head_dim)", minimum=0)
    head_dim: int = option(128, "width of a head", minimum=1, choices=(32, 64, 128))
    conv: int = option(4, "width of the short convolutions on queries, keys and values", minimum=1)
    neg_eigval: bool = option(False, "write strengths up to 2: the state's eigenvalues reach -1", choices=(False, True))
    write: str = option(
        "head", "write strength per head, or erased and written per channel (GDN-2)", allowed=("head", "channel")
    )
    out_gate: str = option("sigmoid", "gate on the output", allowed=("none", "silu", "sigmoid"))

    def inner(self, d: Number) -> Number:
        """Width of all heads."""
        return d if isinstance(self.heads, int) and self.heads == 0 else self.heads * self.head_dim

    def check(self, d: int) -> None:
        if not self.heads and d % self.head_dim:
            raise UserError(f"kda: d={d} is not a multiple of head_dim={self.head_dim}; change one or set heads.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        inner = self.inner(d)
        heads, state, low = inner // self.head_dim, inner * self.head_dim, (d + inner) * self.head_dim
        writes = linear(d, heads) if self.write == "head" else 2 * linear(d, inner)
        params = {
            "query, key, value": 3 * linear(d, inner),
            "write strength": writes,
            "forget gate": low + heads + inner,
            SHORT_CONV: 3 * inner * self.conv,
            "output norm": self.head_dim,
            "output": linear(inner, d),
        }
        weights = 4 * d * inner + writes + low
        if self.out_gate != "none":
            params["output gate"] = low + inner
            weights = weights + low
        return Cost(
            params=params,
            flops={
                "projections": 2 * seq * weights,
                SHORT_CONV: 2 * seq * 3 * inner * self.conv,
                MIXING: 6 * seq * state,
            },
            fixed_state=state,
            conv_state=3 * inner * (self.conv - 1),
        )
