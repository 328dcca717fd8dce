"""Options and cost of mixers that read from an earlier layer: `cross-attn` its keys and values, `gmu` its memory; and
of Zamba2's layer (`zamba2`), which reads the embeddings in addition to its input.

Letters: d model width, H heads, P head width, E width of the memory, F inner width of the shared MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.attn import AttnOptions
from plait.mixers.mamba import Mamba2Options, MambaOptions
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option, seen_pairs


@dataclass(frozen=True)
class CrossAttnOptions(MixerOptions):
    """Attention to the keys and values of the nearest earlier `attn` without a window; it computes none itself.

    All such layers share one cache (YOCO): `attn swiglu (cross-attn swiglu)x7`.
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


#: What all calls of a `zamba2` block share.
_BLOCK = ("query, key, value", "attention output", "gate, up", "down", "block norms")


@dataclass(frozen=True)
class Zamba2Options(MixerOptions):
    """A Mamba-2 layer to whose input the output of a shared attention and MLP block is added.

    The block reads the layer's input and the embeddings; each layer has its own low-rank adapter on the block's MLP
    (and its queries, keys and values) and its own output map. Layers with the same `share` use the same block.
    """

    name: ClassVar[str] = "zamba2"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.reading_module:Zamba2"
    reads: ClassVar[str] = "embedding"
    prenorm: ClassVar[bool] = False
    canon_points: ClassVar[str | None] = ""
    shared_parts: ClassVar[tuple[str, ...] | str | None] = _BLOCK
    state_knobs: ClassVar[tuple[str, ...]] = ("state", "expand")
    reference: ClassVar[str] = "Glorioso et al. 2024, arXiv:2411.15242"

    state: int = option(64, "state per channel", minimum=1, choices=(16, 32, 64, 128))
    expand: int = option(2, "inner width of Mamba-2, in d", minimum=1, choices=(1, 2))
    head_dim: int = option(64, "inner channels that share a decay", minimum=1, choices=(32, 64, 128))
    conv: int = option(4, "width of the short convolution", minimum=1)
    groups: int = option(1, "groups of Mamba-2's heads, each with its own B and C", minimum=1)
    heads: int = option(8, "attention heads, together 2 d wide", minimum=1, choices=(8, 16, 32))
    inner: int = option(0, "inner width of the MLP (0: 4 d)", minimum=0)
    lora: int = option(0, "rank of each call's adapter on the MLP (0: none)", minimum=0)
    lora_attn: bool = option(False, "an adapter of that rank on queries, keys and values as well")
    pos: str = option("rope", "positions inside attention", allowed=("rope", "none"))
    theta: float = option(10000.0, "base of the rotary frequencies", minimum=1)

    def mlp_width(self, d: Number) -> Number:
        return 4 * d if isinstance(self.inner, int) and not self.inner else self.inner

    def mamba(self) -> Mamba2Options:
        """Its Mamba-2."""
        return Mamba2Options(
            state=self.state, expand=self.expand, head_dim=self.head_dim, conv=self.conv, groups=self.groups
        )

    def check(self, d: int) -> None:
        self.mamba().check(d)
        if 2 * d % self.heads:
            raise UserError(f"zamba2: 2 × d = {2 * d} is not a multiple of heads={self.heads}.")
        if self.pos == "rope" and 2 * d // self.heads % 2:
            raise UserError(f"zamba2: rotary positions need heads of even width, not {2 * d // self.heads}.")
        if self.lora_attn and not self.lora:
            raise UserError("zamba2: lora_attn needs lora=…, the adapters' rank.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        mamba, F, held = self.mamba().cost(d, seq, memory), self.mlp_width(d), memory + seq
        block = dict(
            zip(_BLOCK, (linear(2 * d, 6 * d), linear(2 * d, d), linear(d, 2 * F), linear(F, d), 3 * d), strict=True)
        )
        adapters = self.lora * (d + 2 * F + (12 * d if self.lora_attn else 0))
        own = {"adapters": adapters, "block output": linear(d, d), "norm": d}
        products = sum(block.values()) - 3 * d + adapters + d * d
        return Cost(
            params={**{f"mamba2: {part}": count for part, count in mamba.params.items()}, **block, **own},
            flops={
                **{term: count for term, count in mamba.flops.items() if term != MIXING},
                "block": 2 * seq * products,
                MIXING: mamba.flops[MIXING] + 4 * seq * held * 2 * d,
            },
            masked=8 * d * (seq * held - seen_pairs(seq, memory)),
            fixed_state=mamba.fixed_state,
            conv_state=mamba.conv_state,
            kv_cache=held * 4 * d,
        )
