"""DeltaProduct: n steps of the delta rule per token, each with a key, a value and a write strength of its own.

    S_{t,0} = a_t S_{t−1,n},   S_{t,i} = S_{t,i−1} + β_{t,i} k_{t,i} (v_{t,i} − S_{t,i−1}ᵀ k_{t,i})ᵀ,   i = 1 … n
    o_t = q_tᵀ S_{t,n} / √K,   y = W_o RMSNorm_head(o),   a_t = 1 without a forget gate

A step multiplies the state by I − β k kᵀ. With β = 2 σ(w_β·x) (`neg_eigval`) that is anything from the identity to a
reflection, and a product of two reflections is a rotation: n steps of one layer follow any permutation of n + 1 things,
where DeltaNet's one step swaps two of them. With `forget` log a_t = −exp(A) softplus(w_a·x_t + b).

Siems et al. 2025, arXiv:2502.10297; negative eigenvalues: Grazzi et al. 2024, arXiv:2411.12537.

Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values, N steps per token,
C convolved channels, W width of the convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.deltanet_module import unit_length
from plait.mixers.deltaproduct import DeltaProductOptions
from plait.mixers.mamba_module import init_decay
from plait.mixers.mixer import Draw, State
from plait.mixers.shared import ConvolvedMixer, HeadNorm, gated
from plait.ops.delta import delta


class DeltaProduct(ConvolvedMixer):
    def __init__(self, d: int, options: DeltaProductOptions) -> None:
        super().__init__(d, options)
        self.width, self.heads, self.steps = options.head_dim, d // options.head_dim, options.steps
        self.strongest, self.forget, self.out_gate = 1 + options.neg_eigval, options.forget, options.out_gate
        self.scale, channels = self.width**-0.5, int(options.conv_width(d))
        self.state_shape = (self.heads, self.width, self.width)
        # Queries, keys and values (convolved together), write strengths, decay and output gate in one product.
        gate = d if self.out_gate != "none" else 0
        self.splits = [channels, self.steps * self.heads, self.heads if self.forget else 0, gate]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.add_convolution(channels, options.conv)
        if self.forget:
            self.log_rate_H = nn.Parameter(torch.zeros(self.heads))
            self.step_bias_H = nn.Parameter(torch.zeros(self.heads))
        self.norm = HeadNorm(self.heads, self.width, eps=1e-6, shared=True)
        self.output = nn.Linear(d, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        super().init_weights(draw)
        if self.forget:
            init_decay(self.log_rate_H, self.step_bias_H, draw)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """A token is n tokens of the delta rule, of which only the last is read and only the first decays."""
        qkv_BTC, strength, decay, gate = self.input(x_BTD).split(self.splits, dim=-1)
        qkv_BTC, new = self.convolve(qkv_BTC, state)
        q, k, v = qkv_BTC.split([self.d, self.steps * self.d, self.steps * self.d], dim=-1)
        q, k = q.to(self.state_dtype), k.to(self.state_dtype)
        q_BTHK = unit_length(q.unflatten(-1, (self.heads, self.width)))
        k, v = (part.unflatten(-1, (self.steps, self.heads, self.width)).flatten(1, 2) for part in (k, v))
        beta = self.strongest * strength.to(self.state_dtype).sigmoid().unflatten(-1, (self.steps, -1)).flatten(1, 2)
        unread = (0, 0, 0, 0, self.steps - 1, 0)
        q_BNHK = F.pad(q_BTHK[:, :, None], unread).flatten(1, 2)
        g_BNH = None
        if self.forget:
            step_BTH = F.softplus(decay.to(self.state_dtype) + self.step_bias_H)
            g_BTH = -self.log_rate_H.to(step_BTH.dtype).exp() * step_BTH
            g_BNH = F.pad(g_BTH[:, :, None], (0, 0, 0, self.steps - 1)).flatten(1, 2)
        o, new["S"] = delta(q_BNHK, unit_length(k), v, beta, g_BNH, scale=self.scale, state=state.get("S"))
        o_BTHK = o[:, self.steps - 1 :: self.steps]
        y: Tensor = self.output(gated(self.norm(o_BTHK).flatten(-2).to(x_BTD.dtype), gate, self.out_gate))
        return y, new
