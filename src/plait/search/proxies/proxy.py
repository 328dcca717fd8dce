"""What a proxy is, and what most of them have in common.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.model.construct import Model
from plait.model.heads import IGNORE, LanguageModel

#: Step → (tokens_BT, targets_BT). Proxies of an untrained model look at step 0 alone.
Data = Callable[[int], tuple[Tensor, Tensor]]


class Proxy(ABC):
    """More is better for every proxy. Scoring leaves the model as it was."""

    name: str

    @abstractmethod
    def score(self, model: Model, data: Data) -> float: ...

    def flops(self, forward: int, batch: int) -> int:
        """What scoring costs where a forward pass of the whole batch costs `forward`: a backward pass costs two."""
        return 3 * forward


def cross_entropy(model: Model, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """The loss without the mixers' own terms (load balancing), which say nothing about prediction."""
    if isinstance(model, LanguageModel):
        return model.score(model.backbone(tokens_BT), targets_BT)
    return F.cross_entropy(model(tokens_BT).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE)


def block_weights(model: Model) -> list[Tensor]:
    """The weights that are scored: matrices and filters of the layers. Embeddings and output would drown them and, as
    LiteTransformerSearch finds of total parameters, say little."""
    return [parameter for parameter in model.backbone.blocks.parameters() if parameter.dim() > 1]


def gradients(value: Tensor, of: list[Tensor], create_graph: bool = False) -> list[Tensor]:
    """∂value/∂each; zero where the value does not depend on it (an expert no token went to)."""
    found = torch.autograd.grad(value, of, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(of, found, strict=True)]
