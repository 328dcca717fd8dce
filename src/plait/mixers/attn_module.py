"""Softmax and forgetting attention: one module for the Transformer (LLaMA, Pro), FoX (LLaMA, Pro), GPT-2 and BERT.

Per head, with log f_t = logsigmoid(w_f·x_t + b_f) and c_t = Σ_{s≤t} log f_s (both in fp32):

    o_i = Σ_j softmax_j(q_i·k_j / √P + c_i − c_j) v_j

Without a forget gate c = 0 and this is softmax attention; a fixed f per head is ALiBi. The "Pro" parts, in order:
k and v are mixed with their predecessors (k'_t = α_t k̃_{t−1} + (1−α_t) k̃_t, α_t = σ(w_α·x_t)), q and the shifted k
are RMS-normed per head, and the output is RMS-normed per head and gated, W_o[norm(o) ∘ σ(W_g x)].

Two more: `head_gate` multiplies each head's output by σ(w_g·x) (Qiu et al. 2025, arXiv:2505.06708; `out_gate` each of
its channels), and `sinks` adds a learned exp(z_h) to the softmax's denominator. `rotary` is the fraction of a head's
channels that are rotated, the first ones.

Vaswani et al. 2017, arXiv:1706.03762; Lin et al. 2025, arXiv:2503.02130 (gate, KV-shift and block order as in the
authors' public code, which the paper's page refers to).

Letters: B batch, T new tokens, N keys, D model width, H query heads, G key-value heads, P head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.attn import AttnOptions
from plait.mixers.canon_module import INNER_TAIL, Canon, crop_tail
from plait.mixers.mixer import (
    CachedMixer,
    Cut,
    Draw,
    HeadNorm,
    Loan,
    State,
    appended,
    cannot_crop,
    only_present,
    trimmed,
)
from plait.mixers.rotary import RopeScaling, Rotary
from plait.ops.attention import (
    FEW_QUERIES,
    alibi_slopes,
    attention,
    attention_at,
    attention_reference,
    sink_attention,
)
from plait.ops.elementwise import take_tokens


class Attention(CachedMixer):
    paddable = True
    cache = ("k", "v", "log_f")
    slopes_H: Tensor
    forget_bias: Tensor
    sinks_H: nn.Parameter | None
    dropout = 0.0  # of the attention probabilities; set by trainings that use it

    def __init__(self, d: int, options: AttnOptions) -> None:
        super().__init__(d, options)
        self.heads, self.groups, self.width = options.heads, int(options.groups()), int(options.head_width(d))
        self.causal, self.window, self.pos = options.causal, options.window, options.pos
        self.turned = int(options.rotary_width(d))
        self.rotary = Rotary(self.turned, options.theta, _scaling(options)) if options.pos == "rope" else None
        self.forget = options.forget
        inner = self.heads * self.width
        self.qkv = nn.Linear(d, inner + 2 * self.groups * self.width, bias=options.bias or options.qkv_bias)
        self.canon = Canon(self.qkv.out_features) if "b" in options.canon else None
        self.paddable = self.canon is None
        self.output = nn.Linear(inner, d, bias=options.bias)
        self.output_gate = nn.Linear(d, inner, bias=False) if options.out_gate else None
        self.head_gate = nn.Linear(d, self.heads, bias=False) if options.head_gate else None
        self.register_parameter("sinks_H", nn.Parameter(torch.zeros(self.heads)) if options.sinks else None)
        self.output_norm = HeadNorm(self.heads, self.width, eps=1e-6) if options.out_norm else None
        self.kv_shift = nn.Linear(d, 2 * self.groups, bias=False) if options.kv_shift else None
        self.query_norm: HeadNorm | None = None
        self.key_norm: HeadNorm | None = None
        if options.qk_norm != "none":
            shared = options.qk_norm == "shared"
            self.query_norm = HeadNorm(self.heads, self.width, eps=options.qk_eps, shared=shared)
            self.key_norm = HeadNorm(self.groups, self.width, eps=options.qk_eps, shared=shared)
        if self.forget == "full":
            self.forget_gate = nn.Linear(d, self.heads)
        elif self.forget in ("bias-only", "fixed"):
            bias_H = forget_bias(self.heads, options.t_min, options.t_max)
            if self.forget == "bias-only":
                self.forget_bias = nn.Parameter(bias_H)
            else:
                self.register_buffer("forget_bias", bias_H)
        if options.pos == "alibi":
            self.register_buffer("slopes_H", torch.tensor(alibi_slopes(self.heads)), persistent=False)

    def init_weights(self, draw: Draw) -> None:
        if self.canon is not None:
            self.canon.init_weights(draw)

    def forward(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> Tensor:
        return self._combine(x_BTD, self._attend(*self.heads_of(x_BTD, pad_B), pad_B))

    def forward_at(self, x_BTD: Tensor, at_BN: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self._only_softmax() or at_BN.shape[1] > FEW_QUERIES:
            return super().forward_at(x_BTD, at_BN)
        if not self._queries_apart():
            q, k, v, _ = self.heads_of(x_BTD)
            mixed = attention_at(take_tokens(q, at_BN), k, v, at_BN)
            return self._combine(take_tokens(x_BTD, at_BN), mixed), None
        x_BND = take_tokens(x_BTD, at_BN)
        return self._combine(x_BND, attention_at(*self._heads_at(x_BND, x_BTD, at_BN), at_BN)), None

    def _queries_apart(self) -> bool:
        """Whether some rows of the matrix make the queries of a token by itself: not if they are convolved, nor if
        something else than the matrix makes them, such as an adapter or a part of it in each of several processes."""
        return self.canon is None and type(self.qkv) is nn.Linear

    def _heads_at(self, x_BND: Tensor, x_BTD: Tensor, at_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of some tokens, which are at these positions, and keys and values of all."""
        query_rows = self.heads * self.width
        parts = [None, None] if self.qkv.bias is None else self.qkv.bias.tensor_split([query_rows])
        weights = self.qkv.weight.tensor_split([query_rows])
        q, kv = (
            F.linear(x, weight, bias).unflatten(-1, (-1, self.width))
            for x, weight, bias in zip((x_BND, x_BTD), weights, parts, strict=True)
        )
        if self.rotary is not None and self.kv_shift is None and self.query_norm is None:
            turned = self.rotary.split(kv, 0)
            if turned is not None:
                return self._turn(q, at_BN), *turned[1:]
        k, v = kv.split(self.groups, dim=-2)
        k, v = self._shifted_from_start(x_BTD, k, v)
        return self._placed(q, self.query_norm, at_BN), self._placed(k, self.key_norm, None), v

    def _only_softmax(self) -> bool:
        """Whether this is plain causal softmax attention: no window, and scores that are inner products only."""
        dropped = self.dropout and self.training
        plain = self.causal and self.forget == "none" and self.pos != "alibi" and self.sinks_H is None
        return plain and not self.window and not dropped

    def heads_of(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The inputs of the attention op: q, k and v after shift, norm and rotation, and the log forget gates."""
        joint = self._joint(x_BTD, {})
        if self.rotary is not None and self.kv_shift is None and self.query_norm is None:
            turned = self.rotary.split(joint, self.heads)
            if turned is not None:
                return *turned, self._log_forget(x_BTD)
        q, k, v = self._split(joint)
        k, v = self._shifted_from_start(x_BTD, k, v, pad_B)
        return (
            self._placed(q, self.query_norm, None), self._placed(k, self.key_norm, None), v, self._log_forget(x_BTD)
        )  # fmt: skip

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        if not self.causal:
            raise UserError(f"{self.options.name}[causal=false] sees later tokens; it has no state to step from.")
        state = {
            "k": self.zeros(batch, 0, self.groups, self.width),
            "v": self.zeros(batch, 0, self.groups, self.width),
            "pos": self.zeros(batch, dtype=torch.long),
        }
        if self.forget != "none":
            state["log_f"] = self.zeros(batch, 0, self.heads, dtype=self._exact_dtype())
        if self.kv_shift is not None:
            # The newest keys and values before the shift: the next token is mixed with the last of them.
            state["k_tail"] = self.zeros(batch, 1 + rollback, self.groups, self.width)
            state["v_tail"] = self.zeros(batch, 1 + rollback, self.groups, self.width)
        if self.canon is not None:
            state[INNER_TAIL] = self.canon.init_tail(batch, rollback)
        if self.window:
            # How many tokens more than the window are kept, encoded as a shape.
            state["spare"] = self.zeros(batch, rollback, dtype=torch.bool)
        return state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        new = dict(state)
        q, k, v = self._split(self._joint(x_BTD, new))
        positions_BT = state["pos"][:, None] + torch.arange(x_BTD.shape[1], device=x_BTD.device)
        if self.kv_shift is not None:
            held = state["held"] if "held" in state else state["k"].shape[1]
            k, v = (self._drop_padding(t, state.get("pad"), held) for t in (k, v))
            keep = state["k_tail"].shape[1]
            new["k_tail"] = torch.cat([state["k_tail"], k], dim=1)[:, -keep:]
            new["v_tail"] = torch.cat([state["v_tail"], v], dim=1)[:, -keep:]
            k, v = self._shift(x_BTD, k, v, state["k_tail"][:, -1:], state["v_tail"][:, -1:])
        q, k = self._placed(q, self.query_norm, positions_BT), self._placed(k, self.key_norm, positions_BT)
        new["k"], new["v"] = appended(state, "k", k), appended(state, "v", v)
        new["pos"] = state["pos"] + x_BTD.shape[1]
        log_f_BTH = self._log_forget(x_BTD)
        if log_f_BTH is not None:
            log_f_BTH = new["log_f"] = appended(state, "log_f", log_f_BTH)
        mixed = self._attend(q, new["k"], new["v"], log_f_BTH, new.get("pad"), state.get("held"))
        if self.window:
            new = self._keep_last(new, self.window - 1 + new["spare"].shape[1])
        return self._combine(x_BTD, mixed), new

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None = None
    ) -> tuple[Tensor, State, Loan]:
        if state is None:
            q, k, v, log_f = self.heads_of(x_BTD, pad_B)
            padding = {} if pad_B is None else {"pad": pad_B}
            return self._combine(x_BTD, self._attend(q, k, v, log_f, pad_B)), {}, {"k": k, "v": v, **padding}
        y_BTD, new = self.extend(x_BTD, state)
        return y_BTD, new, {key: new[key] for key in ("k", "v", "pos", "pad", "held") if key in new}

    def crop(self, state: State, tokens: int) -> State:
        if tokens == 0:
            return state
        held = state["k"].shape[1]
        short = self.window and held - tokens < min(int(state["pos"].max()) - tokens, self.window - 1)
        if tokens > held or short or (self.kv_shift is not None and tokens >= state["k_tail"].shape[1]):
            raise cannot_crop(self.options.name, tokens)
        new = {key: value[:, : held - tokens] if key in self.cache else value for key, value in state.items()}
        for tail in ("k_tail", "v_tail"):
            if tail in state:
                # Freed entries move back to the front; their contents are lost, so no crop can reach them.
                new[tail] = state[tail][:, : state[tail].shape[1] - tokens]
        if INNER_TAIL in state:
            new[INNER_TAIL] = crop_tail(state[INNER_TAIL], tokens, self.options.name)
        new["pos"] = state["pos"] - tokens
        return new

    def tensor_parallel(self, parts: int) -> dict[str, Cut]:
        H, G, P = self.heads, self.groups, self.width
        if H % parts or G % parts:
            return {}
        qkv, inner, heads = Cut(0, (H * P, G * P, G * P)), Cut(0, (H * P,)), Cut(0, (H,))
        by_head = self.query_norm is not None and self.query_norm.weight.dim() == 2
        cuts = {
            "qkv.weight": qkv, "qkv.bias": qkv, "canon.taps_CW": qkv, "kv_shift.weight": Cut(0, (G, G)),
            "query_norm.weight": heads if by_head else Cut(0), "key_norm.weight": Cut(0, (G,)) if by_head else Cut(0),
            "forget_gate.weight": heads, "forget_gate.bias": heads, "forget_bias": heads, "slopes_H": heads,
            "sinks_H": heads, "output_norm.weight": heads, "head_gate.weight": heads, "output_gate.weight": inner,
            "output.weight": Cut(1, (H * P,)),
        }  # fmt: skip
        self.heads, self.groups = H // parts, G // parts
        return only_present(self, cuts)

    def with_capacity(self, state: State, tokens: int) -> State | None:
        return None if self.window or self.sinks_H is not None else self.with_room(state, tokens)

    def merge(self, states: Sequence[State]) -> State:
        return super().merge(trimmed(states, ["k_tail", "v_tail", "spare", INNER_TAIL]))

    def _split(self, joint_BTAP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = joint_BTAP.split([self.heads, self.groups, self.groups], dim=-2)
        return q, k, v

    def _joint(self, x_BTD: Tensor, state: State) -> Tensor:
        """Queries, keys and values by head; if they are convolved, the last inputs of the convolution are set in
        `state`."""
        flat = self.qkv(x_BTD)
        if self.canon is not None:
            flat, state[INNER_TAIL] = self.canon(flat, state.get(INNER_TAIL))
        heads: Tensor = flat.unflatten(-1, (self.heads + 2 * self.groups, self.width))
        return heads

    def _shift(self, x_BTD: Tensor, k: Tensor, v: Tensor, k_last: Tensor, v_last: Tensor) -> tuple[Tensor, Tensor]:
        """Each key and value mixed with the unshifted one before it."""
        assert self.kv_shift is not None
        alpha = self.kv_shift(x_BTD).to(self._exact_dtype()).sigmoid().to(k.dtype).unflatten(-1, (2, self.groups))
        a_k, a_v = alpha[..., 0, :, None], alpha[..., 1, :, None]
        k_before, v_before = torch.cat([k_last, k[:, :-1]], dim=1), torch.cat([v_last, v[:, :-1]], dim=1)
        return a_k * k_before + (1 - a_k) * k, a_v * v_before + (1 - a_v) * v

    def _shifted_from_start(
        self, x_BTD: Tensor, k: Tensor, v: Tensor, pad_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values from the beginning of a sequence on: the first one is mixed with zero."""
        if self.kv_shift is None:
            return k, v
        k, v = self._drop_padding(k, pad_B), self._drop_padding(v, pad_B)
        return self._shift(x_BTD, k, v, torch.zeros_like(k[:, :1]), torch.zeros_like(v[:, :1]))

    def _placed(self, x: Tensor, norm: HeadNorm | None, positions_BT: Tensor | None) -> Tensor:
        """Norm and rotation of queries or keys; without positions, they are the first of the sequence."""
        x = x if norm is None else norm(x)
        return x if self.rotary is None else self._turn(x, positions_BT)

    def _turn(self, x: Tensor, positions_BT: Tensor | None) -> Tensor:
        assert self.rotary is not None
        if self.turned == self.width:
            whole: Tensor = self.rotary(x, positions_BT)
            return whole
        turning, still = x.split([self.turned, self.width - self.turned], dim=-1)
        return torch.cat((self.rotary(turning.contiguous(), positions_BT), still), dim=-1)

    def _exact_dtype(self) -> torch.dtype:
        """Gates are never below fp32: the forget gate's sums run over the whole sequence."""
        return torch.promote_types(self.qkv.weight.dtype, torch.float32)

    def _log_forget(self, x_BTD: Tensor) -> Tensor | None:
        if self.forget == "none":
            return None
        if self.forget == "full":
            return F.logsigmoid(self.forget_gate(x_BTD).to(self._exact_dtype()))
        log_f_H = F.logsigmoid(self.forget_bias.to(self._exact_dtype()))
        return log_f_H.expand(*x_BTD.shape[:-1], self.heads)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_f: Tensor | None,
        pad_B: Tensor | None,
        last: Tensor | None = None,
    ) -> Tensor:
        if self.sinks_H is not None:
            if self.dropout and self.training:
                raise UserError(f"{self.options.name}[sinks] has no dropout of attention weights; set it to 0.")
            return sink_attention(q, k, v, self.sinks_H, window=self.window, pad_B=pad_B)
        slopes_H = self.slopes_H if self.pos == "alibi" else None
        if self.dropout and self.training:
            return attention_reference(
                q, k, v, log_f_BNH=log_f, slopes_H=slopes_H, causal=self.causal, window=self.window, pad_B=pad_B,
                dropout=self.dropout,
            )  # fmt: skip
        return attention(
            q, k, v, log_f_BNH=log_f, slopes_H=slopes_H, causal=self.causal, window=self.window, pad_B=pad_B, last=last
        )

    def _combine(self, x_BTD: Tensor, mixed_BTHP: Tensor) -> Tensor:
        if self.output_norm is not None:
            mixed_BTHP = self.output_norm(mixed_BTHP)
        if self.head_gate is not None:
            mixed_BTHP = mixed_BTHP * self.head_gate(x_BTD).sigmoid()[..., None]
        flat = mixed_BTHP.flatten(-2)
        if self.output_gate is not None:
            flat = flat * self.output_gate(x_BTD).sigmoid()
        y: Tensor = self.output(flat)
        return y

    def _drop_padding(self, k_BTGP: Tensor, pad_B: Tensor | None, held: int | Tensor = 0) -> Tensor:
        """Set padded entries of the cache, which already has `held` tokens, to zero: the first real token has no
        predecessor to mix with."""
        if pad_B is None:
            return k_BTGP
        real_BT = held + torch.arange(k_BTGP.shape[1], device=k_BTGP.device) >= pad_B[:, None]
        return k_BTGP * real_BT[..., None, None]

    def _keep_last(self, state: State, tokens: int) -> State:
        surplus = state["k"].shape[1] - tokens
        if surplus <= 0:
            return state
        new = {key: value[:, surplus:] if key in self.cache else value for key, value in state.items()}
        if "pad" in new:
            new["pad"] = (new["pad"] - surplus).clamp(min=0)
        return new


def forget_bias(heads: int, t_min: float, t_max: float) -> Tensor:
    """Gate biases whose decay horizons 1/(1−f) ≈ T are spaced evenly in log T from t_min to t_max: σ(b) = e^(−1/T)."""
    memory_H = torch.exp(torch.linspace(math.log(t_min), math.log(t_max), heads))
    return -torch.log(torch.expm1(1 / memory_H))


def _scaling(options: AttnOptions) -> RopeScaling | None:
    if options.rope_scaling == "none":
        return None
    return RopeScaling(options.rope_scaling, options.rope_factor, options.rope_len, options.rope_low, options.rope_high)
