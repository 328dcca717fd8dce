"""Training-free scores of a built model on a text: what a proxy is, the table of them, and the windows they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from plait.core.errors import UserError
from plait.core.registry import Entry, Table
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


PROXIES: Table[type[Proxy]] = Table(
    "proxy",
    {
        "snip": Entry("plait.algorithms.gradient_proxies:Snip", "how much removing each weight would change the loss"),
        "grad_norm": Entry(
            "plait.algorithms.gradient_proxies:GradNorm", "norm of the loss's gradient over the weight matrices"
        ),
        "fisher": Entry(
            "plait.algorithms.gradient_proxies:Fisher", "how much the loss would change without each channel"
        ),
        "grasp": Entry(
            "plait.algorithms.gradient_proxies:Grasp", "how much removing weights would weaken the flow of gradients"
        ),
        "jacob_cov": Entry(
            "plait.algorithms.activation_proxies:JacobCov", "how differently a model responds to different inputs"
        ),
        "relu_log_det": Entry(
            "plait.algorithms.activation_proxies:ReluLogDet",
            "in how many ways a batch switches the model's nonlinearities",
        ),
        "synflow": Entry(
            "plait.algorithms.gradient_proxies:Synflow",
            "flow through the paths of a model with weights |w|; needs no data",
        ),
        "short_training": Entry(
            "plait.algorithms.short_training:ShortTraining",
            "minus the loss after a few steps of training; the dearest, the most direct",
        ),
    },
    group="plait.proxies",
)


def load_proxy(name: str) -> Proxy:
    return PROXIES.load(name)()


class Windows:
    """Step → B windows of T tokens and the tokens after them, a pure function of (seed, step)."""

    def __init__(self, tokens: NDArray[Any], *, batch: int, seq: int, seed: int = 0) -> None:
        if len(tokens) <= seq:
            raise UserError(f"{len(tokens):,} tokens are too few for windows of {seq} and the token after.")
        self.tokens, self.batch, self.seq, self.seed = tokens, batch, seq, seed

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        start_B = np.random.default_rng([self.seed, step]).integers(len(self.tokens) - self.seq, size=self.batch)
        window_BT = np.asarray(self.tokens)[start_B[:, None] + np.arange(self.seq + 1)].astype(np.int64)
        return torch.from_numpy(window_BT[:, :-1]), torch.from_numpy(window_BT[:, 1:])
