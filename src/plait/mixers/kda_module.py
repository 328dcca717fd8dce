"""Kimi delta attention: the delta rule on a state that decays first, each key channel at a rate from the data.

    S_t = (I − β_t k_t k_tᵀ) diag(α_t) S_{t−1} + β_t k_t v_tᵀ,   o_t = q_tᵀ S_t / √K,   β_t = σ(w_β·x_t)
    log α_t = −exp(A) softplus(W_2 W_1 x_t + b),   y = W_o [ RMSNorm_head(o) ∘ σ(V_2 V_1 x + c) ]

q, k and v come from a short convolution with silu; q and k then have length 1 in each head. A is one number per head,
b one per channel. `neg_eigval`: β_t = 2 σ(w_β·x_t). `write=channel` is Gated DeltaNet 2, which erases and writes per
channel, e = σ(W_e x), of which `neg_eigval` makes twice as much, and w = σ(W_w x):

    S_t = (I − k_t (e_t ∘ k_t)ᵀ) diag(α_t) S_{t−1} + k_t (w_t ∘ v_t)ᵀ

Kimi Team 2025, arXiv:2510.26692; negative eigenvalues: Grazzi et al. 2024, arXiv:2411.12537.

Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values, C convolved
channels, W width of the convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.deltanet_module import unit_length
from plait.mixers.kda import KdaOptions
from plait.mixers.mamba_module import init_decay
from plait.mixers.mixer import ConvolvedMixer, Draw, HeadNorm, State, gated
from plait.ops.channel_delta import channel_delta
from plait.ops.dplr import dplr_step


class KimiDeltaAttention(ConvolvedMixer):
    def __init__(self, d: int, options: KdaOptions) -> None:
        super().__init__(d, options)
        inner = int(options.inner(d))
        self.width, self.heads, self.scale = options.head_dim, inner // options.head_dim, options.head_dim**-0.5
        self.strongest, self.out_gate = 1 + options.neg_eigval, options.out_gate
        self.by_channel = options.write == "channel"
        self.state_shape = (self.heads, self.width, self.width)
        # Query, key and value (convolved together), write strengths and both gates' bottlenecks in one product.
        has_gate = self.out_gate != "none"
        self.splits = [3 * inner, 2 * inner if self.by_channel else self.heads, self.width, self.width * has_gate]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.add_convolution(3 * inner, options.conv)
        self.decay = nn.Linear(self.width, inner)
        self.log_rate_H = nn.Parameter(torch.zeros(self.heads))
        self.gate = nn.Linear(self.width, inner) if has_gate else None
        self.norm = HeadNorm(self.heads, self.width, eps=1e-5, shared=True)
        self.output = nn.Linear(inner, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        super().init_weights(draw)
        init_decay(self.log_rate_H, self.decay.bias, draw)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv_BTC, *rest = self.input(x_BTD).split(self.splits, dim=-1)
        qkv_BTC, new = self.convolve(qkv_BTC, state)
        o_BTHK, new["S"] = channel_delta(*self._heads(qkv_BTC, *rest[:2]), scale=self.scale, state=state.get("S"))
        return self._combine(x_BTD, o_BTHK, rest[2]), new

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv_BC, *rest = self.input(x_BD).split(self.splits, dim=-1)
        qkv_BC, new = self.convolve(qkv_BC, state)
        q, k, e, v, g = self._heads(qkv_BC, *rest[:2])
        o_BHK, new["S"] = dplr_step(q, k, v, g.exp() * e, -k, g, state["S"], scale=self.scale)
        return self._combine(x_BD, o_BHK, rest[2]), new

    def _heads(self, qkv: Tensor, strength: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Queries, the keys that are written and erased, those that are read for it, values, and the log decays."""
        q, k, v = qkv.unflatten(-1, (3, self.heads, self.width)).unbind(-3)
        q, k = q.to(self.state_dtype), k.to(self.state_dtype)
        step = F.softplus(self.decay(low).to(self.state_dtype)).unflatten(-1, (self.heads, self.width))
        g = -self.log_rate_H.to(step.dtype).exp()[:, None] * step
        strength = strength.to(self.state_dtype).sigmoid()
        k = unit_length(k)
        if self.by_channel:
            erase, write = strength.unflatten(-1, (2, self.heads, self.width)).unbind(-3)
            return unit_length(q), k, self.strongest * erase * k, write * v, g
        return unit_length(q), self.strongest * strength[..., None] * k, k, v, g

    def _combine(self, x: Tensor, o: Tensor, low: Tensor) -> Tensor:
        flat = self.norm(o).flatten(-2).to(x.dtype)
        y: Tensor = self.output(flat if self.gate is None else gated(flat, self.gate(low), self.out_gate))
        return y
