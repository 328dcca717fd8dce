"""grasp: −Σ w · (H g), how much removing weights would weaken the flow of gradients g; H is the loss's Hessian
(Wang, Zhang & Grosse 2020, arXiv:2002.07376, eq. 8)."""

from __future__ import annotations

from plait.model.construct import Model
from plait.ops.paths import plain_ops
from plait.search.proxies.proxy import Data, Proxy, block_weights, cross_entropy, gradients


class Grasp(Proxy):
    name = "grasp"

    def score(self, model: Model, data: Data) -> float:
        weights = block_weights(model)
        with plain_ops():  # hand-written gradients can be taken once only
            grads = gradients(cross_entropy(model, *data(0)), weights, create_graph=True)
            # H g is the gradient of g · g with one of the two held fixed.
            along = sum((grad * grad.detach()).sum() for grad in grads)
            curved = gradients(along, weights)  # type: ignore[arg-type]  # `sum` starts from 0
        return -float(sum((w.detach() * c).sum() for w, c in zip(weights, curved, strict=True)))

    def flops(self, forward: int, batch: int) -> int:
        return 8 * forward
