"""Options and cost of softmax attention (`attn`) and forgetting attention (`fox`), one mixer with two sets of defaults,
and of Transformer-XL's relative attention (`xl-attn`).

Letters: d model width, H query heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, Cost, MixerOptions, Number, linear, option, seen_pairs


@dataclass(frozen=True)
class AttnOptions(MixerOptions):
    """Multi-head softmax attention with every option of the Transformer (LLaMA, Pro), GPT-2 and BERT."""

    name: ClassVar[str] = "attn"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.attn_module:Attention"
    reference: ClassVar[str] = "Vaswani et al. 2017, arXiv:1706.03762"
    canon_points: ClassVar[str | None] = "ab"

    heads: int = option(8, "query heads", minimum=1, choices=(2, 4, 8, 16))
    kv_heads: int = option(0, "key-value heads (0: as many as query heads)", minimum=0)
    head_dim: int = option(0, "width of a head (0: d / heads)", minimum=0)
    pos: str = option("rope", "positions inside attention", allowed=("rope", "alibi", "none"))
    theta: float = option(10000.0, "base of the rotary frequencies", minimum=1)
    rotary: float = option(1.0, "share of a head's channels that pos=rope turns", minimum=0, choices=(0.25, 1.0))
    rope_scaling: str = option(
        "none",
        "how rotary frequencies are slowed for contexts beyond rope_len",
        allowed=("none", "linear", "llama3", "yarn"),
    )
    rope_factor: float = option(1.0, "rope_scaling: by how much", minimum=1)
    rope_len: int = option(8192, "llama3, yarn: the context before scaling", minimum=1)
    rope_low: float = option(1.0, "llama3, yarn: turns within rope_len up to which it is slowed", minimum=1e-3)
    rope_high: float = option(4.0, "llama3, yarn: turns from which a frequency is kept (YaRN: 32)", minimum=1e-3)
    window: int = option(0, "sliding window in tokens, the query's own included (0: none)", minimum=0)
    causal: bool = option(True, "a position sees itself and earlier ones; false in encoders")
    bias: bool = option(False, "biases on the four projections")
    qkv_bias: bool = option(False, "biases on queries, keys and values alone (Qwen2)")
    forget: str = option(
        "none",
        "forget gate: from the data, a bias per head, fixed per head",
        allowed=("none", "full", "bias-only", "fixed"),
    )
    t_min: float = option(2.0, "shortest initial memory in tokens (bias-only and fixed gates)", minimum=1e-3)
    t_max: float = option(2048.0, "longest initial memory in tokens (bias-only and fixed gates)", minimum=1e-3)
    qk_norm: str = option("none", "RMS norm on queries and keys", allowed=("none", "per-head", "shared"))
    qk_eps: float = option(1e-5, "added to the mean square inside qk_norm (Qwen3: 1e-6)", minimum=0)
    out_gate: bool = option(False, "sigmoid gate on the output")
    head_gate: bool = option(False, "sigmoid gate on the output, one per head")
    out_norm: bool = option(False, "RMS norm of each head's output")
    kv_shift: bool = option(False, "mix each key and value with the one before it, by a gate from the data")
    sinks: bool = option(False, "a score per head that takes weight from all keys and brings nothing")

    @property
    def bidirectional(self) -> bool:
        return not self.causal

    def head_width(self, d: Number) -> Number:
        return self.head_dim or d // self.heads

    def canon_width(self, point: str, d: Number) -> Number:
        queries = d if not self.head_dim else self.heads * self.head_dim
        return d if point == "a" else queries + 2 * queries * self.groups() // self.heads

    def groups(self) -> Number:
        """Key-value heads."""
        return self.heads if isinstance(self.kv_heads, int) and self.kv_heads == 0 else self.kv_heads

    def rotary_width(self, d: Number) -> Number:
        """The number of rotated channels per head: the first ones."""
        return int(self.rotary * self.head_width(d))

    def check(self, d: int) -> None:
        if not self.head_dim and d % self.heads:
            raise UserError(f"{self.name}: d={d} is not a multiple of heads={self.heads}; change one or set head_dim.")
        if self.heads % self.groups():
            raise UserError(f"{self.name}: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}.")
        if self.rotary > 1:
            raise UserError(f"{self.name}: rotary={self.rotary} given, but it is a share of the head's channels.")
        if self.pos == "rope" and (self.rotary_width(d) % 2 or not self.rotary_width(d)):
            what = "head width" if self.rotary == 1 else "number of channels to turn"
            raise UserError(f"{self.name}: pos=rope needs an even {what}, not {self.rotary_width(d)}; set head_dim.")
        if self.out_gate and self.head_gate:
            raise UserError(f"{self.name}: out_gate and head_gate are two gates on the same output; give one.")
        if self.sinks and (not self.causal or self.forget != "none" or self.pos == "alibi"):
            raise UserError(f"{self.name}: sinks go with neither causal=false, forget gates nor pos=alibi.")
        if not self.causal and (self.forget != "none" or self.pos == "alibi" or self.kv_shift):
            raise UserError(f"{self.name}: causal=false cannot be combined with forget gates, pos=alibi or kv_shift.")
        if self.bias and self.qkv_bias:
            raise UserError(f"{self.name}: bias is on queries, keys and values as well; leave qkv_bias out.")
        if self.rope_scaling != "none" and self.pos != "rope":
            raise UserError(f"{self.name}: rope_scaling={self.rope_scaling} needs pos=rope.")
        if self.rope_scaling == "yarn" and self.theta <= 1:
            raise UserError(f"{self.name}: rope_scaling=yarn needs theta above 1.")
        if self.rope_scaling in ("llama3", "yarn") and self.rope_low >= self.rope_high:
            raise UserError(f"{self.name}: rope_low={self.rope_low:g} must be less than rope_high={self.rope_high:g}.")
        if self.t_min > self.t_max:
            raise UserError(f"{self.name}: t_min={self.t_min} is larger than t_max={self.t_max}.")

    @property
    def lends(self) -> str:
        return "keys" if self.causal and not self.window and self.forget == "none" and self.pos != "alibi" else ""

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        # Written with H·D = d if no head width is given, so that sizes may be arrays.
        queries = d if not self.head_dim else self.heads * self.head_dim
        keys = queries * self.groups() // self.heads
        params = {
            "query": linear(d, queries, self.bias or self.qkv_bias),
            "key, value": 2 * linear(d, keys, self.bias or self.qkv_bias),
            "output": linear(queries, d, self.bias),
        }
        weights = d * queries + 2 * d * keys + queries * d
        if self.forget == "full":
            params["forget gate"] = linear(d, self.heads, bias=True)
            weights = weights + d * self.heads
        elif self.forget == "bias-only":
            params["forget gate"] = self.heads
        if self.out_gate:
            params["output gate"] = linear(d, queries)
            weights = weights + d * queries
        if self.head_gate:
            params["output gate"] = linear(d, self.heads)
            weights = weights + d * self.heads
        if self.sinks:
            params["sinks"] = self.heads
        if self.kv_shift:
            params["kv shift"] = 2 * linear(d, self.groups())
            weights = weights + 2 * d * self.groups()
        if self.qk_norm == "per-head":
            params["qk norm"] = queries + keys
        elif self.qk_norm == "shared":
            params["qk norm"] = 2 * self.head_width(d)
        if self.out_norm:
            params["output norm"] = queries
        # A window limits what a query sees, including its own key, so the cache must keep one token less than that.
        seen = memory + seq if not self.window else min(self.window, memory + seq)
        held = memory + seq if not self.window else min(self.window - 1, memory + seq)
        return Cost(
            params=params,
            flops={"projections": 2 * seq * weights, MIXING: 4 * seq * seen * queries},
            masked=4 * queries * (seq * seen - seen_pairs(seq, memory, self.window)) if self.causal else 0,
            conv_state=2 * keys if self.kv_shift else 0,
            kv_cache=held * (2 * keys + (self.heads if self.forget != "none" else 0)),
        )


@dataclass(frozen=True)
class FoxOptions(AttnOptions):
    """Forgetting attention: `attn` with a data-dependent forget gate and no positions.

    FoX (LLaMA) is `fox`; FoX (Pro) is `fox[qk_norm=per-head,out_gate,out_norm,kv_shift]`.
    """

    name: ClassVar[str] = "fox"
    reference: ClassVar[str] = "Lin et al. 2025, arXiv:2503.02130"

    pos: str = option("none", "positions inside attention", allowed=("rope", "alibi", "none"))
    forget: str = option(
        "full",
        "forget gate: from the data, a bias per head, fixed per head",
        allowed=("none", "full", "bias-only", "fixed"),
    )


BIASES = "content and position biases"


@dataclass(frozen=True)
class XlAttnOptions(MixerOptions):
    """Relative attention with segment memory; distances beyond `clamp` count as `clamp`."""

    name: ClassVar[str] = "xl-attn"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.xl_attn_module:RelativeAttention"
    reference: ClassVar[str] = "Dai et al. 2019, arXiv:1901.02860"
    canon_points: ClassVar[str | None] = ""  # its memory consists of inputs, before any convolution

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
