"""Root-mean-square norm: y = x / √(mean x² + ε) ∘ w (Zhang and Sennrich 2019, arXiv:1910.07467).

With r = 1/√(mean x² + ε), x̂ = r x and h = dy ∘ w:  dx = r (h − x̂ · mean(h ∘ x̂)),  dw = Σ dy ∘ x̂.

The fast path goes through x once forward and once backward, a cache-sized block at a time.

Letters: M stacked models (vmap), N rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.ops.paths import plain_wanted
from plait.ops.stacked import StackedFunction, cache_blocks


def rms_norm_reference(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """The definition, over the last dimension."""
    return F.rms_norm(x, x.shape[-1:], weight_D, eps)


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """The same, fast on a CPU; elsewhere torch's own kernel is."""
    if plain_wanted() or x.is_cuda or x.dtype != weight_D.dtype:
        return rms_norm_reference(x, weight_D, eps)
    y_MND: Tensor = _RmsNorm.apply(x.reshape(1, -1, x.shape[-1]), weight_D[None], eps)[0]
    return y_MND.view(x.shape)


class _RmsNorm(StackedFunction):
    """(x, weight) -> (y, r); r is for the backward pass alone."""

    @staticmethod
    def forward(x_MND: Tensor, weight_MD: Tensor, eps: float) -> Any:
        M, N, D = x_MND.shape
        y_MND, r_MN1 = x_MND.new_empty(x_MND.shape), x_MND.new_empty(M, N, 1)
        for m, n in cache_blocks(M, N, D, x_MND.device):
            x, y, r = x_MND[m, n], y_MND[m, n], r_MN1[m, n]
            torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=r)
            r.square_().div_(D).add_(eps).rsqrt_()
            torch.mul(x, r, out=y)
            y.mul_(weight_MD[m, None])
        return y_MND, r_MN1

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, _: Any) -> Any:
        return *_RmsNormAdjoint.apply(*ctx.saved_tensors, grad_y), None


class _RmsNormAdjoint(StackedFunction):
    """(x, weight, r, dy) -> (dx, dw). Apart, so that it too can be vmapped."""

    @staticmethod
    def forward(x_MND: Tensor, weight_MD: Tensor, r_MN1: Tensor, grad_y_MND: Tensor) -> Any:
        M, N, D = x_MND.shape
        grad_x_MND, grad_weight_MD = x_MND.new_empty(x_MND.shape), weight_MD.new_zeros(M, D)
        spare: Tensor | None = None
        for m, n in cache_blocks(M, N, D, x_MND.device):
            x, r, grad_y, grad_x = x_MND[m, n], r_MN1[m, n], grad_y_MND[m, n], grad_x_MND[m, n]
            # Two buffers for all blocks: fresh memory costs more in page faults than the arithmetic does.
            spare = x.new_empty(2, x.shape[0], x.shape[1], D) if spare is None else spare
            hat, product = spare[:, : x.shape[0], : x.shape[1]]
            torch.mul(x, r, out=hat)
            torch.mul(grad_y, hat, out=product)
            grad_weight_MD[m] += product.sum(1)
            mean = product.mul_(weight_MD[m, None]).mean(-1, keepdim=True)
            torch.mul(grad_y, weight_MD[m, None], out=grad_x)
            grad_x.addcmul_(hat, mean, value=-1).mul_(r)
        return grad_x_MND, grad_weight_MD

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("rms_norm is differentiable once; for second derivatives use `plain_ops()`")
