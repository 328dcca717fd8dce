"""Options and cost of attention to a few chosen keys (`sparse-attn`).

Letters: d model width, H query heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option, seen_pairs


@dataclass(frozen=True)
class SparseAttnOptions(MixerOptions):
    """Softmax attention to the `top` keys that match a query best, selected by a learned index or in whole blocks.

    DSA is `select=index`, MoBA `select=moba`, NSA `select=nsa`.
    """

    name: ClassVar[str] = "sparse-attn"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.sparse_attn_module:SparseAttention"
    reference: ClassVar[str] = (
        "DeepSeek-AI 2025, arXiv:2512.02556; Lu et al. 2025, arXiv:2502.13189; Yuan et al. 2025, arXiv:2502.11089"
    )

    heads: int = option(8, "query heads", minimum=1, choices=(2, 4, 8, 16))
    kv_heads: int = option(0, "key-value heads (0: as many as query heads)", minimum=0)
    head_dim: int = option(0, "width of a head (0: d / heads)", minimum=0)
    pos: str = option("rope", "positions inside attention", allowed=("rope", "none"))
    theta: float = option(10000.0, "base of the rotary frequencies", minimum=1)
    select: str = option(
        "index",
        "tokens by a learned index (DSA), blocks per head (MoBA), or blocks, a window and all blocks' means (NSA)",
        allowed=("index", "moba", "nsa"),
    )
    top: int = option(64, "keys that a query attends to", minimum=1, choices=(32, 64, 128))
    block: int = option(16, "tokens of a block (moba, nsa)", minimum=1, choices=(16, 32, 64))
    window: int = option(32, "window of nsa in tokens, the query's own included", minimum=1)
    index_heads: int = option(4, "heads of the index", minimum=1)
    index_dim: int = option(32, "width of a head of the index, and of its one key per token", minimum=2)
    index_loss: float = option(1.0, "weight of the loss that teaches the index what attention looks at", minimum=0)

    def head_width(self, d: Number) -> Number:
        return self.head_dim or d // self.heads

    def groups(self) -> Number:
        """Key-value heads."""
        return self.heads if isinstance(self.kv_heads, int) and self.kv_heads == 0 else self.kv_heads

    def check(self, d: int) -> None:
        if not self.head_dim and d % self.heads:
            raise UserError(f"{self.name}: d={d} is not a multiple of heads={self.heads}; change one or set head_dim.")
        if self.heads % self.groups():
            raise UserError(f"{self.name}: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}.")
        if self.pos == "rope" and self.head_width(d) % 2:
            raise UserError(f"{self.name}: pos=rope needs an even head width, not {self.head_width(d)}; set head_dim.")
        if self.pos == "rope" and self.select == "index" and self.index_dim % 2:
            raise UserError(f"{self.name}: pos=rope needs an even index_dim, not {self.index_dim}.")
        if self.select != "index" and self.top % self.block:
            raise UserError(f"{self.name}: top={self.top} is not a multiple of block={self.block}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        queries = d if not self.head_dim else self.heads * self.head_dim
        keys = queries * self.groups() // self.heads
        params = {"query": linear(d, queries), "key, value": 2 * linear(d, keys), "output": linear(queries, d)}
        seen = memory + seq
        blocks = seen // self.block
        cache = 2 * keys * seen
        # Attended query-key pairs, and pairs scored for the selection with the cost of one score: over the full
        # rectangle, and the causal ones among them.
        attended, causal = seq * min(self.top, seen), seen_pairs(seq, memory, self.top)
        if self.select == "index":
            params["index"] = linear(d, self.index_heads * (self.index_dim + 1) + self.index_dim)
            cache = cache + self.index_dim * seen
            scored, causal_scored = seq * seen, seen_pairs(seq, memory)
            score = 2 * self.index_heads * self.index_dim
        else:
            scored, causal_scored = seq * blocks, _blocks_before(seen, self.block) - _blocks_before(memory, self.block)
            causal = self._attended_in_blocks(seen) - self._attended_in_blocks(memory)
            means = 1 if self.select == "moba" else 2  # of keys; nsa attends to the blocks' mean values as well
            cache, score = cache + means * keys * blocks, 2 * means * queries
        if self.select == "nsa":
            params["gates"] = linear(d, 3 * self.heads)
            attended = attended + seq * min(self.window, seen)
            causal = causal + seen_pairs(seq, memory, self.window)
        return Cost(
            params=params,
            flops={"projections": 2 * seq * sum(params.values()), MIXING: 4 * attended * queries + scored * score},
            masked=4 * queries * (attended - causal) + score * (scored - causal_scored),
            kv_cache=cache,
        )

    def _attended_in_blocks(self, tokens: int) -> int:
        """Keys that the first `tokens` queries attend to: those of their own block up to themselves, and up to `top` /
        `block` − 1 whole blocks before it."""
        chosen = self.top // self.block - 1
        limited = min(tokens, chosen * self.block)  # queries with no more blocks before them than they may choose
        own = tokens * (tokens + 1) // 2 - self.block * _blocks_before(tokens, self.block)
        return own + self.block * (_blocks_before(limited, self.block) + chosen * (tokens - limited))


def _blocks_before(tokens: int, block: int) -> int:
    """Σ_{p < tokens} ⌊p / block⌋: the whole blocks before each of the first `tokens` positions, summed."""
    whole, rest = divmod(tokens, block)
    return int(block * whole * (whole - 1) // 2 + whole * rest)
