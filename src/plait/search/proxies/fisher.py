"""fisher: Σ over layers and channels c of ½ · mean_b (Σ_t a_btc · ∂L/∂a_btc)², an estimate of how much the loss would
change without that channel (Theis et al. 2018, arXiv:1801.05787, eq. 8; Turner et al. 2020, arXiv:1906.04113).

The activations a are what each layer adds to the residual stream, which every mixer has.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from plait.model.construct import Model
from plait.search.proxies.proxy import Data, Proxy, cross_entropy, gradients


class Fisher(Proxy):
    name = "fisher"

    def score(self, model: Model, data: Data) -> float:
        outputs: list[Tensor] = []

        def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            outputs.append(output)

        hooks = [block.mixer.register_forward_hook(keep) for block in model.backbone.blocks]
        try:
            loss = cross_entropy(model, *data(0))
        finally:
            for hook in hooks:
                hook.remove()
        reached = [output for output in outputs if output.requires_grad]  # a layer that does nothing has no gradient
        saliency_BD = [(a.detach() * g).sum(dim=1) for a, g in zip(reached, gradients(loss, reached), strict=True)]
        return float(sum(0.5 * s.square().mean(dim=0).sum() for s in saliency_BD))
