"""The selective scan on a GPU: one program per sequence and block of channels steps through time, state in registers.

The forward pass keeps the state at the start of every chunk; the backward pass goes through the chunks from last to
first. It recomputes the states of a few steps at a time, which stay in registers, and runs the adjoint recurrence over
them; for a longer chunk, an additional pass first stores the state at the start of each of its parts in a scratch
buffer. (A scratch buffer for the state of every step caused more traffic than all inputs and outputs together.)
`plait.ops.scan` defines what is computed, `plait.ops.scan_operator` makes it an operator.

Few sequences would leave a GPU idle, so they are split into segments of whole chunks. `_scan_ends` runs every segment
from a zero state, `_scan_join` computes the state at every boundary from that, and then segments are independent
sequences.

Letters: S sequences (models × batch), T time, E channels, N state per channel, G chunks of L steps, X channel blocks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

ENOUGH = 4096  # programs that fill a GPU
#: Decays are powers of two in the kernels, which GPUs compute natively; e^x takes four more instructions.
LOG2_E, LN_2 = tl.constexpr(math.log2(math.e)), tl.constexpr(math.log(2))


class Tile(NamedTuple):
    """Channels per program and its warps; steps whose inputs are prefetched (forward), and whose states are in
    registers together (backward); the limit on registers per thread, 0: the compiler's choice."""

    channels: int
    warps: int
    stages: int = 1
    kept: int = 4
    registers: int = 0


class Tuning(NamedTuple):
    forward: Tile  # also for the ends of segments
    backward: Tile


#: By the largest number of states per channel; measured on an H200 (benchmarks/tiles.py).
TUNINGS: dict[float, Tuning] = {
    4: Tuning(Tile(64, 1), Tile(128, 1, kept=4)),
    16: Tuning(Tile(64, 1), Tile(32, 1, kept=4)),
    math.inf: Tuning(Tile(64, 4), Tile(64, 4, kept=2)),
}


def tuning(N: int) -> Tuning:
    return next(tuned for most, tuned in TUNINGS.items() if most >= N)


@triton.jit
def _scan_forward(
    u, delta, B, C, A, D, state, y, final, starts, T, E, batch,
    L: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, WIDE)
    in_e, in_n = e < E, n < N
    inside = in_n[:, None] & in_e[None, :]
    ne = n[:, None] * E + e[None, :]
    a = tl.load(A + (s // batch) * N * E + ne, mask=inside, other=0.0) * LOG2_E
    d = tl.load(D + (s // batch) * E + e, mask=in_e, other=0.0)
    h = tl.load(state + s * N * E + ne, mask=inside, other=0.0)
    for g in range(T // L):
        tl.store(starts + (s * (T // L) + g) * N * E + ne, h, mask=inside)
        for i in tl.range(0, L, num_stages=STAGES):
            at = s * T + g * L + i
            ut = tl.load(u + at * E + e, mask=in_e, other=0.0).to(a.dtype)
            dt = tl.load(delta + at * E + e, mask=in_e, other=0.0)
            bt = tl.load(B + at * N + n, mask=in_n, other=0.0)
            ct = tl.load(C + at * N + n, mask=in_n, other=0.0)
            h = tl.exp2(dt[None, :] * a) * h + (dt * ut)[None, :] * bt[:, None]
            out = tl.sum(h * ct[:, None], axis=0) + d * ut
            tl.store(y + at * E + e, out.to(y.dtype.element_ty), mask=in_e)
    tl.store(final + s * N * E + ne, h, mask=inside)


@triton.jit
def _scan_backward(
    u, delta, B, C, A, D, starts, grad_y, grad_final, scratch,
    grad_u, grad_delta, grad_B, grad_C, grad_A, grad_D, grad_state, T, E, batch, blocks,
    L: tl.constexpr, KEPT: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    s, x = tl.program_id(0).to(tl.int64), tl.program_id(1)
    e = x * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, WIDE)
    in_e, in_n = e < E, n < N
    inside = in_n[:, None] & in_e[None, :]
    ne = n[:, None] * E + e[None, :]
    a = tl.load(A + (s // batch) * N * E + ne, mask=inside, other=0.0) * LOG2_E
    d = tl.load(D + (s // batch) * E + e, mask=in_e, other=0.0)
    p = tl.load(grad_final + s * N * E + ne, mask=inside, other=0.0)
    sum_A = tl.zeros_like(p)
    sum_D = tl.zeros_like(d)
    chunks = T // L
    PARTS: tl.constexpr = L // KEPT
    scratch += s * PARTS * N * E
    for back in range(chunks):
        g = chunks - 1 - back
        h = tl.load(starts + (s * chunks + g) * N * E + ne, mask=inside, other=0.0)
        if PARTS > 1:  # recompute the state at the start of every part
            tl.store(scratch + ne, h, mask=inside)
            for part in range(1, PARTS):
                for i in tl.static_range(KEPT):
                    at = s * T + g * L + (part - 1) * KEPT + i
                    ut = tl.load(u + at * E + e, mask=in_e, other=0.0).to(a.dtype)
                    dt = tl.load(delta + at * E + e, mask=in_e, other=0.0)
                    bt = tl.load(B + at * N + n, mask=in_n, other=0.0)
                    h = tl.exp2(dt[None, :] * a) * h + (dt * ut)[None, :] * bt[:, None]
                tl.store(scratch + part * N * E + ne, h, mask=inside)
            tl.debug_barrier()
        for j in tl.range(0, PARTS, num_stages=STAGES):
            part = PARTS - 1 - j
            first = s * T + g * L + part * KEPT
            if PARTS > 1:
                h = tl.load(scratch + part * N * E + ne, mask=inside, other=0.0)
            before = ()  # the states ahead of each step of the part, in registers
            for i in tl.static_range(KEPT):
                at = first + i
                ut = tl.load(u + at * E + e, mask=in_e, other=0.0).to(a.dtype)
                dt = tl.load(delta + at * E + e, mask=in_e, other=0.0)
                bt = tl.load(B + at * N + n, mask=in_n, other=0.0)
                before = before + (h,)  # type: ignore[assignment]  # noqa: RUF005 (Triton knows no starred tuples)
                h = tl.exp2(dt[None, :] * a) * h + (dt * ut)[None, :] * bt[:, None]
            for i in tl.static_range(KEPT - 1, -1, -1):
                at = first + i
                ut = tl.load(u + at * E + e, mask=in_e, other=0.0).to(a.dtype)
                dt = tl.load(delta + at * E + e, mask=in_e, other=0.0)
                bt = tl.load(B + at * N + n, mask=in_n, other=0.0)
                ct = tl.load(C + at * N + n, mask=in_n, other=0.0)
                gy = tl.load(grad_y + at * E + e, mask=in_e, other=0.0).to(a.dtype)
                p += gy[None, :] * ct[:, None]  # dL/dh_t
                tl.store(grad_B + (at * blocks + x) * N + n, tl.sum(p * (dt * ut)[None, :], axis=1), mask=in_n)
                tl.store(grad_C + (at * blocks + x) * N + n, tl.sum(h * gy[None, :], axis=1), mask=in_n)
                grad_source = tl.sum(p * bt[:, None], axis=0)
                h = before[i]
                p = tl.exp2(dt[None, :] * a) * p
                product = p * h  # dL/d(Δ_t A)
                sum_A += product * dt[None, :]
                sum_D += gy * ut
                tl.store(grad_delta + at * E + e, tl.sum(product * a, axis=0) * LN_2 + grad_source * ut, mask=in_e)
                tl.store(grad_u + at * E + e, (grad_source * dt + gy * d).to(u.dtype.element_ty), mask=in_e)
        if PARTS > 1:
            tl.debug_barrier()
    tl.store(grad_A + s * N * E + ne, sum_A, mask=inside)
    tl.store(grad_D + s * E + e, sum_D, mask=in_e)
    tl.store(grad_state + s * N * E + ne, p, mask=inside)


@triton.jit
def _scan_ends(
    u, delta, x, A, grad_y, local, total, T, E, batch,
    BACK: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What a segment adds to the state behind it (x is B), or to the gradient of the state before it (x is C)."""
    s = tl.program_id(0).to(tl.int64)
    e, n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    in_e, in_n = e < E, n < N
    inside = in_n[:, None] & in_e[None, :]
    ne = n[:, None] * E + e[None, :]
    a = tl.load(A + (s // batch) * N * E + ne, mask=inside, other=0.0) * LOG2_E
    h = tl.zeros_like(a)
    steps = tl.zeros((BLOCK,), a.dtype)
    for i in tl.range(0, T, num_stages=STAGES):
        at = s * T + (T - 1 - i if BACK else i)
        dt = tl.load(delta + at * E + e, mask=in_e, other=0.0)
        xt = tl.load(x + at * N + n, mask=in_n, other=0.0)
        steps += dt
        if BACK:
            h = tl.exp2(dt[None, :] * a) * (
                h + tl.load(grad_y + at * E + e, mask=in_e, other=0.0).to(a.dtype)[None, :] * xt[:, None]
            )
        else:
            ut = tl.load(u + at * E + e, mask=in_e, other=0.0).to(a.dtype)
            h = tl.exp2(dt[None, :] * a) * h + (dt * ut)[None, :] * xt[:, None]
    tl.store(local + s * N * E + ne, h, mask=inside)
    tl.store(total + s * E + e, steps, mask=in_e)


@triton.jit
def _scan_join(
    A, first, local, total, borders, E, batch, segments,
    BACK: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state before every segment, or the gradient of the state after it."""
    s = tl.program_id(0).to(tl.int64)
    e, n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    in_e = e < E
    inside = (n < N)[:, None] & in_e[None, :]
    ne = n[:, None] * E + e[None, :]
    a = tl.load(A + (s // batch) * N * E + ne, mask=inside, other=0.0) * LOG2_E
    h = tl.load(first + s * N * E + ne, mask=inside, other=0.0)
    for i in tl.range(0, segments, num_stages=STAGES):
        at = s * segments + (segments - 1 - i if BACK else i)
        tl.store(borders + at * N * E + ne, h, mask=inside)
        steps = tl.load(total + at * E + e, mask=in_e, other=0.0)
        h = tl.exp2(steps[None, :] * a) * h + tl.load(local + at * N * E + ne, mask=inside, other=0.0)


def scan_forward(
    u_MBTE: Tensor, delta: Tensor, B: Tensor, C: Tensor, A_MNE: Tensor, D: Tensor, state: Tensor, L: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, final state, state at the start of every chunk), as `plait.ops.scan._Scan` returns them."""
    (M, batch, T, E), N = u_MBTE.shape, A_MNE.shape[1]
    y, starts = u_MBTE.new_empty(u_MBTE.shape), state.new_empty(M, batch, T // L, N, E)  # y as narrow as u
    u, delta, B, C, A, D, state = (x.contiguous() for x in (u_MBTE, delta, B, C, A_MNE, D, state))
    tile = tuning(N).forward
    segments = _segments(M * batch, T // L, E, tile)
    if segments > 1:
        state = _borders(u, delta, B, A, None, state, segments)
    many, final = M * batch * segments, torch.empty_like(state)
    inputs = u, delta, B, C, A, D, state
    _scan_forward[_grid(many, E, tile)](
        *inputs, y, final, starts, T // segments, E, batch * segments, **_sizes(N, tile), L=L
    )
    return y, final.view(M, batch, segments, N, E)[:, :, -1].contiguous(), starts


def scan_backward(
    u_MBTE: Tensor, delta: Tensor, B: Tensor, C: Tensor, A_MNE: Tensor, D: Tensor, starts: Tensor, grad_y: Tensor,
    grad_final: Tensor, L: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of u, Δ, B, C, A, D and the first state."""
    (M, batch, T, E), N = u_MBTE.shape, A_MNE.shape[1]
    u, delta, B, C, A, D = (x.contiguous() for x in (u_MBTE, delta, B, C, A_MNE, D))
    starts, grad_y, grad_final = (x.contiguous() for x in (starts, grad_y, grad_final))
    tile = tuning(N).backward
    segments = _segments(M * batch, T // L, E, tile)
    if segments > 1:
        grad_final = _borders(u, delta, C, A, grad_y, grad_final, segments)
    sequences = batch * segments
    grid = _grid(M * sequences, E, tile)
    blocks = grid[1]
    kept = min(tile.kept, L)
    grad_u, grad_delta = u.new_empty(u.shape), delta.new_empty(u.shape)
    # Sums over channels or over the batch cross programs: each writes its own part.
    grad_B, grad_C = (delta.new_empty(M, batch, T, blocks, N) for _ in range(2))
    grad_A, grad_D = delta.new_empty(M, sequences, N, E), delta.new_empty(M, sequences, E)
    grad_state = torch.empty_like(grad_A)
    scratch = delta.new_empty(M * sequences, L // kept, N, E) if kept < L else grad_state  # no part, no scratch
    _scan_backward[grid](
        u, delta, B, C, A, D, starts, grad_y, grad_final, scratch, grad_u, grad_delta, grad_B, grad_C, grad_A, grad_D,
        grad_state, T // segments, E, sequences, blocks, **_sizes(N, tile), L=L, KEPT=kept,
    )  # fmt: skip
    grad_state = grad_state.view(M, batch, segments, N, E)[:, :, 0].contiguous()
    return grad_u, grad_delta, grad_B.sum(3), grad_C.sum(3), grad_A.sum(1), grad_D.sum(1), grad_state


def _segments(sequences: int, chunks: int, channels: int, tile: Tile) -> int:
    """The number of segments per sequence: a power of two that divides its chunks, and no more than fill the GPU."""
    segments, programs = 1, sequences * triton.cdiv(channels, tile.channels)
    while chunks % (2 * segments) == 0 and programs * segments < ENOUGH:
        segments *= 2
    return segments


def _borders(
    u_MBTE: Tensor, delta: Tensor, x: Tensor, A_MNE: Tensor, grad_y: Tensor | None, first: Tensor, segments: int
) -> Tensor:
    """The state before every segment; with dy, the gradient of the state after it. (M, batch × segments, N, E)"""
    (M, batch, T, E), N = u_MBTE.shape, A_MNE.shape[1]
    local, borders = (delta.new_empty(M, batch * segments, N, E) for _ in range(2))
    tile = tuning(N).forward
    total, options = delta.new_empty(M, batch * segments, E), {"BACK": grad_y is not None, **_sizes(N, tile)}
    _scan_ends[_grid(M * batch * segments, E, tile)](
        u_MBTE, delta, x, A_MNE, grad_y, local, total, T // segments, E, batch * segments, **options
    )
    _scan_join[_grid(M * batch, E, tile)](A_MNE, first, local, total, borders, E, batch, segments, **options)
    return borders


def _grid(sequences: int, channels: int, tile: Tile) -> tuple[int, int]:
    return sequences, triton.cdiv(channels, tile.channels)


def _sizes(N: int, tile: Tile) -> dict[str, Any]:
    sizes = {"N": N, "WIDE": triton.next_power_of_2(N), "BLOCK": tile.channels, "STAGES": tile.stages}
    return {**sizes, "num_warps": tile.warps, "maxnreg": tile.registers or None}
