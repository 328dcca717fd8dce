"""Mamba's selective scan: a diagonal linear recurrence whose step size and projections depend on the input.

    h_t = exp(Δ_t A) ∘ h_{t-1} + (Δ_t u_t) B_t          y_t = ⟨h_t, C_t⟩ + D ∘ u_t

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023, arXiv:2312.00752, eq. 2 with
B discretised as Δ B.

The fast path is two-level. Time is cut into G chunks of L steps; a loop over the L positions of a chunk advances all
chunks at once, first from zero to find what each chunk adds to the state, then, after a short scan over the chunks,
from the true starting states. The adjoint of a linear recurrence is the same recurrence run backwards, so the gradient
has the same shape. Both work on slabs small enough to stay in cache and keep only the chunks' starting states for the
backward pass, which recomputes the rest. Nothing is divided by a decay: every exponent is ≤ 0.

Shapes: B batch, T time, E channels, N state per channel; M stacked models (vmap); G chunks, L steps in a chunk,
R = rows of a slab (batch × chunks). States are kept N-major inside (…NE): E is the long, contiguous axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.ops.paths import (
    LONGEST_IN_GRAPH,
    cache_blocks,
    has_kernels,
    outside_autocast,
    plain_asked,
    plain_wanted,
    took,
)
from plait.ops.scan_operator import kernel_chunk, scan_kernels
from plait.ops.stacking import StackedFunction

_Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # u, Δ, B, C along the sequence; A, D of the model
_BySequence = Sequence[Tensor]  # one for each of u, Δ, B, C


def selective_scan_reference(
    u_BTE: Tensor,
    delta_BTE: Tensor,
    A_EN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    D_E: Tensor | None = None,
    *,
    state_BEN: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, one step at a time. Returns the output and the state after the last step."""
    state_BEN = _zero_state(u_BTE, A_EN) if state_BEN is None else state_BEN
    ys = []
    for t in range(u_BTE.shape[1]):
        y_BE, state_BEN = selective_scan_step(
            u_BTE[:, t], delta_BTE[:, t], A_EN, B_BTN[:, t], C_BTN[:, t], D_E, state_BEN
        )
        ys.append(y_BE)
    return torch.stack(ys, dim=1), state_BEN


def selective_scan_step(
    u_BE: Tensor, delta_BE: Tensor, A_EN: Tensor, B_BN: Tensor, C_BN: Tensor, D_E: Tensor | None, state_BEN: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: the output and the next state."""
    decay_BEN = torch.exp(delta_BE[..., None] * A_EN)
    state_BEN = decay_BEN * state_BEN + (delta_BE * u_BE)[..., None] * B_BN[:, None]
    y_BE = (state_BEN * C_BN[:, None]).sum(-1)
    return (y_BE if D_E is None else y_BE + D_E * u_BE), state_BEN


def selective_scan(
    u_BTE: Tensor,
    delta_BTE: Tensor,
    A_EN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    D_E: Tensor | None = None,
    *,
    state_BEN: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The same as `selective_scan_reference`, two-level. `chunk` is L; by default about √(T/2), or what suits the GPU
    kernels. u may have lower precision than the other inputs, whose widest dtype is that of the state and of all
    arithmetic; the output has the dtype of u.

    Differentiable once, composes with `torch.func` (vmap, grad). On a GPU the kernels run, and a compiled graph
    contains them as one operator. Elsewhere `torch.compile` sees the same scan in plain operations, because the
    compiler fuses those and ignores custom gradients inside `torch.func.grad`.
    """
    n_steps = u_BTE.shape[1]
    path = took("selective scan", scan_path(u_BTE))
    n_in_chunk = chunk or (kernel_chunk(n_steps, A_EN.shape[1]) if path == "triton" else _default_chunk(n_steps))
    state_BEN = _zero_state(delta_BTE, A_EN) if state_BEN is None else state_BEN
    wide = reduce(torch.promote_types, (x.dtype for x in (delta_BTE, A_EN, B_BTN, C_BTN, state_BEN)))
    D_E = A_EN.new_zeros(len(A_EN)) if D_E is None else D_E
    delta, B, C, A_NE, D, state_BNE = (x.to(wide) for x in (delta_BTE, B_BTN, C_BTN, A_EN.mT, D_E, state_BEN.mT))
    u = u_BTE if path == "triton" else u_BTE.to(wide)
    # A padded step has Δ = 0: decay 1, input 0, so the state passes through it unchanged.
    u, delta, B, C = (_pad_time(x, -n_steps % n_in_chunk) for x in (u, delta, B, C))
    with outside_autocast(u):
        if path == "plain":
            y_BTE, state_BNE = _plain_scan(u, delta, B, C, A_NE, D, state_BNE, n_in_chunk)
        else:
            run: Callable[..., tuple[Tensor, ...]] = scan_kernels if path == "triton" else _Scan.apply
            stacked = [x.unsqueeze(0) for x in (u, delta, B, C, A_NE, D, state_BNE)]
            y_MBTE, state_MBNE, *_ = run(*stacked, n_in_chunk)
            y_BTE, state_BNE = y_MBTE.squeeze(0), state_MBNE.squeeze(0)
    return (y_BTE[:, :n_steps] if y_BTE.shape[1] > n_steps else y_BTE).to(u_BTE.dtype), state_BNE.mT


def scan_path(u_BTE: Tensor) -> str:
    """The path that `selective_scan` takes for this input: "triton" on a GPU, otherwise "chunks", or "plain" for a
    compiler and for second derivatives."""
    fused_by_compiler = torch.compiler.is_compiling() and u_BTE.shape[1] <= LONGEST_IN_GRAPH
    if has_kernels(u_BTE) and not plain_asked() and not fused_by_compiler:
        return "triton"
    return "plain" if plain_wanted() else "chunks"


def _default_chunk(n_steps: int) -> int:
    """A power of two near √(T/2), which minimises the 2L + G iterations: two passes and the scan over chunks."""
    chunk = 1
    while 8 * chunk * chunk <= n_steps:
        chunk *= 2
    return 2 * chunk if n_steps > 1 else 1


def _zero_state(u_BTE: Tensor, A_EN: Tensor) -> Tensor:
    return u_BTE.new_zeros(u_BTE.shape[0], *A_EN.shape)


def _pad_time(x_BTX: Tensor, n_steps: int) -> Tensor:
    return F.pad(x_BTX, (0, 0, 0, n_steps)) if n_steps else x_BTX


def _plain_scan(
    u_BTE: Tensor, delta_BTE: Tensor, B_BTN: Tensor, C_BTN: Tensor, A_NE: Tensor, D_E: Tensor, state_BNE: Tensor, L: int
) -> tuple[Tensor, Tensor]:
    """The two-level scan in plain operations, for the compiler."""
    delta_BGLE, B_BGLN, C_BGLN = (x.unflatten(1, (-1, L)) for x in (delta_BTE, B_BTN, C_BTN))
    decay_BGLNE = torch.exp(delta_BGLE[..., None, :] * A_NE)
    input_BGLNE = (delta_BTE * u_BTE).unflatten(1, (-1, L))[..., None, :] * B_BGLN[..., None]
    decays, inputs = decay_BGLNE.unbind(2), input_BGLNE.unbind(2)

    local_BGNE = inputs[0]
    for decay_BGNE, input_BGNE in zip(decays[1:], inputs[1:], strict=True):
        local_BGNE = decay_BGNE * local_BGNE + input_BGNE
    chunk_decay_BGNE = torch.exp(delta_BGLE.sum(2)[:, :, None] * A_NE)
    starts = [state_BNE]
    for decay_BNE, local_BNE in zip(chunk_decay_BGNE.unbind(1), local_BGNE.unbind(1), strict=True):
        starts.append(decay_BNE * starts[-1] + local_BNE)

    h_BGNE = torch.stack(starts[:-1], dim=1)
    hs = []
    for decay_BGNE, input_BGNE in zip(decays, inputs, strict=True):
        h_BGNE = decay_BGNE * h_BGNE + input_BGNE
        hs.append(h_BGNE)
    y_BGLE = (torch.stack(hs, dim=2) * C_BGLN[..., None]).sum(-2)
    return y_BGLE.flatten(1, 2) + D_E * u_BTE, starts[-1]


class _Workspace:
    """Buffers reused for all blocks: page faults of fresh memory would cost more than the arithmetic."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor. Blocks never grow, so the first request for a name is the largest."""
        size = math.prod(shape)
        if name not in self._buffers:
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)


def _positions(x_MBTX: Tensor, L: int) -> tuple[Tensor, ...]:
    """L views (M, R, X): the i-th holds the i-th step of every chunk."""
    M, B, T, X = x_MBTX.shape
    steps: tuple[Tensor, ...] = x_MBTX.view(M, B * (T // L), L, X).unbind(2)
    return steps


def _chunks(x_MRNE: Tensor, batch: int) -> tuple[Tensor, ...]:
    """G views (M, B, N, E): the g-th holds the g-th chunk of every sequence."""
    chunks: tuple[Tensor, ...] = x_MRNE.unflatten(1, (batch, -1)).unbind(2)
    return chunks


def _sources(u: Sequence[Tensor], delta: Sequence[Tensor], work: _Workspace) -> Sequence[Tensor]:
    """Δ_t u_t of every position, with an axis for N (MR1E)."""
    source = work.get("source", len(u), *u[0].shape).unbind()
    for source_MRE, u_MRE, delta_MRE in zip(source, u, delta, strict=True):
        torch.mul(u_MRE, delta_MRE, out=source_MRE)
    return [source_MRE.unsqueeze(-2) for source_MRE in source]


def _combine(weight_MRN: Tensor, x_MRNE: Tensor) -> Tensor:
    """Σ_n w_n x_n for every row, as a batch of (1, N) @ (N, E) products."""
    return torch.matmul(weight_MRN.unsqueeze(-2), x_MRNE).squeeze(-2)


def _decays(delta_MBTE: Tensor, A_MNE: Tensor, L: int, work: _Workspace) -> tuple[Sequence[Tensor], Tensor]:
    """The decay of every position (L slabs MRNE), and through each whole chunk (MRNE).

    A product of decays is computed as the exponential of a sum of exponents, so nothing underflows on the way.
    """
    # exp2 is vectorised almost three times better than exp on a CPU.
    rate_M1NE = A_MNE[:, None] * math.log2(math.e)
    delta_MRLE = delta_MBTE.view(delta_MBTE.shape[0], -1, L, delta_MBTE.shape[-1])
    M, R, _, E = delta_MRLE.shape
    *decay, chunk_decay = work.get("decay", L + 1, M, R, A_MNE.shape[1], E).unbind()
    for delta_MRE, out in zip((*delta_MRLE.unbind(2), delta_MRLE.sum(2)), (*decay, chunk_decay), strict=True):
        torch.mul(delta_MRE.unsqueeze(-2), rate_M1NE, out=out).exp2_()
    return decay, chunk_decay


def _scan_block(
    inputs: _Inputs, state_MBNE: Tensor, y_MBTE: Tensor, start_MBGNE: Tensor, L: int, work: _Workspace
) -> Tensor:
    """Fill the block's outputs and the state each of its chunks starts from; return its final state."""
    *sequences, A_MNE, D_ME = inputs
    u, delta, B, C, y = (_positions(x, L) for x in (*sequences, y_MBTE))
    decay, chunk_decay = _decays(sequences[1], A_MNE, L, work)
    source = _sources(u, delta, work)
    B_MRN1 = [x.unsqueeze(-1) for x in B]

    h = torch.mul(source[0], B_MRN1[0], out=work.get("h", *chunk_decay.shape))
    for i in range(1, L):
        h.mul_(decay[i]).addcmul_(source[i], B_MRN1[i])

    state, batch = state_MBNE, state_MBNE.shape[1]
    chunks = zip(_chunks(h, batch), _chunks(chunk_decay, batch), start_MBGNE.unbind(2), strict=True)
    for local_MBNE, decay_MBNE, start_MBNE in chunks:
        start_MBNE.copy_(state)
        state = torch.addcmul(local_MBNE, decay_MBNE, state)

    h.copy_(start_MBGNE.flatten(1, 2))
    for i in range(L):
        h.mul_(decay[i]).addcmul_(source[i], B_MRN1[i])
        torch.addcmul(_combine(C[i], h), u[i], D_ME[:, None], out=y[i])
    return state


def _adjoint_block(
    inputs: _Inputs,
    start_MBGNE: Tensor,
    grad_y: Tensor,
    grad_end_MBNE: Tensor,
    grads: _BySequence,
    L: int,
    work: _Workspace,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fill the block's gradients of u, Δ, B and C; return its gradients of A, D and the initial state.

    With g_t = dL/dh_t and p_t = exp(Δ_t A) ∘ g_t, the adjoint recurrence is g_{t-1} = p_t + C_{t-1} dL/dy_{t-1}.
    """
    *sequences, A_MNE, D_ME = inputs
    u, delta, B, C, gy = (_positions(x, L) for x in (*sequences, grad_y))
    grad_u, grad_delta, grad_B, grad_C = (_positions(x, L) for x in grads)
    decay, chunk_decay = _decays(sequences[1], A_MNE, L, work)
    source, slab = _sources(u, delta, work), chunk_decay.shape
    gy_MR1E, delta_MR1E = ([x.unsqueeze(-2) for x in xs] for xs in (gy, delta))
    B_MRN1, C_MRN1 = ([x.unsqueeze(-1) for x in xs] for xs in (B, C))

    h = work.get("every h", L + 1, *slab).unbind()  # the state before each step, and after the last
    h[0].copy_(start_MBGNE.flatten(1, 2))
    for i in range(L):
        torch.mul(h[i], decay[i], out=h[i + 1]).addcmul_(source[i], B_MRN1[i])

    local_MRNE = work.get("local", *slab).zero_()
    for i in reversed(range(L)):
        local_MRNE.addcmul_(gy_MR1E[i], C_MRN1[i]).mul_(decay[i])
    p, batch, grad_state = work.get("p", *slab), start_MBGNE.shape[1], grad_end_MBNE
    chunks = zip(*(reversed(_chunks(x, batch)) for x in (p, local_MRNE, chunk_decay)), strict=True)
    for end_MBNE, local_MBNE, decay_MBNE in chunks:
        end_MBNE.copy_(grad_state)
        grad_state = torch.addcmul(local_MBNE, decay_MBNE, grad_state)

    product = work.get("product", *slab)
    grad_A_MRNE, grad_D_MRE = work.get("grad A", *slab).zero_(), torch.zeros_like(source[0].squeeze(-2))
    for i in reversed(range(L)):
        p.addcmul_(gy_MR1E[i], C_MRN1[i])  # from here p holds g_t
        torch.sum(torch.mul(p, source[i], out=product), -1, out=grad_B[i])
        torch.sum(torch.mul(h[i + 1], gy_MR1E[i], out=product), -1, out=grad_C[i])
        grad_source_MRE = _combine(B[i], p)
        p.mul_(decay[i])  # and here p_t
        torch.mul(p, h[i], out=product)  # dL/d(Δ_t A)
        grad_A_MRNE.addcmul_(product, delta_MR1E[i])
        grad_D_MRE.addcmul_(gy[i], u[i])
        torch.addcmul(product.mul_(A_MNE[:, None]).sum(-2), grad_source_MRE, u[i], out=grad_delta[i])
        torch.addcmul(grad_source_MRE.mul_(delta[i]), gy[i], D_ME[:, None], out=grad_u[i])
    return grad_A_MRNE.sum(1), grad_D_MRE.sum(1), grad_state


class _Scan(StackedFunction):
    """(u, Δ, B, C, A, D, state, L) -> (y, state, start state of each chunk)."""

    @staticmethod
    def forward(u: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor, D: Tensor, state: Tensor, L: int) -> Any:
        u, delta, B, C, A = (x.contiguous() for x in (u, delta, B, C, A))
        (M, batch, T, E), N, work = u.shape, A.shape[1], _Workspace(u)
        y, final_state = torch.empty_like(u), state.new_empty(state.shape)
        starts = state.new_empty(M, batch, T // L, N, E)
        for m, b in cache_blocks(M, batch, starts[0, 0].numel(), u.device):
            inputs = (u[m, b], delta[m, b], B[m, b], C[m, b], A[m], D[m])
            final_state[m, b] = _scan_block(inputs, state[m, b], y[m, b], starts[m, b], L, work)
        return y, final_state, starts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, _, ctx.n_in_chunk = inputs
        starts = output[2]
        ctx.mark_non_differentiable(starts)
        # Most callers drop the final state: a missing gradient should not cost a tensor of zeros.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, starts)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_state: Tensor | None, _: Any) -> Any:
        saved = ctx.saved_tensors  # read once: with activation checkpointing, every access recomputes them
        u, *_, starts = saved
        grad_y = torch.zeros_like(u) if grad_y is None else grad_y
        grad_state = torch.zeros_like(starts[:, :, 0]) if grad_state is None else grad_state
        return *_ScanAdjoint.apply(*saved, grad_y, grad_state, ctx.n_in_chunk), None


class _ScanAdjoint(StackedFunction):
    """(u, Δ, B, C, A, D, start state of each chunk, dy, dstate, L) -> gradients of u, Δ, B, C, A, D and the state.

    A function of its own, so that the backward pass of `_Scan` can be vmapped too.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        *tensors, grad_y, grad_state, L = args
        u, delta, B, C, A, D, starts = tensors
        u, delta, B, C, A, grad_y = (x.contiguous() for x in (u, delta, B, C, A, grad_y))
        grads = [torch.empty_like(x) for x in (u, delta, B, C)]
        grad_A, grad_D, grad_start = torch.zeros_like(A), torch.zeros_like(D), torch.empty_like(grad_state)
        work = _Workspace(u)
        for m, b in cache_blocks(u.shape[0], u.shape[1], starts[0, 0].numel(), u.device):
            inputs = (u[m, b], delta[m, b], B[m, b], C[m, b], A[m], D[m])
            outputs = [grad[m, b] for grad in grads]
            block_A, block_D, grad_start[m, b] = _adjoint_block(
                inputs, starts[m, b], grad_y[m, b], grad_state[m, b], outputs, L, work
            )
            grad_A[m] += block_A
            grad_D[m] += block_D
        return *grads, grad_A, grad_D, grad_start

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("selective_scan is differentiable once; for second derivatives use `plain_ops()`")
