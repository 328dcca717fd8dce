"""The selective scan as an operator around the GPU's kernels (`plait.ops.scan_triton`).

A compiled graph sees one operator forward and one backward; stacked replicas (vmap) make the model axis longer.

Letters: M stacked models, B batch, T time, E channels, N state per channel; L steps in a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.stacking import register_stacked

#: Up to this many tokens, a small state is saved every few steps, so that the backward pass need not recompute it in
#: another pass; for longer sequences or larger states this would take too much memory, and fewer are saved.
SHORT, SMALL, SHORT_CHUNK, LONG_CHUNK = 512, 4, 4, 32


def kernel_chunk(n_steps: int, states: int) -> int:
    """Steps in a chunk, for sequences of `n_steps` with `states` numbers of state per channel."""
    return SHORT_CHUNK if n_steps <= SHORT and states <= SMALL else LONG_CHUNK


def scan_kernels(
    u_MBTE: Tensor, delta: Tensor, B: Tensor, C: Tensor, A_MNE: Tensor, D_ME: Tensor, state_MBNE: Tensor, L: int
) -> tuple[Tensor, Tensor]:
    """(y_MBTE, state_MBNE); T is a multiple of L. u may have lower precision than the rest; y has the dtype of u."""
    y_MBTE, final_MBNE, _ = _ScanKernels.apply(u_MBTE, delta, B, C, A_MNE, D_ME, state_MBNE, L)
    return y_MBTE, final_MBNE


@torch.library.custom_op("plait::scan", mutates_args=())
def _scan(
    u: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor, D: Tensor, state: Tensor, L: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the final state, and the state at the start of every chunk."""
    from plait.ops.scan_triton import scan_forward  # Triton comes with CUDA builds of torch

    return scan_forward(u, delta, B, C, A, D, state, L)


@torch.library.custom_op("plait::scan_backward", mutates_args=())
def _scan_backward(
    u: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor, D: Tensor, starts: Tensor, grad_y: Tensor,
    grad_final: Tensor, L: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of u, Δ, B, C, A, D and the first state."""
    from plait.ops.scan_triton import scan_backward

    return scan_backward(u, delta, B, C, A, D, starts, grad_y, grad_final, L)


class _ScanKernels(torch.autograd.Function):
    """Joins the two operators, so that torch.func can differentiate them."""

    generate_vmap_rule = True
    forward = staticmethod(lambda *inputs: _scan(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, _, ctx.n_in_chunk = inputs
        starts = output[2]
        ctx.mark_non_differentiable(starts)
        ctx.save_for_backward(*tensors, starts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_final: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return (*_scan_backward(*ctx.saved_tensors, grad_y, grad_final, ctx.n_in_chunk), None)


def _fake(u: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor, D: Tensor, state: Tensor, L: int) -> Any:
    replicas, batch, T, _ = u.shape
    starts = state.new_empty(replicas, batch, T // L, *state.shape[2:])
    return u.new_empty(u.shape), state.new_empty(state.shape), starts


def _fake_backward(
    u: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor, D: Tensor, starts: Tensor, grad_y: Tensor,
    grad_final: Tensor, L: int,
) -> Any:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (u, delta, B, C, A, D, grad_final))


register_stacked(_scan, _fake)
register_stacked(_scan_backward, _fake_backward)
