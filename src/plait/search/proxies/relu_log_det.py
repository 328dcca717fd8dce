"""relu_log_det: in how many ways a batch switches the model's nonlinearities (Mellor et al. 2021, arXiv:2006.04647).

Each sequence gets a code, one bit for every unit in front of a nonlinearity: whether it is positive. With K_ij the
number of bits in which sequences i and j agree, the score is log |det K|: −∞ when two sequences have one code.
The paper is about ReLU; GELU and SiLU switch at zero as well, so their inputs count, too. Experts see tokens and not
sequences: what is inside them is left out.

Letters: B batch, T time, N units of all positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from plait.model.construct import Model
from plait.ops.paths import plain_ops
from plait.search.proxies.proxy import Data, Proxy

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
