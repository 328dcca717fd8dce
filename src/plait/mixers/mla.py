"""Options and cost of multi-head latent attention (`mla`).

Letters: d model width, H heads, r rank of keys and values, D width of a query's and key's part without positions, E of
the part with them, V of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option, seen_pairs


@dataclass(frozen=True)
class MlaOptions(MixerOptions):
    """Multi-head latent attention: keys and values of all heads are computed from one short vector per token, and the
    cache holds only that vector."""

    name: ClassVar[str] = "mla"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.mla_module:LatentAttention"
    reference: ClassVar[str] = "DeepSeek-AI 2024, arXiv:2405.04434"

    heads: int = option(8, "heads", minimum=1, choices=(4, 8, 16))
    kv_rank: int = option(0, "width of what is cached for keys and values (0: d / 2)", minimum=0)
    q_rank: int = option(0, "width of what queries come from (0: straight from the input)", minimum=0)
    nope_dim: int = option(0, "width of a head's queries and keys without positions (0: d / heads)", minimum=0)
    rope_dim: int = option(0, "width of their part with positions, one key for all heads (0: nope_dim / 2)", minimum=0)
    v_dim: int = option(0, "width of a head's values (0: d / heads)", minimum=0)
    pos: str = option("rope", "positions of that part", allowed=("rope", "none"))
    theta: float = option(10000.0, "base of the rotary frequencies", minimum=1)
    out_gate: str = option("none", "sigmoid gate on the output", allowed=("none", "per-head", "per-element"))

    def widths(self, d: Number) -> tuple[Number, Number, Number, Number]:
        """kv_rank, nope_dim, rope_dim and v_dim at width d."""
        nope = self.nope_dim or d // self.heads
        return self.kv_rank or d // 2, nope, self.rope_dim or nope // 2, self.v_dim or d // self.heads

    def head_width(self, d: Number) -> Number:
        _, nope, rope, _ = self.widths(d)
        return nope + rope

    def check(self, d: int) -> None:
        if 0 in (self.nope_dim, self.v_dim) and d % self.heads:
            raise UserError(f"mla: d={d} is not a multiple of heads={self.heads}; set nope_dim, rope_dim and v_dim.")
        rope = self.widths(d)[2]
        if self.pos == "rope" and (rope % 2 or not rope):
            raise UserError(f"mla: pos=rope needs an even rope_dim, not {rope}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        heads, (rank, nope, rope, values) = self.heads, self.widths(d)
        queries = linear(d, self.q_rank) + linear(self.q_rank or d, heads * (nope + rope))
        down, up = linear(d, rank + rope), linear(rank, heads * (nope + values))
        params = {
            "query": queries + self.q_rank,
            "key, value, down": down + rank,
            "key, value, up": up,
            "output": linear(heads * values, d),
        }
        weights = queries + down + up + heads * values * d
        if self.out_gate != "none":
            gate = linear(d, heads if self.out_gate == "per-head" else heads * values)
            params["output gate"] = gate
            weights = weights + gate
        seen = memory + seq
        training = 2 * seq * seen * heads * (nope + rope + values)
        # With a cache, every head attends in the latent space: wider, but no keys and values have to be expanded.
        generation = 2 * seq * seen * heads * (2 * rank + rope)
        return Cost(
            params=params,
            flops={"projections": 2 * seq * weights, MIXING: training},
            masked=2 * heads * (nope + rope + values) * (seq * seen - seen_pairs(seq, memory)),
            cached=training - generation,
            kv_cache=seen * (rank + rope),
        )
