"""synflow: Σ w · ∂R/∂w of a model with weights |w| whose input is all ones; R sums its outputs (Tanaka et al. 2020,
arXiv:2006.05467, eq. 2). No data is needed, and every path from input to output counts with a positive weight.

A norm would undo that: a LayerNorm turns equal channels into zeros. As in Abdelfattah et al. 2021, norms do not take
part; each divides by the root mean square of what it gets, held fixed, or the products of gated layers would grow
beyond any number.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from plait.model.construct import Model
from plait.search.proxies.proxy import Data, Proxy, block_weights, gradients


class Synflow(Proxy):
    name = "synflow"

    def score(self, model: Model, data: Data) -> float:
        tokens_BT, _ = data(0)
        positive = copy.deepcopy(model).double()
        with torch.no_grad():
            for parameter in positive.parameters():
                parameter.abs_()
        backbone = positive.backbone
        backbone.embedding.register_forward_hook(_ones)
        norms = (backbone.embedding_norm, *(block.norm for block in backbone.blocks), backbone.final_norm)
        for norm in norms:
            if not isinstance(norm, nn.Identity):
                norm.register_forward_hook(_rescale)
        weights = block_weights(positive)
        flow = backbone(tokens_BT[:1]).sum()  # of the tokens only their number matters
        grads = gradients(flow, weights)
        return float(sum((w.detach() * grad).abs().sum() for w, grad in zip(weights, grads, strict=True)))


def _ones(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return torch.ones_like(output)


def _rescale(_module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> Tensor:
    x_BTD = inputs[0]
    return x_BTD / x_BTD.detach().square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-12)
