"""Linear attention, plain, with forget gates and with fixed decays: `linear`, `gla`, `hgrn2`, `retnet`.

The first three keep one K × V matrix per head, S_t = diag(a_t) S_{t−1} + k_t v_tᵀ, and read o_t = q_tᵀ S_t; they differ
in the decay a_t (1 for `linear`). `step` computes the recurrence token by token; `extend` and `forward` compute the
same in chunks (`plait.ops.gla`, `plait.ops.linear`). Per token and head this takes 4 K V FLOPs, whatever the length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.canon_module import INNER_TAIL, Canon, inner_canon
from plait.mixers.gla import GlaOptions, Hgrn2Options, LinearOptions, RetNetOptions
from plait.mixers.mixer import ConvolvedMixer, Draw, HeadNorm, RecurrentMixer, State, gated
from plait.mixers.rotary import Rotary
from plait.ops.attention import alibi_slopes
from plait.ops.gla import gla, gla_step
from plait.ops.linear import feature_map, linear_attention, linear_attention_step


class LinearAttention(RecurrentMixer):
    """Linear attention: queries and keys pass through a feature φ, and the past becomes a sum of outer products.

        S_t = S_{t−1} + φ(k_t) v_tᵀ,   z_t = z_{t−1} + φ(k_t),   o_t = φ(q_t)ᵀ S_t / (φ(q_t)ᵀ z_t),   y = W_o o

    With `normalize=false` there is no division, and φ(q_t)ᵀ S_t is scaled by 1/√K instead.

    Katharopoulos et al. 2020, arXiv:2006.16236.

    Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values.
    """

    def __init__(self, d: int, options: LinearOptions) -> None:
        super().__init__(d, options)
        self.heads, self.width, self.normalize = options.heads, d // options.heads, options.normalize
        self.feature = feature_map(options.feature)
        self.scale = self.width**-0.5  # cancels in the division
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.canon = Canon(3 * d) if "b" in options.canon else None
        self.output = nn.Linear(d, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        if self.canon is not None:
            self.canon.init_weights(draw)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        state = {"S": self.zeros(batch, self.heads, self.width, self.width, dtype=self.state_dtype)}
        if self.canon is not None:
            state[INNER_TAIL] = self.canon.init_tail(batch, 0)
        if self.normalize:
            state["z"] = self.zeros(batch, self.heads, self.width, dtype=self.state_dtype)
        return state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        flat, new = inner_canon(self.canon, self.qkv(x_BTD), state)
        q, k, v = self._heads(flat)
        o_BTHK, held = linear_attention(
            q, k, v, scale=self.scale, normalize=self.normalize, state=_values(state) if state else None
        )
        return self._combine(x_BTD, o_BTHK), {**new, **_named(held)}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        flat, new = inner_canon(self.canon, self.qkv(x_BD), state)
        q, k, v = self._heads(flat)
        o_BHK, held = linear_attention_step(q, k, v, _values(state), scale=self.scale, normalize=self.normalize)
        return self._combine(x_BD, o_BHK), {**new, **_named(held)}

    def _heads(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = flat.to(self.state_dtype).unflatten(-1, (3, self.heads, self.width)).unbind(-3)
        return self.feature(q), self.feature(k), v

    def _combine(self, x: Tensor, o: Tensor) -> Tensor:
        y: Tensor = self.output(o.flatten(-2).to(x.dtype))
        return y


# The op holds S, and z only where it is read, as a tuple; a mixer's state has names.


def _values(state: State) -> tuple[Tensor, ...]:
    return tuple(state[name] for name in ("S", "z") if name in state)


def _named(held: tuple[Tensor, ...]) -> State:
    return dict(zip(("S", "z"), held, strict=False))


class GatedLinearAttention(ConvolvedMixer):
    """Gated linear attention: linear attention whose state forgets, each key channel at a rate from the data.

        a_t = σ(W_2 W_1 x_t + b)^{1/τ},   S_t = diag(a_t) S_{t−1} + k_t v_tᵀ,   o_t = q_tᵀ S_t / √K
        y = W_o [ RMSNorm_head(o) ∘ silu(W_g x) ]

    With `conv` q, k and v come from a short convolution with silu. `out_gate` chooses the gate's nonlinearity, or none.

    Yang et al. 2023, arXiv:2312.06635 (the paper's keys are half as wide as the model: `expand_k=0.5`).

    Letters: B batch, T new tokens, D model width, H heads, K key width and V value width of a head, R rank of the gate,
    C convolved channels, W width of the convolution.
    """

    def __init__(self, d: int, options: GlaOptions) -> None:
        super().__init__(d, options)
        keys, values = options.key_width(d), options.value_width(d)
        self.heads, self.key_width, self.value_width = options.heads, keys // options.heads, values // options.heads
        self.tau, self.scale = options.tau, self.key_width**-0.5
        self.state_shape = (self.heads, self.key_width, self.value_width)
        # Query, key, value, output gate and the gate's low-rank bottleneck in one product.
        self.out_gate, self.qkv = options.out_gate, [keys, keys, values]
        self.splits = [sum(self.qkv), values if self.out_gate != "none" else 0, options.gate_rank]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.add_convolution(sum(self.qkv), options.conv)
        self.canon = Canon(sum(self.qkv)) if "b" in options.canon else None
        self.decay = nn.Linear(options.gate_rank, keys)
        self.norm = HeadNorm(self.heads, self.value_width, eps=1e-6, shared=True)
        self.output = nn.Linear(values, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        super().init_weights(draw)
        if self.canon is not None:
            self.canon.init_weights(draw)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        state = super().init_state(batch)
        if self.canon is not None:
            state[INNER_TAIL] = self.canon.init_tail(batch, 0)
        return state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv_BTC, gate, low = self.input(x_BTD).split(self.splits, dim=-1)
        qkv_BTC, canon = inner_canon(self.canon, qkv_BTC, state)
        qkv_BTC, conv = self.convolve(qkv_BTC, state)
        o_BTHV, S_BHKV = gla(*self._heads(qkv_BTC, low), scale=self.scale, state=state.get("S"))
        return self._combine(o_BTHV, gate), {"S": S_BHKV, **conv, **canon}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv_BC, gate, low = self.input(x_BD).split(self.splits, dim=-1)
        qkv_BC, canon = inner_canon(self.canon, qkv_BC, state)
        qkv_BC, conv = self.convolve(qkv_BC, state)
        o_BHV, S_BHKV = gla_step(*self._heads(qkv_BC, low), state["S"], scale=self.scale)
        return self._combine(o_BHV, gate), {"S": S_BHKV, **conv, **canon}

    def _heads(self, qkv: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and log decays by head; only the decays need fp32."""
        q, k, v = qkv.split(self.qkv, dim=-1)
        g = F.logsigmoid(self.decay(low).to(self.state_dtype)) / self.tau
        q, k, v, g = (part.unflatten(-1, (self.heads, -1)) for part in (q, k, v, g))
        return q, k, v, g

    def _combine(self, o: Tensor, gate: Tensor) -> Tensor:
        y: Tensor = self.output(gated(self.norm(o).flatten(-2).to(gate.dtype), gate, self.out_gate))
        return y


class Hgrn2(RecurrentMixer):
    """HGRN2: a gated linear RNN with an outer-product state. The forget gate f is also the input gate, 1 − f.

        f_t = σ(W_f x_t),   S_t = diag(f_t) S_{t−1} + (1 − f_t) v_tᵀ,   o_t = q_tᵀ S_t,   q_t = silu(W_q x_t)
        y = W_o RMSNorm(o)

    Qin et al. 2024, arXiv:2404.07904. The paper raises f above a lower bound that grows with depth and is learned
    jointly over all layers; a mixer here does not know other layers, so every layer has the paper's first-layer bound,
    0.

    Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values.
    """

    def __init__(self, d: int, options: Hgrn2Options) -> None:
        super().__init__(d, options)
        self.width, self.heads = options.head_dim, d // options.head_dim
        self.input = nn.Linear(d, 3 * d, bias=False)
        self.norm = HeadNorm(1, d, eps=1e-6, shared=True)  # the whole width as one head
        self.output = nn.Linear(d, d, bias=False)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {"S": self.zeros(batch, self.heads, self.width, self.width, dtype=self.state_dtype)}

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        o_BTHK, S_BHKK = gla(*self._project(x_BTD), state=state.get("S"))
        return self._combine(x_BTD, o_BTHK), {"S": S_BHKK}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        o_BHK, S_BHKK = gla_step(*self._project(x_BD), state["S"])
        return self._combine(x_BD, o_BHK), {"S": S_BHKK}

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and log decays by head; only the decays need fp32."""
        q, f, v = self.input(x).unflatten(-1, (3, self.heads, self.width)).unbind(-3)
        # σ(−f) is 1 − σ(f) without the cancellation.
        return F.silu(q), (-f).sigmoid(), v, F.logsigmoid(f.to(self.state_dtype))

    def _combine(self, x: Tensor, o: Tensor) -> Tensor:
        y: Tensor = self.output(self.norm(o.flatten(-2)).to(x.dtype))
        return y


class Retention(RecurrentMixer):
    """Retention: linear attention whose state forgets at one fixed rate per head.

        S_t = γ_h S_{t−1} + k_t v_tᵀ,   o_t = q_tᵀ S_t / √K,   y = W_o [ RMSNorm_head(o) ∘ silu(W_g x) ]
        γ_h = 1 − 2^(−5−h),   h = 0 … H−1

    Queries and keys are rotated by their positions (rotary). Lightning attention has silu on queries, keys and values,
    the slopes of ALiBi, γ_h = exp(−2^(−8 (h+1)/H)), and a sigmoid gate; the factor by which its authors weaken the
    decays of later layers is left out, since a mixer does not know its depth.

    Sun et al. 2023, arXiv:2307.08621; Qin et al. 2024, arXiv:2401.04658; MiniMax 2025, arXiv:2501.08313.

    Letters: B batch, T new tokens, D model width, H heads, K key width and V value width of a head.
    """

    powers_H: Tensor

    def __init__(self, d: int, options: RetNetOptions) -> None:
        super().__init__(d, options)
        keys, values = int(options.key_width(d)), int(options.value_width(d))
        self.heads, self.key_width, self.value_width = options.heads, keys // options.heads, values // options.heads
        self.scale, self.act, self.out_gate = self.key_width**-0.5, options.act, options.out_gate
        self.rotary = Rotary(self.key_width, options.theta) if options.pos == "rope" else None
        # Query, key, value and output gate in one product.
        self.splits = [keys, keys, values, values if self.out_gate != "none" else 0]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        # Kept as powers of two, which are exact in every dtype: 1 − 2⁻¹² would be 1 in half precision.
        self.alibi = options.decay == "alibi"
        powers_H = torch.tensor(alibi_slopes(self.heads)).log2() if self.alibi else -5.0 - torch.arange(self.heads)
        self.register_buffer("powers_H", powers_H, persistent=False)
        self.norm = HeadNorm(self.heads, self.value_width, eps=1e-5, shared=True)
        self.output = nn.Linear(values, d, bias=False)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {
            "S": self.zeros(batch, self.heads, self.key_width, self.value_width, dtype=self.state_dtype),
            "pos": self.zeros(batch, dtype=torch.long),
        }

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        B, T = x_BTD.shape[:2]
        *qkv, gate = self.input(x_BTD).split(self.splits, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in qkv)
        if self.act == "silu":
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        start_B = state.get("pos")
        if self.rotary is not None:
            places = None if start_B is None else start_B[:, None] + torch.arange(T, device=x_BTD.device)
            q, k = (self.rotary(part.to(self.state_dtype), places).to(part.dtype) for part in (q, k))
        o_BTHV, S_BHKV = gla(q, k, v, self.log_decay().expand(B, T, -1), scale=self.scale, state=state.get("S"))
        y: Tensor = self.output(gated(self.norm(o_BTHV).flatten(-2).to(x_BTD.dtype), gate, self.out_gate))
        new = {"S": S_BHKV} if start_B is None else {"S": S_BHKV, "pos": start_B + T}
        return y, new

    def log_decay(self) -> Tensor:
        """log γ of each head."""
        weaker_H = torch.exp2(self.powers_H.to(self.state_dtype))
        return -weaker_H if self.alibi else torch.log1p(-weaker_H)
