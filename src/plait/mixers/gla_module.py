"""Gated linear attention: linear attention whose state forgets, each key channel at a rate from the data.

    a_t = σ(W_2 W_1 x_t + b)^{1/τ},   S_t = diag(a_t) S_{t−1} + k_t v_tᵀ,   o_t = q_tᵀ S_t / √K
    y = W_o [ RMSNorm_head(o) ∘ silu(W_g x) ]

Yang et al. 2023, arXiv:2312.06635 (the paper's keys are half as wide as the model: `expand_k=0.5`).

Letters: B batch, T new tokens, D model width, H heads, K key width and V value width of a head, R rank of the gate.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.gla import GlaOptions
from plait.mixers.mixer import State
from plait.mixers.shared import HeadNorm, RecurrentMixer
from plait.ops.gla import gla, gla_step


class GatedLinearAttention(RecurrentMixer):
    def __init__(self, d: int, options: GlaOptions) -> None:
        super().__init__(d, options)
        keys, values = options.key_width(d), options.value_width(d)
        self.heads, self.key_width, self.value_width = options.heads, keys // options.heads, values // options.heads
        self.tau, self.scale = options.tau, self.key_width**-0.5
        # Query, key, value, output gate and the gate's low-rank bottleneck in one product.
        self.splits = [keys, keys, values, values, options.gate_rank]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.decay = nn.Linear(options.gate_rank, keys)
        self.norm = HeadNorm(self.heads, self.value_width, eps=1e-6, shared=True)
        self.output = nn.Linear(values, d, bias=False)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {"S": self.zeros(batch, self.heads, self.key_width, self.value_width, dtype=self.state_dtype)}

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        q, k, v, g, gate = self._project(x_BTD)
        o_BTHV, S_BHKV = gla(q, k, v, g, scale=self.scale, state=state.get("S"))
        return self._combine(o_BTHV, gate), {"S": S_BHKV}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        q, k, v, g, gate = self._project(x_BD)
        o_BHV, S_BHKV = gla_step(q, k, v, g, state["S"], scale=self.scale)
        return self._combine(o_BHV, gate), {"S": S_BHKV}

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and log decays by head, and the output gate."""
        q, k, v, gate, low = self.input(x).split(self.splits, dim=-1)
        g = F.logsigmoid(self.decay(low).to(self.state_dtype)) / self.tau
        q, k, v, g = (part.to(self.state_dtype).unflatten(-1, (self.heads, -1)) for part in (q, k, v, g))
        return q, k, v, g, gate

    def _combine(self, o: Tensor, gate: Tensor) -> Tensor:
        y: Tensor = self.output(self.norm(o).flatten(-2).to(gate.dtype) * F.silu(gate))
        return y
