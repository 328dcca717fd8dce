"""The gradient of a whole fleet as one flat graph of tensor operations, for the compiler.

`torch.compile` cannot look through a hand-written gradient below `torch.func`; a recording of what the transforms do
holds the kernels behind it as operators of their own, with members folded into their batch.

Letters: M members, B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from plait.ops.paths import recorded_ops
from plait.train.stacked_adamw import Tensors

Gradients = Callable[[Tensors, Tensor, Tensor], tuple[Tensors, Tensor]]


def record_gradients(gradients: Gradients, params: Tensors, tokens_MBT: Tensor) -> Gradients:
    """The same function for arguments of these shapes, recorded under the present autocast."""
    names = list(params)
    targets_MBT = tokens_MBT.clone()  # one tensor given twice would be one input of the graph

    def flat(*tensors: Tensor) -> list[Tensor]:
        *values, tokens, targets = tensors
        grads, loss_M = gradients(dict(zip(names, values, strict=True)), tokens, targets)
        return [*(grads[name] for name in names), loss_M]

    with recorded_ops():
        # On fake tensors: an eager pass of a whole fleet might not fit into memory, a compiled one does.
        record = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)
        graph = record(*params.values(), tokens_MBT, targets_MBT)

    def replay(params: Tensors, tokens_MBT: Tensor, targets_MBT: Tensor) -> tuple[Tensors, Tensor]:
        *grads, loss_M = graph(*(params[name] for name in names), tokens_MBT, targets_MBT)
        return dict(zip(names, grads, strict=True)), loss_M

    return replay
