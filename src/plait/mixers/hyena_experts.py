"""Hyena experts: E narrow Hyenas side by side, of which K make each token's output.

    s_t = softmax(top_K(x_t W_g)),   y_t = W_o Σ_{k ∈ top K} s_tk Hyena_k(x)_t

Hyena_k is order 2 and w channels wide: q ∘ (h ∗ z + s ∘ z) with z = k ∘ v, before any output map. The paper's FLOPs
(App. C.4.8) fix what its text leaves open: q, k and v of all experts are one projection, and one map from w to D
follows the weighted sum. Sparse is the output: a later token may choose any expert, so the state of every expert sees
every token, and a token's output is gathered from its K experts alone.

Poli et al. 2024 (MAD), arXiv:2403.17844, Sec. 3.3.

Letters: B batch, T time, D model width, E experts, K active experts, w expert width,
C = E w channels in all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plait.arch.hyena import HyenaExpertsOptions
from plait.mixers.hyena import HyenaBase
from plait.mixers.mixer import State
from plait.ops.longconv import modal_conv, modal_conv_step


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
        (q, k, v), tail = self.project_step(x_BD, state["conv"])
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
