"""Hyena (`hyena`), multi-head Hyena (`mh-hyena`) and Hyena experts (`hyena-experts`): gated long convolutions.

The filter of a long convolution is a sum of S decaying exponentials (modal form), which makes the convolution a
recurrence with S numbers of state for each sequence it filters:

    h_t = Σ_n R_n λ_n^t,   0 < λ_n < 1;   λ = exp(−exp(ρ)), so that exp(−ρ) is how many tokens a mode remembers

Hyena, order 2, one filter per channel:

    q, k, v = shortconv(W x);   z = k ∘ v;   y = W_o [q ∘ (h ∗ z + s ∘ z)]

Poli et al. 2023, arXiv:2302.10866; the filter is that of Massaroli et al. 2023, arXiv:2310.18780 (eq. 3.1), as MAD
uses it (arXiv:2403.17844, App. B.3.2).

Multi-head Hyena, one filter per head on the outer products of keys and values:

    q, k, v = shortconv(W x);   y_t = W_o [Σ_{s ≤ t} h_{t−s} v_s k_sᵀ q_t]  in every head

It is linear attention whose past decays by a learned filter instead of a data-dependent gate; the state of a head is S
matrices of P × P. Massaroli et al. 2023, arXiv:2310.18780, Sec. 4; MAD (arXiv:2403.17844), Sec. 2.2.

Hyena experts, E narrow Hyenas side by side, of which K make each token's output:

    s_t = softmax(top_K(x_t W_g)),   y_t = W_o Σ_{k ∈ top K} s_tk Hyena_k(x)_t

Hyena_k is order 2 and w channels wide, before any output map. The paper's FLOPs (App. C.4.8) clarify what its text
leaves open: q, k and v of all experts are one projection, and one map from w to D follows the weighted sum. Only the
output is sparse: a later token may choose any expert, so the state of every expert sees every token. Poli et al. 2024
(MAD), arXiv:2403.17844, Sec. 3.3.

Letters: B batch, T time, D model width, C filters (of the experts E w), S modes of a filter, W width of the short
convolution, H heads, P head width, E experts, K active experts, w expert width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from plait.mixers.hyena import HyenaExpertsOptions, HyenaOptions, MhHyenaOptions
from plait.mixers.mixer import Draw, RecurrentMixer, State
from plait.mixers.options import MixerOptions
from plait.ops.longconv import modal_conv, modal_conv_step, multihead_conv, multihead_conv_step
from plait.ops.shortconv import short_conv, short_conv_step

# The range of a filter's decay horizons at initialisation, in tokens.
SHORTEST_MEMORY, LONGEST_MEMORY = 1.0, 1000.0


class ModalFilter(nn.Module):
    """The modes of C filters.

    At initialisation their decay horizons are log-spaced, each filter spanning the whole range and no two alike, and
    each mode has 1/S of the energy of a filter of unit norm: Σ_t (R λ^t)² = R² / (1 − λ²).
    """

    def __init__(self, filters: int, modes: int) -> None:
        super().__init__()
        offset_C1 = (torch.arange(filters)[:, None] + 0.5) / filters
        place_CS = (torch.arange(modes) + offset_C1) / modes
        low, high = math.log(SHORTEST_MEMORY), math.log(LONGEST_MEMORY)
        self.log_rate_CS = nn.Parameter(-(low + (high - low) * place_CS))
        self.residues_CS = nn.Parameter(torch.randn(filters, modes) * self._residue_scale().detach())

    def init_weights(self, draw: Draw) -> None:
        draw(self.residues_CS, 1.0)
        self.residues_CS.mul_(self._residue_scale())

    def modes(self) -> tuple[Tensor, Tensor]:
        """log λ < 0 and the residues, in fp32 or wider: λ is raised to powers up to the sequence length."""
        wide = torch.promote_types(self.log_rate_CS.dtype, torch.float32)
        return -torch.exp(self.log_rate_CS.to(wide)), self.residues_CS.to(wide)

    def _residue_scale(self) -> Tensor:
        modes = self.log_rate_CS.shape[1]
        return torch.sqrt(-torch.expm1(-2 * torch.exp(self.log_rate_CS)) / modes)


class HyenaBase(RecurrentMixer):
    """Base of the Hyenas: q, k and v through a short convolution, a modal filter, an output map, and the state."""

    def __init__(
        self, d: int, options: MixerOptions, *, width: int, short: int, filters: int, modes: int, d_out: int
    ) -> None:
        """`width` is that of q (and of k, and of v), `d_out` that of what enters the output map."""
        super().__init__(d, options)
        self.taps_std = short**-0.5  # a sum of this many taps keeps its input's scale
        self.qkv = nn.Linear(d, 3 * width, bias=False)
        self.taps_CW = nn.Parameter(self.taps_std * torch.randn(3 * width, short))
        self.filter = ModalFilter(filters, modes)
        self.output = nn.Linear(d_out, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        draw(self.taps_CW, self.taps_std)
        self.filter.init_weights(draw)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        channels, short = self.taps_CW.shape
        return {
            "modes": self.zeros(batch, *self.modes_shape, dtype=self.state_dtype),
            "conv": self.zeros(batch, short - 1, channels),
        }

    @property
    def modes_shape(self) -> tuple[int, ...]:
        """The shape of the filters' state for one row of the batch: one number per mode, unless a mode holds more."""
        return tuple(self.filter.log_rate_CS.shape)

    def project(self, x: Tensor, tail: Tensor | None) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """q, k, v and the short convolution's new tail, of a sequence, (B, T, D), or of one token, (B, D)."""
        if x.dim() == 2:
            assert tail is not None
            qkv, tail = short_conv_step(self.qkv(x), self.taps_CW, None, tail)
        else:
            qkv, tail = short_conv(self.qkv(x), self.taps_CW, state_BHC=tail)
        return self._split(qkv), tail

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Full precision for the convolution (MAD, App. C.3), and so for the gates around it."""
        q, k, v = qkv.to(self.state_dtype).chunk(3, dim=-1)
        return q, k, v


class Hyena(HyenaBase):
    def __init__(self, d: int, options: HyenaOptions) -> None:
        super().__init__(d, options, width=d, short=options.short, filters=d, modes=options.state, d_out=d)
        self.skip_D = nn.Parameter(torch.ones(d))

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.project(x_BTD, state.get("conv"))
        y_BTD, modes = modal_conv(k * v, *self.filter.modes(), self.skip_D.to(q.dtype), state_BCS=state.get("modes"))
        return self._combine(x_BTD, q * y_BTD), {"modes": modes, "conv": tail}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.project(x_BD, state["conv"])
        y_BD, modes = modal_conv_step(k * v, *self.filter.modes(), self.skip_D.to(q.dtype), state["modes"])
        return self._combine(x_BD, q * y_BD), {"modes": modes, "conv": tail}

    def _combine(self, x: Tensor, gated: Tensor) -> Tensor:
        out: Tensor = self.output(gated.to(x.dtype))
        return out


class MultiHeadHyena(HyenaBase):
    def __init__(self, d: int, options: MhHyenaOptions) -> None:
        super().__init__(d, options, width=d, short=options.short, filters=options.heads, modes=options.state, d_out=d)
        self.heads, self.width = options.heads, d // options.heads

    @property
    def modes_shape(self) -> tuple[int, ...]:
        return (*super().modes_shape, self.width, self.width)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv, tail = self.project(x_BTD, state.get("conv"))
        y_BTHP, modes = multihead_conv(*self._heads(qkv), *self.filter.modes(), state_BHSPP=state.get("modes"))
        return self._combine(x_BTD, y_BTHP), {"modes": modes, "conv": tail}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv, tail = self.project(x_BD, state["conv"])
        y_BHP, modes = multihead_conv_step(*self._heads(qkv), *self.filter.modes(), state["modes"])
        return self._combine(x_BD, y_BHP), {"modes": modes, "conv": tail}

    def _heads(self, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.unflatten(-1, (self.heads, self.width)) for x in qkv)
        return q, k, v

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.output(y.flatten(-2).to(x.dtype))
        return out


class HyenaExperts(HyenaBase):
    def __init__(self, d: int, options: HyenaExpertsOptions) -> None:
        width = int(options.expert_width(d))
        total = options.experts * width
        super().__init__(d, options, width=total, short=options.short, filters=total, modes=options.state, d_out=width)
        self.experts, self.active, self.width = options.experts, options.active, width
        self.router = nn.Linear(d, self.experts, bias=False)
        self.skip_C = nn.Parameter(torch.ones(total))

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.project(x_BTD, state.get("conv"))
        y_BTC, modes = modal_conv(k * v, *self.filter.modes(), self.skip_C.to(q.dtype), state_BCS=state.get("modes"))
        return self._combine(x_BTD, q * y_BTC), {"modes": modes, "conv": tail}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.project(x_BD, state["conv"])
        y_BC, modes = modal_conv_step(k * v, *self.filter.modes(), self.skip_C.to(q.dtype), state["modes"])
        return self._combine(x_BD, q * y_BC), {"modes": modes, "conv": tail}

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the indices of every token's K experts, (…, K) both."""
        top, chosen = self.router(x).topk(self.active, dim=-1)
        return top.softmax(dim=-1), chosen

    def _combine(self, x: Tensor, gated: Tensor) -> Tensor:
        weight, chosen = self.route(x)
        # (…, K, w): no shape depends on the data, so the same gather serves vmap and compiled graphs.
        active = torch.take_along_dim(gated.unflatten(-1, (self.experts, self.width)), chosen[..., None], dim=-2)
        out: Tensor = self.output((weight[..., None] * active).sum(dim=-2).to(x.dtype))
        return out
