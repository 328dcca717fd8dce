"""Options and cost of mixers that read from an earlier layer: `cross-attn` its keys and values, `gmu` its memory.

Letters: d model width, H heads, P head width, E width of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.attn import AttnOptions
from plait.mixers.mamba import MambaOptions
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option, seen_pairs


@dataclass(frozen=True)
class CrossAttnOptions(MixerOptions):
    """Attention to the keys and values of the nearest earlier `attn` without a window: it has neither of its own.

    One cache serves them all (YOCO): `attn swiglu (cross-attn swiglu)x7`.
    """

    name: ClassVar[str] = "cross-attn"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.reading_module:CrossAttention"
    reads: ClassVar[str] = "keys"
    canon_points: ClassVar[str | None] = ""
    reference: ClassVar[str] = "Sun et al. 2024, arXiv:2405.05254"

    heads: int = option(8, "query heads", minimum=1, choices=(4, 8, 16))
    head_dim: int = option(0, "width of a head (0: d / heads)", minimum=0)
    pos: str = option("rope", "positions inside attention, as the keys have them", allowed=("rope", "none"))
    theta: float = option(10000.0, "base of the rotary frequencies, as the keys have it", minimum=1)
    bias: bool = option(False, "biases on both projections")

    def head_width(self, d: Number) -> Number:
        return self.head_dim or d // self.heads

    def lender(self) -> MixerOptions:
        return AttnOptions(heads=self.heads, head_dim=self.head_dim, pos=self.pos, theta=self.theta)

    def check(self, d: int) -> None:
        if not self.head_dim and d % self.heads:
            raise UserError(f"cross-attn: d={d} is not a multiple of heads={self.heads}; change one or set head_dim.")
        if self.pos == "rope" and self.head_width(d) % 2:
            raise UserError(f"cross-attn: rotary positions need heads of even width, not {self.head_width(d)}.")

    def check_lender(self, lender: MixerOptions, d: int) -> None:
        assert isinstance(lender, AttnOptions)
        if lender.head_width(d) != self.head_width(d) or self.heads % lender.groups():
            raise UserError(
                f"cross-attn: {self.heads} heads of width {self.head_width(d)} cannot read the keys of "
                f"{lender.to_layer()}: {lender.groups()} heads of width {lender.head_width(d)}."
            )
        turned = (lender.pos, lender.theta if lender.pos == "rope" else self.theta, lender.rotary, lender.rope_scaling)
        if turned != (self.pos, self.theta, 1.0, "none"):
            raise UserError(
                f"cross-attn: queries are turned as the keys are: give pos and theta of {lender.to_layer()}, which may "
                "have neither a share of rotary channels nor rope_scaling."
            )

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        queries = d if not self.head_dim else self.heads * self.head_dim
        seen = memory + seq
        return Cost(
            params={"query": linear(d, queries, self.bias), "output": linear(queries, d, self.bias)},
            flops={"projections": 4 * seq * d * queries, MIXING: 4 * seq * seen * queries},
            masked=4 * queries * (seq * seen - seen_pairs(seq, memory)),
        )


@dataclass(frozen=True)
class GmuOptions(MixerOptions):
    """Gated memory unit: gates the memory of the nearest earlier `mamba` or `mamba2`, W_o [m ∘ silu(W_g x)].

    SambaY's second half alternates it with `cross-attn`: `(gmu swiglu cross-attn swiglu)x7`.
    """

    name: ClassVar[str] = "gmu"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.reading_module:GatedMemory"
    reads: ClassVar[str] = "memory"
    canon_points: ClassVar[str | None] = ""
    reference: ClassVar[str] = "Ren et al. 2025, arXiv:2507.06607"

    expand: float = option(2.0, "width of the memory, in units of d", minimum=0)
    norm: bool = option(False, "an RMS norm behind the gate, as for the memory of mamba2")

    def inner_width(self, d: Number) -> Number:
        width = self.expand * d
        return round(width) if isinstance(width, (int, float)) else width

    def lender(self) -> MixerOptions:
        return MambaOptions(expand=self.expand)

    def check_lender(self, lender: MixerOptions, d: int) -> None:
        if lender.inner_width(d) != self.inner_width(d):
            raise UserError(
                f"gmu: expand={self.expand:g} is a width of {self.inner_width(d)}, but the memory of "
                f"{lender.to_layer()} has {lender.inner_width(d)}."
            )

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        E = self.inner_width(d)
        norm = {"norm": E} if self.norm else {}
        return Cost(
            params={"gate": linear(d, E), "output": linear(E, d), **norm}, flops={"projections": 4 * seq * d * E}
        )
