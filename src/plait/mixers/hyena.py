"""Hyena of order 2: a long convolution between two gates.

    q, k, v = shortconv(W x);   z = k ∘ v;   y = W_o [q ∘ (h ∗ z + s ∘ z)]

with one filter a channel in modal form, h_t = Σ_n R_n λ_n^t and 0 < λ_n < 1, which makes the convolution a recurrence
with S numbers of state a channel. λ = exp(−exp(ρ)): exp(−ρ) is a mode's memory in tokens.

Poli et al. 2023, arXiv:2302.10866 (eq. 4, N = 2); the filter is that of Massaroli et al. 2023, arXiv:2310.18780 (eq. 3.1),
as MAD uses it (arXiv:2403.17844, App. B.3.2).

Letters: B batch, T time, D model width, C filters, S modes of a filter, W width of the short convolution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from plait.arch.hyena import HyenaOptions
from plait.mixers.mixer import Draw, Mixer, State
from plait.ops.longconv import modal_conv, modal_conv_step
from plait.ops.shortconv import short_conv, short_conv_step

_SHORTEST_MEMORY, _LONGEST_MEMORY = 1.0, 1000.0


class ShortConvolvedProjections(nn.Module):
    """q, k and v of every Hyena: one projection, then a short causal convolution of each channel."""

    def __init__(self, d: int, width: int, short: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, 3 * width, bias=False)
        self.conv_CW = nn.Parameter(torch.zeros(3 * width, short))

    def init_weights(self, draw: Draw) -> None:
        # A sum of W taps keeps its input's scale.
        draw(self.conv_CW, self.conv_CW.shape[1] ** -0.5)

    def forward(self, x_BTD: Tensor, tail: Tensor | None) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        qkv, tail = short_conv(self.linear(x_BTD), self.conv_CW, state=tail)
        return _split_wide(qkv), tail

    def step(self, x_BD: Tensor, tail: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        qkv, tail = short_conv_step(self.linear(x_BD), self.conv_CW, None, tail)
        return _split_wide(qkv), tail


class ModalFilter(nn.Module):
    """The modes of C filters, with a range of memories to start from."""

    def __init__(self, filters: int, modes: int) -> None:
        super().__init__()
        self.log_rate_CS = nn.Parameter(torch.zeros(filters, modes))
        self.residues_CS = nn.Parameter(torch.zeros(filters, modes))

    def init_weights(self, draw: Draw) -> None:
        """Memories log-spaced from 1 to 1000 tokens, each filter spanning the range and no two of them alike; each mode
        brings 1/S of the energy of a filter of unit norm: Σ_t (R λ^t)² = R² / (1 − λ²)."""
        filters, modes = self.log_rate_CS.shape
        mode_S, filter_C = torch.arange(modes), (torch.arange(filters) + 0.5) / filters
        place_CS = (mode_S + filter_C[:, None]) / modes
        self.log_rate_CS.copy_(-(math.log(_SHORTEST_MEMORY) + place_CS * math.log(_LONGEST_MEMORY / _SHORTEST_MEMORY)))
        draw(self.residues_CS, modes**-0.5)
        self.residues_CS.mul_(torch.sqrt(-torch.expm1(2 * self.log_lambda())))

    def log_lambda(self) -> Tensor:
        """log λ < 0, in fp32 or wider: λ is raised to powers as large as the sequence is long."""
        return -torch.exp(self.log_rate_CS.to(torch.promote_types(self.log_rate_CS.dtype, torch.float32)))

    def forward(self) -> tuple[Tensor, Tensor]:
        log_lambda_CS = self.log_lambda()
        return log_lambda_CS, self.residues_CS.to(log_lambda_CS.dtype)


class Hyena(Mixer):
    def __init__(self, d: int, options: HyenaOptions) -> None:
        super().__init__(d, options)
        self.projections = ShortConvolvedProjections(d, d, options.short)
        self.filter = ModalFilter(d, options.state)
        self.skip_D = nn.Parameter(torch.ones(d))
        self.output = nn.Linear(d, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        self.projections.init_weights(draw)
        self.filter.init_weights(draw)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.extend(x_BTD, {})[0]

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return hyena_state(self, self.projections, self.filter.log_rate_CS.shape, batch)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.projections(x_BTD, state.get("conv"))
        y, modes = modal_conv(k * v, *self.filter(), self.skip_D.to(q.dtype), state_BCS=state.get("modes"))
        return self._combine(x_BTD, q * y), {"modes": modes, "conv": tail}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.projections.step(x_BD, state["conv"])
        y, modes = modal_conv_step(k * v, *self.filter(), self.skip_D.to(q.dtype), state["modes"])
        return self._combine(x_BD, q * y), {"modes": modes, "conv": tail}

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]

    def _combine(self, x: Tensor, gated: Tensor) -> Tensor:
        out: Tensor = self.output(gated.to(x.dtype))
        return out


def hyena_state(mixer: Mixer, projections: ShortConvolvedProjections, modes: torch.Size, batch: int) -> State:
    """Zeros of what a Hyena keeps: its filters' modes (fp32 or wider) and the short convolution's last inputs."""
    channels, short = projections.conv_CW.shape
    wide = torch.promote_types(projections.conv_CW.dtype, torch.float32)
    return {"modes": mixer.zeros(batch, *modes, dtype=wide), "conv": mixer.zeros(batch, short - 1, channels)}


def _split_wide(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in fp32 or wider, the precision of the gates and the convolution between them (MAD, App. C.3)."""
    q, k, v = qkv.to(torch.promote_types(qkv.dtype, torch.float32)).chunk(3, dim=-1)
    return q, k, v
