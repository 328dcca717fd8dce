"""HGRN2: a gated linear RNN with an outer-product state. The forget gate f is also the input gate, 1 − f.

    f_t = σ(W_f x_t),   S_t = diag(f_t) S_{t−1} + (1 − f_t) v_tᵀ,   o_t = q_tᵀ S_t,   q_t = silu(W_q x_t)
    y = W_o RMSNorm(o)

Qin et al. 2024, arXiv:2404.07904. The paper raises f above a lower bound that grows with depth and is learned
jointly over all layers; a mixer here knows nothing of its neighbours, so every layer has the paper's first-layer
bound, 0.

Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.hgrn2 import Hgrn2Options
from plait.mixers.mixer import State
from plait.mixers.shared import HeadNorm, RecurrentMixer
from plait.ops.gla import gla, gla_step


class Hgrn2(RecurrentMixer):
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
        """Queries, keys, values and log decays by head."""
        q, f, v = self.input(x).to(self.state_dtype).unflatten(-1, (3, self.heads, self.width)).unbind(-3)
        # σ(−f) is 1 − σ(f) without the cancellation.
        return F.silu(q), (-f).sigmoid(), v, F.logsigmoid(f)

    def _combine(self, x: Tensor, o: Tensor) -> Tensor:
        y: Tensor = self.output(self.norm(o.flatten(-2)).to(x.dtype))
        return y
