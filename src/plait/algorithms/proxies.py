"""Zero-cost proxies: scores of an untrained model on a batch of text.

From gradients: SNIP, gradient norm, GraSP, Fisher, SynFlow. From the differences between activations of a batch:
Jacobian covariance and the log-determinant of ReLU patterns. Short training, minus the loss after a few steps of AdamW,
is the most expensive and most direct.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plait.core.errors import UserError
from plait.core.registry import Entry, Table, accept_subclass
from plait.model.language_model import IGNORE, LanguageModel, Model
from plait.ops.paths import plain_ops

#: Step → (tokens_BT, targets_BT). Proxies of an untrained model use step 0 only.
Data = Callable[[int], tuple[Tensor, Tensor]]


class Proxy(ABC):
    """More is better for every proxy. Scoring does not change the model."""

    name: str
    #: Increased when the score of a model changes, so that stored scores of the old definition are not used.
    protocol: ClassVar[int] = 1

    @abstractmethod
    def score(self, model: Model, data: Data) -> float: ...

    def flops(self, forward: int, batch: int) -> int:
        """FLOPs of scoring, given those of a forward pass of the batch; a backward pass costs two forward passes."""
        return 3 * forward


def cross_entropy(model: Model, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """The loss without auxiliary losses (load balancing), which do not measure prediction."""
    if isinstance(model, LanguageModel):
        return model.score(model.backbone(tokens_BT), targets_BT)
    return F.cross_entropy(model(tokens_BT).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE)


def block_weights(model: Model) -> list[Tensor]:
    """The weights that are scored: matrices and filters of the layers. Embeddings and head would dominate the score
    and, as LiteTransformerSearch finds for total parameters, carry little information."""
    return [parameter for parameter in model.backbone.blocks.parameters() if parameter.dim() > 1]


def gradients(value: Tensor, of: list[Tensor], create_graph: bool = False) -> list[Tensor]:
    """∂value/∂x for each tensor x; zero if the value does not depend on it (an expert that got no token)."""
    grads = torch.autograd.grad(value, of, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(of, grads, strict=True)]


PROXIES: Table[type[Proxy]] = Table(
    "proxy",
    {
        "snip": Entry("plait.algorithms.proxies:Snip", "how much removing each weight would change the loss"),
        "grad_norm": Entry("plait.algorithms.proxies:GradNorm", "norm of the loss's gradient over the weight matrices"),
        "fisher": Entry("plait.algorithms.proxies:Fisher", "how much the loss would change without each channel"),
        "grasp": Entry(
            "plait.algorithms.proxies:Grasp", "how much removing weights would weaken the flow of gradients"
        ),
        "jacob_cov": Entry("plait.algorithms.proxies:JacobCov", "how differently a model responds to different inputs"),
        "relu_log_det": Entry(
            "plait.algorithms.proxies:ReluLogDet",
            "in how many ways a batch switches the model's nonlinearities",
        ),
        "synflow": Entry(
            "plait.algorithms.proxies:Synflow",
            "flow through the paths of a model with weights |w|; needs no data",
        ),
        "short_training": Entry(
            "plait.algorithms.proxies:ShortTraining",
            "minus the loss after a few steps of training; the most expensive and most direct",
        ),
    },
    group="plait.proxies",
    accept=accept_subclass("plait.algorithms.proxies:Proxy"),
)


def load_proxy(name: str) -> Proxy:
    return PROXIES.load(name)()


class Windows:
    """Step → B random windows of T tokens and their next tokens, a pure function of (seed, step)."""

    def __init__(self, tokens: NDArray[Any], *, batch: int, seq: int, seed: int = 0) -> None:
        if len(tokens) <= seq:
            raise UserError(f"{len(tokens):,} tokens are too few for windows of {seq} and the token after.")
        self.tokens, self.batch, self.seq, self.seed = tokens, batch, seq, seed

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        start_B = np.random.default_rng([self.seed, step]).integers(len(self.tokens) - self.seq, size=self.batch)
        window_BT = np.asarray(self.tokens)[start_B[:, None] + np.arange(self.seq + 1)].astype(np.int64)
        return torch.from_numpy(window_BT[:, :-1]), torch.from_numpy(window_BT[:, 1:])


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
        with plain_ops():  # custom backward passes cannot be differentiated again
            grads = gradients(cross_entropy(model, *data(0)), weights, create_graph=True)
            # H g is the gradient of g · g with one of the two held fixed.
            along = sum((grad * grad.detach()).sum() for grad in grads)
            curved = gradients(along, weights)  # type: ignore[arg-type]  # `sum` starts from 0
        return -float(sum((w.detach() * c).sum() for w, c in zip(weights, curved, strict=True)))

    def flops(self, forward: int, batch: int) -> int:
        return 8 * forward


class Fisher(Proxy):
    name = "fisher"
    protocol = 2  # layers that share weights are counted separately

    def score(self, model: Model, data: Data) -> float:
        outputs: list[Tensor] = []

        def keep(_module: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
            outputs.append(inputs[1])

        # The output that each layer adds to the residual stream; layers may share a mixer, but not the block's sum.
        hooks = [block.residual.register_forward_pre_hook(keep) for block in model.backbone.blocks]
        try:
            loss = cross_entropy(model, *data(0))
        finally:
            for hook in hooks:
                hook.remove()
        reached = [output for output in outputs if output.requires_grad]  # an identity layer has no gradient
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
        flow = backbone(tokens_BT[:1]).sum()  # only the number of tokens matters
        grads = gradients(flow, weights)
        return float(sum((w.detach() * grad).abs().sum() for w, grad in zip(weights, grads, strict=True)))


def _ones(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return torch.ones_like(output)


def _rescale(_module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> Tensor:
    x_BTD = inputs[0]
    return x_BTD / x_BTD.detach().square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-12)


K = 1e-5


class JacobCov(Proxy):
    name = "jacob_cov"

    def score(self, model: Model, data: Data) -> float:
        tokens_BT, _ = data(0)
        inputs: list[Tensor] = []

        def cut(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            inputs.append(output.detach().requires_grad_())
            return inputs[-1]

        hook = model.backbone.embedding.register_forward_hook(cut)
        try:
            logits_BTV = model(tokens_BT)
        finally:
            hook.remove()
        (jacobian_BTD,) = gradients(logits_BTV.sum(), inputs)
        return correlation_score(jacobian_BTD.flatten(1))


def correlation_score(rows_BN: Tensor) -> float:
    """Highest if the rows are uncorrelated."""
    correlation_BB = torch.corrcoef(rows_BN.double()).reshape(len(rows_BN), -1)  # a scalar for a single row
    shifted_B = torch.linalg.eigvalsh(correlation_BB).clamp(min=0) + K
    return -float((shifted_B.log() + 1 / shifted_B).sum())


NONLINEARITIES = (F.relu, F.gelu, F.silu, torch.relu)


class ReluLogDet(Proxy):
    name = "relu_log_det"

    def score(self, model: Model, data: Data) -> float:
        tokens_BT, _ = data(0)
        patterns = _ActivationPatterns(tuple(tokens_BT.shape))
        # Fused kernels do not call the nonlinearities.
        with torch.no_grad(), plain_ops(), patterns:
            model.backbone(tokens_BT)
        return float(torch.linalg.slogdet(patterns.agreement_BB)[1])

    def flops(self, forward: int, batch: int) -> int:
        return forward + batch**3


def agreement(signs_BN: Tensor) -> Tensor:
    """The number of units in which each pair of sequences agrees."""
    on, off = signs_BN.double(), (~signs_BN).double()
    return on @ on.T + off @ off.T


class _ActivationPatterns(TorchFunctionMode):
    """Records the sign pattern of the input of every nonlinearity that is called inside this context."""

    def __init__(self, shape_BT: tuple[int, ...]) -> None:
        super().__init__()
        self.shape_BT = shape_BT
        self.agreement_BB = torch.zeros(shape_BT[0], shape_BT[0], dtype=torch.float64)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in NONLINEARITIES and args[0].dim() > 2 and tuple(args[0].shape[:2]) == self.shape_BT:
            self.agreement_BB += agreement((args[0] > 0).flatten(1)).cpu()
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class ShortTraining(Proxy):
    steps: int = 50
    lr: float = 1e-3

    name = "short_training"

    def score(self, model: Model, data: Data) -> float:
        trained = copy.deepcopy(model).train()
        optimizer = torch.optim.AdamW(trained.parameters(), lr=self.lr, weight_decay=0.0)
        for step in range(self.steps):
            optimizer.zero_grad(set_to_none=True)
            trained.loss(*data(step)).backward()
            optimizer.step()
        with torch.no_grad():
            return -float(cross_entropy(trained.eval(), *data(self.steps)))

    def flops(self, forward: int, batch: int) -> int:
        return (3 * self.steps + 1) * forward
