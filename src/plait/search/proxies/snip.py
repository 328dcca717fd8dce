"""snip: Σ |w · ∂L/∂w|, how much removing each weight would change the loss (Lee et al. 2019, arXiv:1810.02340)."""

from __future__ import annotations

from plait.model.construct import Model
from plait.search.proxies.proxy import Data, Proxy, block_weights, cross_entropy, gradients


class Snip(Proxy):
    name = "snip"

    def score(self, model: Model, data: Data) -> float:
        weights = block_weights(model)
        grads = gradients(cross_entropy(model, *data(0)), weights)
        return float(sum((w.detach() * grad).abs().sum() for w, grad in zip(weights, grads, strict=True)))
