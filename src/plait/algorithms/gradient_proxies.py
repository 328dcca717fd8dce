"""Proxies from one backward pass: SNIP, gradient norm, GraSP, Fisher, SynFlow."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from plait.algorithms.proxies import Data, Proxy, block_weights, cross_entropy, gradients
from plait.model.construct import Model
from plait.ops.paths import plain_ops


class Snip(Proxy):
    name = "snip"

    def score(self, model: Model, data: Data) -> float:
        weights = block_weights(model)
        grads = gradients(cross_entropy(model, *data(0)), weights)
        return float(sum((w.detach() * grad).abs().sum() for w, grad in zip(weights, grads, strict=True)))


class GradNorm(Proxy):
    name = "grad_norm"

    def score(self, model: Model, data: Data) -> float:
        grads = gradients(cross_entropy(model, *data(0)), block_weights(model))
        return float(sum(grad.norm() for grad in grads))


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
