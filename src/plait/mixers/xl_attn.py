"""Options and cost of Transformer-XL's relative attention (`xl-attn`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, option, seen_pairs

BIASES = "content and position biases"


@dataclass(frozen=True)
class XlAttnOptions(MixerOptions):
    """Relative attention with segment memory; distances beyond `clamp` count as `clamp`."""

    name: ClassVar[str] = "xl-attn"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.xl_attn_module:RelativeAttention"
    reference: ClassVar[str] = "Dai et al. 2019, arXiv:1901.02860"
    canon_points: ClassVar[str | None] = ""  # its memory is of inputs, before any convolution

    heads: int = option(8, "heads", minimum=1, choices=(2, 4, 8))
    head_dim: int = option(0, "width of a head (0: d / heads)", minimum=0)
    window: int = option(0, "tokens a query sees, its own included (0: all that is kept)", minimum=0)
    clamp: int = option(0, "largest distance told apart (0: no limit)", minimum=0)
    shared_bias: bool = option(False, "one pair of content and position biases for all layers")

    def head_width(self, d: Number) -> Number:
        return self.head_dim or d // self.heads

    def check(self, d: int) -> None:
        if not self.head_dim and d % self.heads:
            raise UserError(f"{self.name}: d={d} is not a multiple of heads={self.heads}; change one or set head_dim.")
        if d % 2:
            raise UserError(f"{self.name}: sinusoidal distances need an even d, not {d}.")

    def shares(self, d: int) -> dict[str, tuple[int, ...]]:
        return {BIASES: (self.heads, self.head_width(d))} if self.shared_bias else {}

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        inner = d if isinstance(self.head_dim, int) and not self.head_dim else self.heads * self.head_dim
        held = memory if not self.window else min(memory, self.window - 1)
        keys = held + seq
        distances = keys if not self.clamp else min(keys, self.clamp + 1)
        biases = {BIASES: 2 * inner}
        return Cost(
            params={"query": d * inner, "key, value": 2 * d * inner, "distance": d * inner, "output": inner * d}
            | ({} if self.shared_bias else biases),
            shared=biases if self.shared_bias else {},
            flops={
                "query, output": 4 * seq * d * inner,
                "key, value": 4 * keys * d * inner,
                "distance": 2 * distances * d * inner,
                # content scores, position scores, and the weighted sum of values
                MIXING: 6 * seq * keys * inner,
            },
            masked=6 * inner * (seq * keys - seen_pairs(seq, held, self.window)),
            cached=4 * held * d * inner,
            kv_cache=(min(keys, self.window - 1) if self.window else keys) * 2 * inner,
        )
