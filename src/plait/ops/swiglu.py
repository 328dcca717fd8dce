"""The gate of SwiGLU: y = silu(g) ∘ u, both halves of one product (Shazeer 2020, arXiv:2002.05202).

Elementwise work on tensors larger than a cache is bound by memory: the fast path goes through them once forward and
once backward, a cache-sized block at a time, and writes both gradients where the product before it wants them.

Letters: M stacked models (vmap), N rows, W width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.ops.paths import plain_wanted
from plait.ops.stacked import StackedFunction, cache_blocks


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """silu of the first half of the last dimension, times the second half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu(gate_up: Tensor) -> Tensor:
    """The same, fast."""
    if plain_wanted() or gate_up.is_cuda:
        return swiglu_reference(gate_up)
    y_MNW: Tensor = _Swiglu.apply(gate_up.reshape(1, -1, gate_up.shape[-1]))[0]
    return y_MNW.view(*gate_up.shape[:-1], -1)


class _Swiglu(StackedFunction):
    """(gate and up,) -> (y,)."""

    @staticmethod
    def forward(x_MNV: Tensor) -> Any:
        M, N, width = x_MNV.shape[0], x_MNV.shape[1], x_MNV.shape[2] // 2
        y_MNW = x_MNV.new_empty(M, N, width)
        for m, n in cache_blocks(M, N, 2 * width, x_MNV.device):
            gate, up = x_MNV[m, n].chunk(2, dim=-1)
            y = y_MNW[m, n]
            torch.ops.aten.silu.out(gate, out=y)
            y.mul_(up)
        return (y_MNW,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor]) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        (grad_x,) = _SwigluAdjoint.apply(*ctx.saved_tensors, grad_y)
        return grad_x


class _SwigluAdjoint(StackedFunction):
    """(gate and up, dy) -> (their gradient,). Apart, so that it too can be vmapped."""

    @staticmethod
    def forward(x_MNV: Tensor, grad_y_MNW: Tensor) -> Any:
        M, N, width = x_MNV.shape[0], x_MNV.shape[1], x_MNV.shape[2] // 2
        grad_x_MNV = x_MNV.new_empty(x_MNV.shape)
        for m, n in cache_blocks(M, N, 2 * width, x_MNV.device):
            gate, up = x_MNV[m, n].chunk(2, dim=-1)
            grad_gate, grad_up = grad_x_MNV[m, n].chunk(2, dim=-1)
            grad_y = grad_y_MNW[m, n]
            torch.ops.aten.silu.out(gate, out=grad_up)
            grad_up.mul_(grad_y)
            torch.mul(grad_y, up, out=grad_gate)
            torch.ops.aten.silu_backward.grad_input(grad_gate, gate, grad_input=grad_gate)
        return (grad_x_MNV,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor]) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("swiglu is differentiable once; for second derivatives use `plain_ops()`")
