"""RWKV-6 (Finch) time mixing: a decay per channel, a bonus for the current token, and inputs that each see a little
of the token before.

Token shift, with δ_t = x_{t−1} − x_t and one □ for each of decay, key, value, receptance and gate:

    x^□_t = x_t + δ_t ∘ (μ_□ + B_□ tanh(A_□ (x_t + δ_t ∘ μ_x)))

Recurrence and output, r the receptance, which is the query, and u the bonus:

    w_t = exp(−exp(w_0 + B_w tanh(A_w x^w_t))),   S_t = diag(w_t) S_{t−1} + k_t v_tᵀ
    o_t = r_tᵀ (S_{t−1} + diag(u) k_t v_tᵀ),   y = W_o [ LayerNorm_head(o) ∘ silu(W_g x^g) ]

Peng et al. 2024, arXiv:2404.05892. The authors start μ, w_0 and u from ramps over the channels that vary with depth;
a mixer here does not know its depth and takes those of the first layer.

Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mixer import Draw, State
from plait.mixers.rwkv6 import SHIFTED, Rwkv6Options
from plait.mixers.shared import RecurrentMixer
from plait.ops.gla import gla, gla_step

# The head norm's epsilon is the authors', 1e-5 for outputs divided by 8: here they are not divided.
NORM_EPS = 1e-5 * 8**2


class Rwkv6(RecurrentMixer):
    def __init__(self, d: int, options: Rwkv6Options) -> None:
        super().__init__(d, options)
        self.width, self.heads = options.head_dim, d // options.head_dim
        self.shift_x_D = nn.Parameter(1 - torch.arange(d) / d)
        self.shift_down = nn.Linear(d, SHIFTED * options.mix_rank, bias=False)
        self.shift_up = nn.ModuleList(nn.Linear(options.mix_rank, d) for _ in range(SHIFTED))  # their biases are μ_□
        self.decay_down = nn.Linear(d, options.decay_rank, bias=False)
        self.decay_up = nn.Linear(options.decay_rank, d)  # its bias is w_0
        self.key = nn.Linear(d, d, bias=False)
        self.value = nn.Linear(d, d, bias=False)
        self.receptance = nn.Linear(d, d, bias=False)
        self.gate = nn.Linear(d, d, bias=False)
        self.bonus_HK = nn.Parameter((0.1 * ((torch.arange(d) + 1) % 3 - 1)).view(self.heads, self.width))
        self.norm_weight_HK = nn.Parameter(torch.ones(self.heads, self.width))
        self.norm_bias_HK = nn.Parameter(torch.zeros(self.heads, self.width))
        self.output = nn.Linear(d, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        # Each low-rank map starts as zero, and can leave it: only its first factor is zero.
        nn.init.zeros_(self.shift_down.weight)
        nn.init.zeros_(self.decay_down.weight)
        for up in (*self.shift_up, self.decay_up):
            draw(up.weight, 0.01)
        # Decay, key and value look back along one ramp, receptance and gate along another that falls faster.
        ramp_D = torch.arange(self.d, device=self.shift_x_D.device) / self.d
        for up, power in zip(self.shift_up, (1, 1, 1, 0.5, 0.5), strict=True):
            up.get_parameter("bias").copy_(1 - ramp_D**power)
        # From exp(−e^−6), a memory of 400 tokens, to exp(−e^−1), one of three.
        ramp_D = torch.linspace(0, 1, self.d, device=self.decay_up.bias.device)
        self.decay_up.bias.copy_(-6 + 5 * ramp_D**0.7)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {
            "S": self.zeros(batch, self.heads, self.width, self.width, dtype=self.state_dtype),
            "last": self.zeros(batch, self.d),
        }

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        last_BD = state.get("last", torch.zeros_like(x_BTD[:, 0]))
        before_BTD = torch.cat([last_BD[:, None], x_BTD[:, :-1]], dim=1)
        r, k, v, g, gate = self._project(x_BTD, before_BTD)
        o_BTHK, S_BHKK = gla(r, k, v, g, state=state.get("S"), bonus=self.bonus_HK.to(g.dtype))
        return self._combine(o_BTHK, gate), {"S": S_BHKK, "last": x_BTD[:, -1]}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        r, k, v, g, gate = self._project(x_BD, state["last"])
        o_BHK, S_BHKK = gla_step(r, k, v, g, state["S"], bonus=self.bonus_HK.to(g.dtype))
        return self._combine(o_BHK, gate), {"S": S_BHKK, "last": x_BD}

    def _project(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Receptances, keys, values and log decays by head, and the output gate."""
        for_decay, for_key, for_value, for_receptance, for_gate = self._shift(x, before)
        w = self.decay_up(self.decay_down(for_decay).tanh())
        parts = (self.receptance(for_receptance), self.key(for_key), self.value(for_value), w)
        r, k, v, w = (part.unflatten(-1, (self.heads, self.width)) for part in parts)
        return r, k, v, -w.to(self.state_dtype).exp(), self.gate(for_gate)

    def _shift(self, x: Tensor, before: Tensor) -> list[Tensor]:
        """The five inputs, each between a token and the one before, at a place of its own that the data sets."""
        back = before - x
        low = self.shift_down(x + back * self.shift_x_D).tanh().chunk(SHIFTED, dim=-1)
        return [x + back * up(part) for up, part in zip(self.shift_up, low, strict=True)]

    def _combine(self, o: Tensor, gate: Tensor) -> Tensor:
        normed = F.layer_norm(o, o.shape[-1:], eps=NORM_EPS) * self.norm_weight_HK + self.norm_bias_HK
        y: Tensor = self.output(normed.flatten(-2).to(gate.dtype) * F.silu(gate))
        return y
