"""Options and cost of Zamba2's layer (`zamba2`), which reads the embeddings beside its input.

Letters: d model width, F inner width of the shared MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.mamba import Mamba2Options
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option, seen_pairs

#: What all calls of a `zamba2` block share.
_BLOCK = ("query, key, value", "attention output", "gate, up", "down", "block norms")


@dataclass(frozen=True)
class Zamba2Options(MixerOptions):
    """A Mamba-2 layer whose input has the output of an attention and MLP block added, the same at every call.

    The block reads the layer's input and the embeddings; a low-rank adapter on its MLP (and its queries, keys and
    values) and the map of its output belong to the call. Layers with the same `share` call the same block.
    """

    name: ClassVar[str] = "zamba2"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.zamba2_module:Zamba2"
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
