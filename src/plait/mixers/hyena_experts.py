"""Hyena experts: E narrow Hyenas side by side, of which K make each token's output.

    s_t = softmax(top_K(x_t W_g)),   y_t = W_o Σ_{k ∈ top K} s_tk Hyena_k(x)_t

Hyena_k is order 2 and w channels wide: q ∘ (h ∗ z + s ∘ z) with z = k ∘ v, before any output map. The paper's FLOPs
(App. C.4.8) fix what its text leaves open: q, k and v of all experts are one projection, and one map from w to D follows
the weighted sum. Sparse is the output: a later token may choose any expert, so the state of every expert sees every token,
and a token's output is gathered from its K experts alone.

Poli et al. 2024 (MAD), arXiv:2403.17844, Sec. 3.3.

Letters: B batch, T time, D model width, E experts, K active experts, w expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plait.arch.hyena import HyenaExpertsOptions
from plait.mixers.hyena import ModalFilter, ShortConvolvedProjections, hyena_state
from plait.mixers.mixer import Draw, Mixer, State
from plait.ops.longconv import modal_conv, modal_conv_step


class HyenaExperts(Mixer):
    def __init__(self, d: int, options: HyenaExpertsOptions) -> None:
        super().__init__(d, options)
        self.experts, self.active, self.width = options.experts, options.active, int(options.expert_width(d))
        channels = self.experts * self.width
        self.router = nn.Linear(d, self.experts, bias=False)
        self.projections = ShortConvolvedProjections(d, channels, options.short)
        self.filter = ModalFilter(channels, options.state)
        self.skip_C = nn.Parameter(torch.ones(channels))
        self.output = nn.Linear(self.width, d, bias=False)

    def init_weights(self, draw: Draw) -> None:
        self.projections.init_weights(draw)
        self.filter.init_weights(draw)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.extend(x_BTD, {})[0]

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return hyena_state(self, self.projections, self.filter.log_rate_CS.shape, batch)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.projections(x_BTD, state.get("conv"))
        y, modes = modal_conv(k * v, *self.filter(), self.skip_C.to(q.dtype), state_BCS=state.get("modes"))
        return self._combine(x_BTD, q * y), {"modes": modes, "conv": tail}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        (q, k, v), tail = self.projections.step(x_BD, state["conv"])
        y, modes = modal_conv_step(k * v, *self.filter(), self.skip_C.to(q.dtype), state["modes"])
        return self._combine(x_BD, q * y), {"modes": modes, "conv": tail}

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the indices of every token's K experts, (…, K) both."""
        top, chosen = self.router(x).topk(self.active, dim=-1)
        return top.softmax(dim=-1), chosen

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]

    def _combine(self, x: Tensor, gated: Tensor) -> Tensor:
        weight, chosen = self.route(x)
        # (…, K, w): shapes do not depend on the data, so the same gather serves vmap and compiled graphs.
        active = torch.take_along_dim(gated.unflatten(-1, (self.experts, self.width)), chosen[..., None], dim=-2)
        out: Tensor = self.output((weight[..., None] * active).sum(dim=-2).to(x.dtype))
        return out
