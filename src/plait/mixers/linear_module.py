"""Linear attention: queries and keys pass through a feature φ, and the past becomes a sum of outer products.

    S_t = S_{t−1} + φ(k_t) v_tᵀ,   z_t = z_{t−1} + φ(k_t),   o_t = φ(q_t)ᵀ S_t / (φ(q_t)ᵀ z_t),   y = W_o o

With `normalize=false` there is no division, and φ(q_t)ᵀ S_t is scaled by 1/√K instead.

Katharopoulos et al. 2020, arXiv:2006.16236.

Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values.
"""

from __future__ import annotations

from torch import Tensor, nn

from plait.mixers.linear import LinearOptions
from plait.mixers.mixer import State
from plait.mixers.shared import RecurrentMixer
from plait.ops.linear import feature_map, linear_attention, linear_attention_step


class LinearAttention(RecurrentMixer):
    def __init__(self, d: int, options: LinearOptions) -> None:
        super().__init__(d, options)
        self.heads, self.width, self.normalize = options.heads, d // options.heads, options.normalize
        self.feature = feature_map(options.feature)
        self.scale = self.width**-0.5  # cancels in the division
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.output = nn.Linear(d, d, bias=False)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        state = {"S": self.zeros(batch, self.heads, self.width, self.width, dtype=self.state_dtype)}
        if self.normalize:
            state["z"] = self.zeros(batch, self.heads, self.width, dtype=self.state_dtype)
        return state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        q, k, v = self._project(x_BTD)
        o_BTHK, held = linear_attention(
            q, k, v, scale=self.scale, normalize=self.normalize, state=_values(state) if state else None
        )
        return self._combine(x_BTD, o_BTHK), _named(held)

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        q, k, v = self._project(x_BD)
        o_BHK, held = linear_attention_step(q, k, v, _values(state), scale=self.scale, normalize=self.normalize)
        return self._combine(x_BD, o_BHK), _named(held)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).to(self.state_dtype).unflatten(-1, (3, self.heads, self.width)).unbind(-3)
        return self.feature(q), self.feature(k), v

    def _combine(self, x: Tensor, o: Tensor) -> Tensor:
        y: Tensor = self.output(o.flatten(-2).to(x.dtype))
        return y


# The op holds S, and z only where it is read, as a tuple; a mixer's state has names.


def _values(state: State) -> tuple[Tensor, ...]:
    return tuple(state[name] for name in ("S", "z") if name in state)


def _named(held: tuple[Tensor, ...]) -> State:
    return dict(zip(("S", "z"), held, strict=False))
