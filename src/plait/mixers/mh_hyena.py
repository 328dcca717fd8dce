"""Multi-head Hyena: the outer products of keys and values are filtered, one modal filter a head.

    q, k, v = shortconv(W x);   y_t = W_o [Σ_{s ≤ t} h_{t−s} v_s k_sᵀ q_t]  in every head,   h_t = Σ_n R_n λ_n^t

It is linear attention whose past fades by a learned filter instead of staying or being gated by the data; the state of
a head is S matrices of P × P. Massaroli et al. 2023, arXiv:2310.18780, Sec. 4; MAD (arXiv:2403.17844), Sec. 2.2.

Letters: B batch, T time, D model width, H heads, P head width, S modes of a filter.
"""

from __future__ import annotations

from torch import Tensor

from plait.arch.hyena import MhHyenaOptions
from plait.mixers.hyena import HyenaBase
from plait.mixers.mixer import State
from plait.ops.longconv import multihead_conv, multihead_conv_step


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
        qkv, tail = self.project_step(x_BD, state["conv"])
        y_BHP, modes = multihead_conv_step(*self._heads(qkv), *self.filter.modes(), state["modes"])
        return self._combine(x_BD, y_BHP), {"modes": modes, "conv": tail}

    def _heads(self, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.unflatten(-1, (self.heads, self.width)) for x in qkv)
        return q, k, v

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.output(y.flatten(-2).to(x.dtype))
        return out
