"""grad_norm: Σ ‖∂L/∂W‖₂ over the weight matrices (Abdelfattah et al. 2021, arXiv:2101.08134, Sec. 3.1)."""

from __future__ import annotations

from plait.model.construct import Model
from plait.search.proxies.proxy import Data, Proxy, block_weights, cross_entropy, gradients


class GradNorm(Proxy):
    name = "grad_norm"

    def score(self, model: Model, data: Data) -> float:
        grads = gradients(cross_entropy(model, *data(0)), block_weights(model))
        return float(sum(grad.norm() for grad in grads))
