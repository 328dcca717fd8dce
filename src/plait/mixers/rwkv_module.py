"""RWKV's time mixing: version 6 (Finch) and version 7 (Goose). Token shift mixes every input with the previous token.

Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values, N shifted inputs.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.deltanet_module import unit_length
from plait.mixers.mixer import Draw, RecurrentMixer, State
from plait.mixers.rwkv import RWKV6_INPUTS, RWKV7_INPUTS, Rwkv6Options, Rwkv7Options
from plait.ops.dplr import Dplr, dplr, dplr_step
from plait.ops.gla import gla, gla_step


class TimeMixing(RecurrentMixer):
    """Base of both: a state of one K × K matrix per head and the last token, and a norm over each head's output."""

    heads: int
    width: int
    norm_eps: float
    norm_weight_HK: nn.Parameter
    norm_bias_HK: nn.Parameter

    def mix(self, x: Tensor, before: Tensor, S_BHKK: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output and the new state for a sequence or one token; `before` is the token preceding each."""
        raise NotImplementedError

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {
            "S": self.zeros(batch, self.heads, self.width, self.width, dtype=self.state_dtype),
            "last": self.zeros(batch, self.d),
        }

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        last_BD = state.get("last", torch.zeros_like(x_BTD[:, 0]))
        before_BTD = torch.cat([last_BD[:, None], x_BTD[:, :-1]], dim=1)
        y_BTD, S_BHKK = self.mix(x_BTD, before_BTD, state.get("S"))
        return y_BTD, {"S": S_BHKK, "last": x_BTD[:, -1]}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        y_BD, S_BHKK = self.mix(x_BD, state["last"], state["S"])
        return y_BD, {"S": S_BHKK, "last": x_BD}

    def head_norm(self, o: Tensor) -> Tensor:
        return F.layer_norm(o, o.shape[-1:], eps=self.norm_eps) * self.norm_weight_HK + self.norm_bias_HK


class Rwkv6(TimeMixing):
    """RWKV-6 (Finch) time mixing: a decay per channel, a bonus for the current token, and token shift, which mixes
    inputs with the previous token.

    Token shift, with δ_t = x_{t−1} − x_t and one □ for each of decay, key, value, receptance and gate:

        x^□_t = x_t + δ_t ∘ (μ_□ + B_□ tanh(A_□ (x_t + δ_t ∘ μ_x)))

    Recurrence and output, r the receptance, which is the query, and u the bonus:

        w_t = exp(−exp(w_0 + B_w tanh(A_w x^w_t))),   S_t = diag(w_t) S_{t−1} + k_t v_tᵀ
        o_t = r_tᵀ (S_{t−1} + diag(u) k_t v_tᵀ),   y = W_o [ LayerNorm_head(o) ∘ silu(W_g x^g) ]

    Peng et al. 2024, arXiv:2404.05892. The authors start μ, w_0 and u from ramps over the channels that vary with
    depth; a mixer here does not know its depth and takes those of the first layer.

    Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values.
    """

    # The authors use 1e-5 for outputs divided by 8; here they are not divided.
    norm_eps = 1e-5 * 8**2

    def __init__(self, d: int, options: Rwkv6Options) -> None:
        super().__init__(d, options)
        self.width, self.heads = options.head_dim, d // options.head_dim
        self.shift_x_D = nn.Parameter(1 - torch.arange(d) / d)
        self.shift_down = nn.Linear(d, RWKV6_INPUTS * options.mix_rank, bias=False)
        self.shift_up = nn.ModuleList(
            nn.Linear(options.mix_rank, d) for _ in range(RWKV6_INPUTS)
        )  # their biases are μ_□
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
        # Each low-rank map starts at zero but can be trained: only its first factor is zero.
        nn.init.zeros_(self.shift_down.weight)
        nn.init.zeros_(self.decay_down.weight)
        for up in (*self.shift_up, self.decay_up):
            draw(up.weight, 0.01)
        # Decay, key and value are shifted by one ramp, receptance and gate by another that falls faster.
        ramp_D = torch.arange(self.d, device=self.shift_x_D.device) / self.d
        for up, power in zip(self.shift_up, (1, 1, 1, 0.5, 0.5), strict=True):
            up.get_parameter("bias").copy_(1 - ramp_D**power)
        # From exp(−e^−6), a decay horizon of 400 tokens, to exp(−e^−1), one of three.
        ramp_D = torch.linspace(0, 1, self.d, device=self.decay_up.bias.device)
        self.decay_up.bias.copy_(-6 + 5 * ramp_D**0.7)

    def mix(self, x: Tensor, before: Tensor, S_BHKK: Tensor | None) -> tuple[Tensor, Tensor]:
        r, k, v, g, gate = self._project(x, before)
        bonus_HK = self.bonus_HK.to(g.dtype)
        if x.dim() == 2:
            assert S_BHKK is not None
            o, S_BHKK = gla_step(r, k, v, g, S_BHKK, bonus=bonus_HK)
        else:
            o, S_BHKK = gla(r, k, v, g, state=S_BHKK, bonus=bonus_HK)
        y: Tensor = self.output(self.head_norm(o).flatten(-2).to(gate.dtype) * F.silu(gate))
        return y, S_BHKK

    def _project(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Receptances, keys, values and log decays by head, and the output gate."""
        for_decay, for_key, for_value, for_receptance, for_gate = self._shift(x, before)
        w = self.decay_up(self.decay_down(for_decay).tanh())
        parts = (self.receptance(for_receptance), self.key(for_key), self.value(for_value), w)
        r, k, v, w = (part.unflatten(-1, (self.heads, self.width)) for part in parts)
        return r, k, v, -w.to(self.state_dtype).exp(), self.gate(for_gate)

    def _shift(self, x: Tensor, before: Tensor) -> list[Tensor]:
        """The five inputs, each a different data-dependent interpolation between a token and the previous one."""
        back = before - x
        low = self.shift_down(x + back * self.shift_x_D).tanh().chunk(RWKV6_INPUTS, dim=-1)
        return [x + back * up(part) for up, part in zip(self.shift_up, low, strict=True)]


SLOWEST = math.exp(-0.5)  # −log of the strongest decay


class Rwkv7(TimeMixing):
    """RWKV-7's time mixing (Goose): a delta rule with a decay, a removal rate and a write rate for every channel.

    Token shift: each of the six inputs is x^□_t = x_t + (x_{t−1} − x_t) ∘ μ_□.

        w_t = exp(−e^{−1/2} σ(w_0 + B_w tanh(A_w x^w_t))),   η_t = c σ(η_0 + B_η A_η x^η_t)
        κ_t = k_t ∘ ξ, of length 1 in each head,   k̃_t = k_t ∘ (1 + (η_t − 1) ∘ α)
        S_t = (diag(w_t) − (η_t ∘ κ_t) κ_tᵀ) S_{t−1} + k̃_t v_tᵀ,   o_t = r_tᵀ S_t
        y = W_o [ (LayerNorm_head(o) + (Σ r ∘ k̃ ∘ ρ) v) ∘ B_g σ(A_g x^g) ]

    r is the receptance, which is the query, η the in-context learning rate, ρ the bonus. c is 1; with `neg_eigval` it
    is 2, as in the paper's proofs: the eigenvalue along κ then reaches −1, not only 1 − 1 = 0. The paper's later layers
    mix their values with those of the first; a mixer here does not know other layers and uses only its own.

    Peng et al. 2025, arXiv:2503.14456. The authors start μ, w_0, ξ and η_0 from ramps over the channels that vary with
    depth; a mixer here takes those of the first layer.

    Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values.
    """

    def __init__(self, d: int, options: Rwkv7Options) -> None:
        super().__init__(d, options)
        self.width, self.heads, self.strongest = options.head_dim, d // options.head_dim, 1 + options.neg_eigval
        self.shift_ND = nn.Parameter(torch.zeros(RWKV7_INPUTS, d))
        self.receptance = nn.Linear(d, d, bias=False)
        self.key = nn.Linear(d, d, bias=False)
        self.value = nn.Linear(d, d, bias=False)
        self.decay_down = nn.Linear(d, options.decay_rank, bias=False)
        self.decay_up = nn.Linear(options.decay_rank, d)  # its bias is w_0
        self.rate_down = nn.Linear(d, options.rate_rank, bias=False)
        self.rate_up = nn.Linear(options.rate_rank, d)  # its bias is η_0
        self.gate_down = nn.Linear(d, options.gate_rank, bias=False)
        self.gate_up = nn.Linear(options.gate_rank, d, bias=False)
        self.removal_D = nn.Parameter(torch.zeros(d))
        self.replace_D = nn.Parameter(torch.zeros(d))
        self.bonus_HK = nn.Parameter(torch.zeros(self.heads, self.width))
        self.norm_weight_HK = nn.Parameter(torch.ones(self.heads, self.width))
        self.norm_bias_HK = nn.Parameter(torch.zeros(self.heads, self.width))
        self.output = nn.Linear(d, d, bias=False)
        self.norm_eps = 1e-5 * self.width

    def init_weights(self, draw: Draw) -> None:
        # Each low-rank map to decays and rates starts at zero but can be trained: only its first factor is zero.
        nn.init.zeros_(self.decay_down.weight)
        nn.init.zeros_(self.rate_down.weight)
        channel_D = torch.arange(self.d, device=self.removal_D.device)
        even_D, ramp_D = channel_D / self.d, channel_D / max(1, self.d - 1)
        for row, power in zip(self.shift_ND, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
            row.copy_(1 - even_D**power)
        within_D = 2 * (channel_D % self.width) / max(1, self.width - 1) - 1  # −1 to 1 over each head
        bent_D = within_D * within_D.abs()
        self.decay_up.bias.copy_(-5.5 + 6 * ramp_D + 2.5 * bent_D)
        self.rate_up.bias.copy_(-0.19 + 0.3 * bent_D + 0.4 * (ramp_D - 0.5))
        self.removal_D.copy_(0.71 - 0.1 * (ramp_D - 0.5))
        self.replace_D.fill_(1.02)
        self.bonus_HK.fill_(-0.04)

    def mix(self, x: Tensor, before: Tensor, S_BHKK: Tensor | None) -> tuple[Tensor, Tensor]:
        heads, gate = self._project(x, before)
        if x.dim() == 2:
            assert S_BHKK is not None
            o, S_BHKK = dplr_step(*heads, S_BHKK)
        else:
            o, S_BHKK = dplr(*heads, state=S_BHKK)
        r, k, v = heads[:3]
        read = self.head_norm(o) + (r * k * self.bonus_HK).sum(-1, keepdim=True) * v
        y: Tensor = self.output(read.flatten(-2).to(gate.dtype) * gate)
        return y, S_BHKK

    def _project(self, x: Tensor, before: Tensor) -> tuple[Dplr, Tensor]:
        """r, k̃, v, −κ, η ∘ κ and log w by head, and the output gate."""
        back = before - x
        for_r, for_w, for_k, for_v, for_rate, for_gate = (x + back * row for row in self.shift_ND)
        w = self.decay_up(self.decay_down(for_w).tanh())
        rate = self.rate_up(self.rate_down(for_rate))
        parts = (self.receptance(for_r), self.key(for_k), self.value(for_v), w, rate)
        r, k, v, w, rate = (part.to(self.state_dtype).unflatten(-1, (self.heads, self.width)) for part in parts)
        removal_HK, replace_HK = (p.view(self.heads, self.width) for p in (self.removal_D, self.replace_D))
        kappa, rate = unit_length(k * removal_HK), self.strongest * rate.sigmoid()
        k = k * (1 + (rate - 1) * replace_HK)
        return (r, k, v, -kappa, rate * kappa, -SLOWEST * w.sigmoid()), self.gate_up(self.gate_down(for_gate).sigmoid())
