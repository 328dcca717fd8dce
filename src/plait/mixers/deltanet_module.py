"""The delta rule: `deltanet`, with decay `gated-deltanet`, with several steps per token `deltaproduct`, with a decay
per channel `kda`.

One K × V matrix per head is corrected towards v_t at the key k_t. `step` computes the recurrence token by token;
`extend` and `forward` compute the same in chunks (`plait.ops.delta`). Per token and head this takes 6 K V FLOPs: the
old value is read, the new one written, and the output read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.deltanet import DeltaNetOptions, DeltaProductOptions, GatedDeltaNetOptions, KdaOptions
from plait.mixers.mamba_module import init_decay
from plait.mixers.mixer import ConvolvedMixer, Draw, HeadNorm, State, gated
from plait.ops.channel_delta import channel_delta
from plait.ops.delta import delta, delta_step
from plait.ops.dplr import dplr_step


def unit_length(x: Tensor) -> Tensor:
    """x divided by its length over the last dimension; smooth at zero, where the length is held above 1e-3."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class DeltaRule(ConvolvedMixer):
    """Base of the two below: the delta rule on a state that may decay first, and an output that may be gated."""

    def __init__(
        self, d: int, options: DeltaNetOptions | GatedDeltaNetOptions, *, heads: int, keys: int, values: int,
        out_gate: str, forgets: bool,
    ) -> None:  # fmt: skip
        """`keys` and `values` are the widths of all heads together."""
        super().__init__(d, options)
        self.heads, self.key_width, self.value_width = heads, options.head_dim, values // heads
        self.scale, self.strongest, self.forgets = self.key_width**-0.5, 1 + options.neg_eigval, forgets
        self.out_gate = out_gate
        self.state_shape = (heads, self.key_width, self.value_width)
        # Query, key and value (convolved together), output gate, write strength and decay in one product.
        self.qkv = [keys, keys, values]
        self.splits = [sum(self.qkv), values if out_gate != "none" else 0, heads, heads if forgets else 0]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.add_convolution(sum(self.qkv), options.conv)
        if forgets:
            self.log_rate_H = nn.Parameter(torch.zeros(heads))
            self.step_bias_H = nn.Parameter(torch.zeros(heads))
        self.norm = HeadNorm(heads, self.value_width, eps=1e-6, shared=True)
        self.output = nn.Linear(values, d, bias=False)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv_BTC, gate, beta_BTH, g_BTH = self._project(x_BTD)
        qkv_BTC, new = self.convolve(qkv_BTC, state)
        o_BTHV, new["S"] = delta(*self._heads(qkv_BTC), beta_BTH, g_BTH, scale=self.scale, state=state.get("S"))
        return self._combine(o_BTHV, gate), new

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv_BC, gate, beta_BH, g_BH = self._project(x_BD)
        qkv_BC, new = self.convolve(qkv_BC, state)
        o_BHV, new["S"] = delta_step(*self._heads(qkv_BC), beta_BH, g_BH, state["S"], scale=self.scale)
        return self._combine(o_BHV, gate), new

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values before their convolution, the output gate, β and the log decay, if there is one."""
        qkv, gate, strength, step = self.input(x).split(self.splits, dim=-1)
        beta = self._write_strength(strength)
        if not self.forgets:
            return qkv, gate, beta, None
        step = step.to(self.state_dtype)
        return qkv, gate, beta, -self.log_rate_H.to(step.dtype).exp() * F.softplus(step + self.step_bias_H)

    def _write_strength(self, strength: Tensor) -> Tensor:
        """β, in (0, 1), or (0, 2) with `neg_eigval`."""
        return self.strongest * strength.to(self.state_dtype).sigmoid()

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in qkv.split(self.qkv, dim=-1))
        return unit_length(q.to(self.state_dtype)), unit_length(k.to(self.state_dtype)), v

    def _combine(self, o: Tensor, gate: Tensor) -> Tensor:
        y: Tensor = self.output(gated(self.norm(o).flatten(-2).to(gate.dtype), gate, self.out_gate))
        return y


class DeltaNet(DeltaRule):
    """DeltaNet: a token replaces a fraction β of what the state holds at its key, instead of adding to it.

        S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ,   o_t = q_tᵀ S_t / √K,   y = W_o RMSNorm_head(o)

    q, k and v come from a short convolution with silu; q and k then have length 1 in each head, so that β_t =
    σ(w_β·x_t) is exactly the fraction of the old value that is replaced. With `neg_eigval` β_t = 2 σ(w_β·x_t): the
    state is multiplied by I − β k kᵀ, whose eigenvalue 1 − β then reaches −1, so that its sign can flip (parity).

    Yang et al. 2024, arXiv:2406.06484; negative eigenvalues: Grazzi et al. 2024, arXiv:2411.12537.

    Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values, C convolved
    channels, W width of the convolution.
    """

    def __init__(self, d: int, options: DeltaNetOptions) -> None:
        super().__init__(d, options, heads=d // options.head_dim, keys=d, values=d, out_gate="none", forgets=False)


class GatedDeltaNet(DeltaRule):
    """Gated DeltaNet: the delta rule on a state that decays first, and a gated output.

        S_t = a_t S_{t−1} + β_t k_t (v_t − a_t S_{t−1}ᵀ k_t)ᵀ,   o_t = q_tᵀ S_t / √K
        log a_t = −exp(A) softplus(w_a·x_t + b),   y = W_o [ RMSNorm_head(o) ∘ silu(W_g x) ]

    The decay is Mamba-2's, one per head. q, k, v and β are DeltaNet's: a short convolution with silu, q and k of length
    1, β_t = σ(w_β·x_t), or 2 σ(w_β·x_t) with `neg_eigval`. `out_gate` chooses the gate's nonlinearity, or none.

    Yang et al. 2024, arXiv:2412.06464, eq. 10.

    Letters: B batch, T new tokens, D model width, H heads, K key width and V value width of a head, C convolved
    channels, W width of the convolution.
    """

    def __init__(self, d: int, options: GatedDeltaNetOptions) -> None:
        keys, values, heads = options.key_width(d), options.value_width(d), options.head_count(d)
        super().__init__(d, options, heads=heads, keys=keys, values=values, out_gate=options.out_gate, forgets=True)

    def init_weights(self, draw: Draw) -> None:
        super().init_weights(draw)
        init_decay(self.log_rate_H, self.step_bias_H, draw)


class DeltaProduct(ConvolvedMixer):
    """DeltaProduct: n steps of the delta rule per token, each with its own key, value and write strength.

        S_{t,0} = a_t S_{t−1,n},   S_{t,i} = S_{t,i−1} + β_{t,i} k_{t,i} (v_{t,i} − S_{t,i−1}ᵀ k_{t,i})ᵀ,   i = 1 … n
        o_t = q_tᵀ S_{t,n} / √K,   y = W_o RMSNorm_head(o),   a_t = 1 without a forget gate

    A step multiplies the state by I − β k kᵀ. With β = 2 σ(w_β·x) (`neg_eigval`) that is anything from the identity to
    a reflection, and a product of two reflections is a rotation: n steps of one layer can track any permutation of n +
    1 objects, while DeltaNet's single step swaps two of them. With `forget` log a_t = −exp(A) softplus(w_a·x_t + b).

    Siems et al. 2025, arXiv:2502.10297; negative eigenvalues: Grazzi et al. 2024, arXiv:2411.12537.

    Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values, N steps per
    token, C convolved channels, W width of the convolution.
    """

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


class KimiDeltaAttention(ConvolvedMixer):
    """Kimi delta attention: the delta rule on a state that decays first, each key channel at a rate from the data.

        S_t = (I − β_t k_t k_tᵀ) diag(α_t) S_{t−1} + β_t k_t v_tᵀ,   o_t = q_tᵀ S_t / √K,   β_t = σ(w_β·x_t)
        log α_t = −exp(A) softplus(W_2 W_1 x_t + b),   y = W_o [ RMSNorm_head(o) ∘ σ(V_2 V_1 x + c) ]

    q, k and v come from a short convolution with silu; q and k then have length 1 in each head. A is one number per
    head, b one per channel. `neg_eigval`: β_t = 2 σ(w_β·x_t). `write=channel` is Gated DeltaNet 2, which erases and
    writes per channel, e = σ(W_e x), doubled by `neg_eigval`, and w = σ(W_w x):

        S_t = (I − k_t (e_t ∘ k_t)ᵀ) diag(α_t) S_{t−1} + k_t (w_t ∘ v_t)ᵀ

    Kimi Team 2025, arXiv:2510.26692; negative eigenvalues: Grazzi et al. 2024, arXiv:2411.12537.

    Letters: B batch, T new tokens, D model width, H heads, K width of a head's keys and of its values, C convolved
    channels, W width of the convolution.
    """

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
        """Queries, keys for writing and erasing, keys for reading the erased value, values, and the log decays."""
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
