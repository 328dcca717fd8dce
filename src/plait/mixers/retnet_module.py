"""Retention: linear attention whose state forgets at one fixed rate per head.

    S_t = γ_h S_{t−1} + k_t v_tᵀ,   o_t = q_tᵀ S_t / √K,   y = W_o [ RMSNorm_head(o) ∘ silu(W_g x) ]
    γ_h = 1 − 2^(−5−h),   h = 0 … H−1

Queries and keys are turned by their positions (rotary). Lightning attention has silu on queries, keys and values, the
slopes of ALiBi, γ_h = exp(−2^(−8 (h+1)/H)), and a sigmoid gate; the factor by which its authors weaken the decays of
later layers is left out, since a mixer does not know its depth.

Sun et al. 2023, arXiv:2307.08621; Qin et al. 2024, arXiv:2401.04658; MiniMax 2025, arXiv:2501.08313.

Letters: B batch, T new tokens, D model width, H heads, K key width and V value width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mixer import HeadNorm, RecurrentMixer, State, gated
from plait.mixers.retnet import RetNetOptions
from plait.mixers.rotary import Rotary
from plait.ops.attention import alibi_slopes
from plait.ops.gla import gla


class Retention(RecurrentMixer):
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
        # Kept as powers of two, which every dtype has exactly: 1 − 2⁻¹² would be 1 in half precision.
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
