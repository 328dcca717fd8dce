"""Proxies from how a batch's activations differ: Jacobian covariance and ReLU's log-determinant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plait.algorithms.proxies import Data, Proxy, gradients
from plait.model.construct import Model
from plait.ops.paths import plain_ops

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
            scores = model(tokens_BT)
        finally:
            hook.remove()
        (jacobian_BTD,) = gradients(scores.sum(), inputs)
        return correlation_score(jacobian_BTD.flatten(1))


def correlation_score(rows_BN: Tensor) -> float:
    """Highest where no two rows are alike."""
    correlation_BB = torch.corrcoef(rows_BN.double()).reshape(len(rows_BN), -1)  # of a single row it is a number
    shifted_B = torch.linalg.eigvalsh(correlation_BB).clamp(min=0) + K
    return -float((shifted_B.log() + 1 / shifted_B).sum())


SWITCHES = (F.relu, F.gelu, F.silu, torch.relu)


class ReluLogDet(Proxy):
    name = "relu_log_det"

    def score(self, model: Model, data: Data) -> float:
        tokens_BT, _ = data(0)
        watch = _Watch(tuple(tokens_BT.shape))
        # Fast paths call the nonlinearities by other names.
        with torch.no_grad(), plain_ops(), watch:
            model.backbone(tokens_BT)
        return float(torch.linalg.slogdet(watch.agreement_BB)[1])

    def flops(self, forward: int, batch: int) -> int:
        return forward + batch**3


def agreement(signs_BN: Tensor) -> Tensor:
    """In how many units each two sequences agree."""
    on, off = signs_BN.double(), (~signs_BN).double()
    return on @ on.T + off @ off.T


class _Watch(TorchFunctionMode):
    """Sees the input of every nonlinearity that is called inside it."""

    def __init__(self, shape_BT: tuple[int, ...]) -> None:
        super().__init__()
        self.shape_BT = shape_BT
        self.agreement_BB = torch.zeros(shape_BT[0], shape_BT[0], dtype=torch.float64)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in SWITCHES and args[0].dim() > 2 and tuple(args[0].shape[:2]) == self.shape_BT:
            self.agreement_BB += agreement((args[0] > 0).flatten(1)).cpu()
        return function(*args, **(kwargs or {}))
