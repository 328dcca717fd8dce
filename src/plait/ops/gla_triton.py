"""Gated linear attention on a GPU in chunks, forward and backward: what the kernels compute and how they are launched.

`plait.ops.gla` defines what is computed, `plait.ops.gla` makes it an operator. The design is ours:

* `cumulate` sums the log decays from each chunk's start, in base 2. `states` goes through the chunks with a tile of the
  state in registers, in fp32, and stores the state before each chunk; run backwards with queries and gradients, it
  stores the gradient of the state after each chunk. Everything else is one program per chunk, all chunks in parallel.
* Only the inputs are saved for the backward pass, which recomputes the running decays and the states.
* With a decay per channel, two tokens of a chunk are connected as on a CPU, through the boundary between the halves of
  the smallest block that contains both: there every token is a key (left half) or a query (right half), which takes one
  exponential, at most 1, and one matrix product per level. The same levels give all gradients; that of the log decays
  is a product with a constant 0/1 matrix, which only adds terms of the same sign.
* In half precision few levels are needed: blocks in which no half decays by more than 2^-40 are connected through their
  middle in one product, as (q · 2^x)(k · 2^-x) with |x| <= 40. `cumulate` finds the length of such blocks for every
  chunk: usually the whole chunk, and a few tokens after strong decays.
* One decay per token is applied to the scores. Heads that share queries and keys are summed inside a program.
* No atomics: results are deterministic.

Letters: B batch, T time, H heads, G heads of queries and keys, R = H/G, K key width, V value width, N chunks of C.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from plait.ops.gla_backward_triton import backward_channels, backward_keys, backward_values, backward_written
from plait.ops.gla_forward_triton import DEPTH_TILE, cumulate, outputs, states, states_and_gradients
from plait.ops.stacking import strides_of


class Tile(NamedTuple):
    """A kernel's tile of key and of value channels, its warps, and the tiles in flight."""

    keys: int
    values: int
    warps: int
    stages: int
    registers: int | None = None  # a limit lets more programs share a multiprocessor


class Tuning(NamedTuple):
    chunk: int
    states: Tile
    outputs: Tile
    values: Tile  # gradients of values; with one decay per token, also of decays
    keys: Tile  # gradients of queries and keys; with a decay per channel, also of decays
    parts: int = 4  # parts of the heads that share queries and keys, one program each
    forward_chunk: int = 0  # another chunk length for the forward pass, which shares nothing with the backward


def tuning(K: int, V: int, dtype: torch.dtype, vector: bool) -> Tuning:
    """For an H200 in bf16: some were measured (benchmarks/results), the others fit three programs into a
    multiprocessor with the fewest spilled registers."""
    if dtype == torch.float32:
        small = Tile(32, 32, 4, 1)
        return Tuning(32, small, small, small, small)
    if vector:
        tile = Tile(32, 64, 4, 1, 168)
        return Tuning(64, Tile(32, 64, 4, 1, 160), tile, tile, tile)
    return Tuning(64, Tile(64, 64, 4, 1, 168), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 8, 2))


class Call(NamedTuple):
    """Sizes and constants that all kernels of one call share."""

    B: int
    T: int
    H: int
    R: int
    K: int
    V: int
    N: int
    vector: bool
    before: bool
    exact: bool
    tuned: Tuning

    @property
    def levels(self) -> int:
        return self.tuned.chunk.bit_length() - 1

    @property
    def limit(self) -> float:
        """The largest decay of half a block, as a power of two, for which it is connected through its middle. Both
        factors have enough range for it; if the state is read before it is written, neighbours do not contribute to any
        decay's gradient and cancel."""
        return 10.0 if self.before else 40.0

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        return self.T, self.H, self.R, self.K, self.V, self.N

    def state_grid(self, options: dict[str, Any], *, both: bool = False) -> tuple[int, int, int]:
        return (1 + both) * self.B * self.H, triton.cdiv(self.K, options["BK"]), triton.cdiv(self.V, options["BV"])

    def launch(self, tile: Tile, *, vector: bool = True, before: bool = True, levels: bool = False) -> dict[str, Any]:
        chunk = self.tuned.chunk
        keys, values = (_block(size, most) for size, most in ((self.K, tile.keys), (self.V, tile.values)))
        options: dict[str, Any] = {"C": chunk, "BK": keys, "BV": values, "EXACT": self.exact}
        # fp32 inputs keep fp32 accuracy: three tf32 products preserve all digits.
        options["PRECISION"] = "tf32x3" if self.exact else "tf32"
        options |= {"num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers}
        options |= {"VECTOR": self.vector} if vector else {}
        options |= {"BEFORE": self.before} if before else {}
        return options | ({"LEVELS": self.levels} if levels else {})


def _block(size: int, most: int) -> int:
    return min(most, max(16, int(triton.next_power_of_2(size))))


def call_of(
    q: Tensor, v: Tensor, g: Tensor, own: Tensor | None, tuned: Tuning | None, exact: bool | None, *,
    forward: bool = False,
) -> Call:  # fmt: skip
    (B, T, G, K), (H, V) = q.shape, v.shape[2:]
    vector = g.dim() == 4
    tuned = tuned or tuning(K, V, v.dtype, vector)
    longest = (forward and tuned.forward_chunk) or tuned.chunk
    chunk = min(longest, max(16, triton.next_power_of_2(T)))
    exact = v.dtype == torch.float32 if exact is None else exact
    N = triton.cdiv(T, chunk)
    return Call(B, T, H, H // G, K, V, N, vector, own is not None, exact, tuned._replace(chunk=chunk))


def gla_forward(
    q_BTGK: Tensor, k_BTGK: Tensor, v_BTHV: Tensor, g: Tensor, own_BTH: Tensor | None, state: Tensor | None,
    scale: float, tuned: Tuning | None = None, exact: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o_BTHV and the state after the last token, BHKV in fp32."""
    call = call_of(q_BTGK, v_BTHV, g, own_BTH, tuned, exact, forward=True)
    b, whole, depth = _cumulate(call, g)
    options = call.launch(call.tuned.states)
    (before,), (final,) = _border_states(call, v_BTHV, 1)
    states[call.state_grid(options)](
        k_BTGK, v_BTHV, b, whole, state, before, final, *call.sizes, *strides_of(k_BTGK, v_BTHV),
        FIRST=state is not None, **options,
    )  # fmt: skip
    o = v_BTHV.new_empty(v_BTHV.shape)
    outputs[(call.N, call.B * call.H)](
        q_BTGK, k_BTGK, v_BTHV, b, whole, depth, own_BTH, before, o, *call.sizes, *strides_of(q_BTGK, k_BTGK, v_BTHV),
        scale, call.limit, **call.launch(call.tuned.outputs, levels=True),
    )  # fmt: skip
    return o, final


def gla_backward(
    do_BTHV: Tensor, dstate: Tensor | None, q_BTGK: Tensor, k_BTGK: Tensor, v_BTHV: Tensor, g: Tensor,
    own_BTH: Tensor | None, state: Tensor | None, scale: float, tuned: Tuning | None = None, exact: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, g, own (empty without) and the state. do is contiguous."""
    call = call_of(q_BTGK, v_BTHV, g, own_BTH, tuned, exact)
    b, whole, depth = _cumulate(call, g)
    inputs, strides = (do_BTHV, q_BTGK, k_BTGK, v_BTHV, b, whole), strides_of(q_BTGK, k_BTGK, v_BTHV)
    grid, tuned = (call.N, call.B * call.H), call.tuned
    options = call.launch(tuned.states)
    (before, after), (final, dfirst) = _border_states(call, v_BTHV, 2)
    states_and_gradients[call.state_grid(options, both=True)](
        *inputs, state, dstate, before, after, final, dfirst, *call.sizes, *strides, scale, FIRST=state is not None,
        LAST=dstate is not None, **options,
    )  # fmt: skip
    dv, dg = v_BTHV.new_empty(v_BTHV.shape), g.new_empty(g.shape)
    down = b.new_empty(own_BTH.shape if own_BTH is not None else (call.B, 0))
    if call.vector:
        dq, dk = (x.new_empty(x.shape) for x in (q_BTGK, k_BTGK))
        T, H, _, K, V, N = call.sizes
        options = call.launch(tuned.keys, vector=False, levels=True)
        backward_channels[(N, triton.cdiv(K, options["BK"]), call.B * H)](
            *inputs, depth, before, after, dq, dk, dg, down, T, H, K, V, N, *strides, scale, call.limit, **options
        )
        backward_written[grid](
            do_BTHV, q_BTGK, k_BTGK, b, whole, depth, own_BTH, after, dv, T, H, K, V, N, *strides[:6], scale,
            call.limit, **call.launch(tuned.values, vector=False, levels=True),
        )  # fmt: skip
        return dq, dk, dv, dg, down, dfirst
    backward_values[grid](
        *inputs, before, after, dv, dg, *call.sizes, *strides, scale,
        **call.launch(tuned.values, vector=False, before=False),
    )  # fmt: skip
    parts = min(call.R, tuned.parts)
    options = call.launch(tuned.keys, vector=False, before=False)
    dtype = v_BTHV.dtype if parts == 1 else torch.float32
    dq, dk = (v_BTHV.new_empty(parts, *q_BTGK.shape, dtype=dtype) for _ in range(2))
    backward_keys[(call.N, triton.cdiv(call.K, options["BK"]), call.B * call.H // call.R * parts)](
        *inputs, before, after, dq, dk, *call.sizes, parts, *strides, scale, **options,
    )  # fmt: skip
    dq, dk = (x[0] if parts == 1 else x.sum(0).to(v_BTHV.dtype) for x in (dq, dk))
    return dq, dk, dv, dg, down, dfirst


def _cumulate(call: Call, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The running sums as BTHK (or BTH): the rest and, where exact, the whole numbers; and the depths of chunks."""
    b = g.new_empty(g.shape, dtype=torch.float32)
    whole = torch.empty_like(b) if call.exact else b
    K, stride = (call.K, g.stride(3)) if call.vector else (1, 0)
    block = DEPTH_TILE.value if call.vector else 1
    depth = g.new_empty(call.B * call.H, call.N, triton.cdiv(K, block), dtype=torch.int32)
    cumulate[(call.N, call.B * call.H, triton.cdiv(K, block))](
        g, b, whole, depth, call.T, call.H, K, *g.stride()[:3], stride, call.limit, C=call.tuned.chunk,
        LEVELS=call.levels, BK=block, EXACT=call.exact, VECTOR=call.vector,
        num_warps=4 if call.vector else 1,
    )  # fmt: skip
    return b, whole, depth


def _border_states(call: Call, v_BTHV: Tensor, many: int) -> tuple[list[Tensor], list[Tensor]]:
    """Buffers for the states at every chunk boundary in the values' dtype, BHNKV, and for the final ones, BHKV in
    fp32."""
    at_borders = [v_BTHV.new_empty(call.B, call.H, call.N, call.K, call.V) for _ in range(many)]
    beyond = [v_BTHV.new_empty(call.B, call.H, call.K, call.V, dtype=torch.float32) for _ in range(many)]
    return at_borders, beyond
