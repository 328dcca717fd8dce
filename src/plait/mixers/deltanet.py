"""Options and cost of the delta rule: DeltaNet (`deltanet`), with decay Gated DeltaNet (`gated-deltanet`), with several
steps per token DeltaProduct (`deltaproduct`), with a decay per channel Kimi delta attention (`kda`).

Letters: d model width, H heads, K width of a head's keys, V of its values, n steps per token, W width of the short
convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.gla import fraction
from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class DeltaNetOptions(MixerOptions):
    """Linear attention that replaces what the state holds at a key instead of adding to it."""

    name: ClassVar[str] = "deltanet"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.deltanet_module:DeltaNet"
    state_knobs: ClassVar[tuple[str, ...]] = ("head_dim",)
    reference: ClassVar[str] = "Yang et al. 2024, arXiv:2406.06484"

    head_dim: int = option(128, "width of a head", minimum=1, choices=(32, 64, 128))
    conv: int = option(4, "width of the short convolutions on queries, keys and values", minimum=1)
    neg_eigval: bool = option(False, "write strengths up to 2: the state's eigenvalues reach -1", choices=(False, True))

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


@dataclass(frozen=True)
class GatedDeltaNetOptions(MixerOptions):
    """DeltaNet whose state decays first, one gate per head, and whose output is gated."""

    name: ClassVar[str] = "gated-deltanet"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.deltanet_module:GatedDeltaNet"
    state_knobs: ClassVar[tuple[str, ...]] = ("head_dim", "expand_v")
    reference: ClassVar[str] = "Yang et al. 2024, arXiv:2412.06464"

    head_dim: int = option(128, "key width of a head", minimum=1, choices=(32, 64, 128))
    expand_v: float = option(1.0, "width of all values, in d", minimum=1e-3, choices=(1.0, 2.0))
    conv: int = option(4, "width of the short convolutions on queries, keys and values", minimum=1)
    neg_eigval: bool = option(False, "write strengths up to 2: the state's eigenvalues reach -1", choices=(False, True))
    out_gate: str = option("silu", "gate on the output", allowed=("none", "silu", "sigmoid"))
    heads: int = option(0, "heads (0: d / head_dim)", minimum=0)

    def head_count(self, d: Number) -> Number:
        return d // self.head_dim if isinstance(self.heads, int) and not self.heads else self.heads

    def key_width(self, d: Number) -> Number:
        return d if isinstance(self.heads, int) and not self.heads else self.heads * self.head_dim

    def value_width(self, d: Number) -> Number:
        return fraction(d, self.expand_v)

    def check(self, d: int) -> None:
        if not self.heads and d % self.head_dim:
            raise UserError(f"gated-deltanet: d={d} is not a multiple of head_dim={self.head_dim}; or also give heads.")
        heads, width = self.head_count(d), d * self.expand_v
        if width % heads or width < heads:
            raise UserError(f"gated-deltanet: d × expand_v = {width:.15g} is not a multiple of the {heads} heads.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        heads, keys, values = self.head_count(d), self.key_width(d), self.value_width(d)
        convolved, state = 2 * keys + values, self.head_dim * values
        gate = linear(d, values) if self.out_gate != "none" else 0
        return Cost(
            params={
                "query, key": linear(d, 2 * keys),
                "value": linear(d, values),
                "write strength": linear(d, heads),
                "forget gate": linear(d, heads) + 2 * heads,
                "output gate": gate,
                SHORT_CONV: convolved * self.conv,
                "output norm": values // heads,
                "output": linear(values, d),
            },
            flops={
                "projections": 2 * seq * (2 * d * keys + 2 * d * values + gate + 2 * d * heads),
                SHORT_CONV: 2 * seq * convolved * self.conv,
                MIXING: 6 * seq * state,
            },
            fixed_state=state,
            conv_state=convolved * (self.conv - 1),
        )


@dataclass(frozen=True)
class DeltaProductOptions(MixerOptions):
    """DeltaNet with several steps of the delta rule per token: its state can be rotated, not only reflected."""

    name: ClassVar[str] = "deltaproduct"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.deltanet_module:DeltaProduct"
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


@dataclass(frozen=True)
class KdaOptions(MixerOptions):
    """Kimi delta attention: the delta rule on a state of which every key channel decays at a rate from the data."""

    name: ClassVar[str] = "kda"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.deltanet_module:KimiDeltaAttention"
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
