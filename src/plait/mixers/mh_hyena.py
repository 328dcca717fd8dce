"""Multi-head Hyena: the outer products of keys and values are filtered, one modal filter a head.

    q, k, v = shortconv(W x);   y_t = W_o [Σ_{s ≤ t} h_{t−s} v_s k_sᵀ q_t]  in every head,   h_t = Σ_n R_n λ_n^t

It is linear attention whose past fades by a learned filter instead of staying or being gated by the data; the state of
a head is S matrices of P × P. Massaroli et al. 2023, arXiv:2310.18780, Sec. 4; MAD (arXiv:2403.17844), Sec. 2.2.

Letters: B batch, T time, D model width, H heads, P head width, S modes of a filter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plait.arch.hyena import MhHyenaOptions
from plait.mixers.hyena import ModalFilter, ShortConvolvedProjections, hyena_state
from plait.mixers.mixer import Draw, Mixer, State
from plait.ops.longconv import multihead_conv, multihead_conv_step


class MultiHeadHyena(Mixer):
    def __init__(self, d: int, options: MhHyenaOptions) -> None:
        super().__init__(d, options)
        self.heads, self.width, self.modes = options.heads, d // options.heads, options.state
        self.projections = ShortConvolvedProjections(d, d, options.short)
        self.filter = ModalFilter(self.heads, self.modes)
        self.output = nn.Linear(d, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        self.projections.init_weights(draw)
        self.filter.init_weights(draw)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.extend(x_BTD, {})[0]

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        shape = torch.Size((self.heads, self.modes, self.width, self.width))
        return hyena_state(self, self.projections, shape, batch)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv, tail = self.projections(x_BTD, state.get("conv"))
        y_BTHP, modes = multihead_conv(*self._heads(qkv), *self.filter(), state_BHSPP=state.get("modes"))
        return self._combine(x_BTD, y_BTHP), {"modes": modes, "conv": tail}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        qkv, tail = self.projections.step(x_BD, state["conv"])
        y_BHP, modes = multihead_conv_step(*self._heads(qkv), *self.filter(), state["modes"])
        return self._combine(x_BD, y_BHP), {"modes": modes, "conv": tail}

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]

    def _heads(self, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.unflatten(-1, (self.heads, self.width)) for x in qkv)
        return q, k, v

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.output(y.flatten(-2).to(x.dtype))
        return out
