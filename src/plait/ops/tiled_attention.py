"""Attention in score tiles that fit a core's cache, recomputed in the backward pass: memory linear in the sequence.

The bias c_i − c_j of gates and slopes is a float64 difference per pair (exact however large |c| is), only keys that are
within the window and not forgotten are visited, and matrix products have the sequence as columns: with eight columns,
as with narrow heads, BLAS is four times slower.

* memory-linear attention by recomputing tiles: Dao et al. 2022, FlashAttention, arXiv 2205.14135
* skipping keys that are forgotten anyway: Lin et al. 2025, Adaptive Computation Pruning, arXiv 2504.06949

Letters: B batch, M queries, N keys (N >= M: query i sits at position N−M+i), H query heads, G key/value heads,
R = H/G query heads that share one key head, D head width; inside a tile W query rows, K keys, Z = batch · heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.paths import in_graph
from plait.ops.stacking import fold_replicas, keep_signature, unfold_replicas

# Numbers per tile: 2 MiB of fp32 fits a CPU core's cache; a GPU prefers few large launches.
TILE_NUMBERS = {"cpu": 1 << 19, "cuda": 1 << 26}
SHARP = 0.9  # attention of a query to its own key above which rounding would be visible


def tiled_attention(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    c_BNH: Tensor | None,
    pad_B: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
) -> Tensor:
    """softmax(scale · q k + c_i − c_j) v, with the gates' cumulative sum c in float64. Returns o_BMHD."""
    o_BMHD: Tensor = _TiledAttention.apply(q_BMHD, k_BNGD, v_BNGD, c_BNH, pad_B, scale, causal, window)
    return o_BMHD


def mask_value(dtype: torch.dtype) -> float:
    """Low enough that exp gives exactly 0, even after adding a score."""
    return torch.finfo(dtype).min / 2


class _Tile(NamedTuple):
    """One block of query rows against the keys it may see, for some sequences of the batch."""

    batch: slice
    rows: slice
    keys: slice
    mask_WK: Tensor | None  # 0 or `mask_value`; None when every row sees every key


def _tiles(
    q_BMHD: Tensor, k_BNGD: Tensor, c_BNH: Tensor | None, scale: float, causal: bool, window: int
) -> Iterator[_Tile]:
    B, M, H, D = q_BMHD.shape
    N, device = k_BNGD.shape[1], q_BMHD.device
    forgotten_at = _forgotten_at(q_BMHD, k_BNGD, c_BNH, scale) if causal else math.inf
    width = 64 if N <= 256 else 128
    for row in range(0, M, width):
        rows = slice(row, min(row + width, M))
        first, last = N - M + rows.start, N - M + rows.stop - 1
        begin = max(0, first - window + 1) if window else 0
        end = last + 1 if causal else min(N, last + window) if window else N
        mask_WK = None
        if (causal and first != last) or window:
            position_N = torch.arange(N, device=device)
            distance_WK = position_N[first : last + 1, None] - position_N[begin:end]
            hidden_WK = (distance_WK < 0) & causal
            if window:
                hidden_WK |= distance_WK.abs() >= window
            mask_WK = torch.zeros_like(distance_WK, dtype=q_BMHD.dtype)
            mask_WK.masked_fill_(hidden_WK, mask_value(q_BMHD.dtype))
        numbers = H * (end - begin) * max(last + 1 - first, D)  # scores, or keys if there are few queries
        step = max(1, TILE_NUMBERS.get(device.type, TILE_NUMBERS["cuda"]) // numbers)
        for b in range(0, B, step):
            batch, skip = slice(b, min(b + step, B)), 0
            if c_BNH is not None and forgotten_at < math.inf:
                lead_bKH = c_BNH[batch, begin:first] - c_BNH[batch, first, None]
                skip = int((lead_bKH > forgotten_at).all(2).all(0).sum())  # c decreases with time: a prefix
            yield _Tile(batch, rows, slice(begin + skip, end), None if mask_WK is None else mask_WK[:, skip:])


def _forgotten_at(q_BMHD: Tensor, k_BNGD: Tensor, c_BNH: Tensor | None, scale: float) -> float:
    """The fall of c beyond which a key has no weight at this precision (∞: never skip).

    No score exceeds U = scale · max‖q‖ · max‖k‖ in magnitude and every row sees itself without a bias, so N keys that
    are δ = 2U + ln N + margin lower have less than exp(−margin) of a row's probability. This requires waiting for the
    result, which would slow down a GPU, and gates that never exceed 1.
    """
    if c_BNH is None or q_BMHD.is_cuda or c_BNH.shape[1] <= 256 or bool((c_BNH.diff(dim=1) > 0).any()):
        return math.inf
    bound = abs(scale) * float(q_BMHD.norm(dim=-1).max() * k_BNGD.norm(dim=-1).max())
    return 2 * bound + math.log(k_BNGD.shape[1]) - math.log(torch.finfo(q_BMHD.dtype).eps) + 4


def _stack(x_BMHD: Tensor, tile: _Tile, groups: int) -> Tensor:
    """A tile's query rows, heads first and the R heads of a group below one another: (batch · G, R · W, D)."""
    x_bWHD = x_BMHD[tile.batch, tile.rows]
    b, W, H, D = x_bWHD.shape
    return x_bWHD.reshape(b, W, groups, H // groups, D).permute(0, 2, 3, 1, 4).reshape(b * groups, -1, D)


def _unstack(x_ZDw: Tensor, groups: int, width: int) -> Tensor:
    """Back from the sequence-last (batch · G, D, R · W) to (batch, W, H, D)."""
    x_bGDRW: Tensor = x_ZDw.unflatten(2, (-1, width)).unflatten(0, (-1, groups))
    return x_bGDRW.permute(0, 4, 1, 3, 2).flatten(2, 3)


def _sequence_last(x_BNGD: Tensor, tile: _Tile) -> Tensor:
    """A tile's keys or values as (batch · G, D, K): the narrow head becomes the rows, the sequence the columns."""
    x_ZKD: Tensor = x_BNGD[tile.batch, tile.keys].transpose(1, 2).flatten(0, 1)
    return x_ZKD.transpose(1, 2)  # a view: BLAS reads strided matrices without a copy


def _sequence_first(x_ZDK: Tensor, groups: int) -> Tensor:
    x_bGDK: Tensor = x_ZDK.unflatten(0, (-1, groups))
    return x_bGDK.permute(0, 3, 1, 2)


def _probabilities(
    tile: _Tile, q_ZwD: Tensor, k_ZDK: Tensor, heads: int, c_BNH: Tensor | None, pad_B: Tensor | None, start: int
) -> Tensor:
    """p_ZwK = softmax(q k + bias) of one tile; q comes scaled, Z = batch · G, w = R · W; `start` is N − M."""
    W, K = tile.rows.stop - tile.rows.start, k_ZDK.shape[2]
    bias = tile.mask_WK
    if c_BNH is not None:
        c_bHN = c_BNH[tile.batch].transpose(1, 2)
        c_bHW = c_bHN[:, :, start + tile.rows.start : start + tile.rows.stop]
        bias = q_ZwD.new_empty(*c_bHW.shape, K)
        torch.sub(c_bHW[..., None], c_bHN[:, :, None, tile.keys], out=bias)  # in float64, rounded once
        if tile.mask_WK is not None:
            bias += tile.mask_WK
        bias = bias.view(*q_ZwD.shape[:2], K)
    elif bias is not None:
        bias = bias.repeat(q_ZwD.shape[1] // W, 1)
    p_ZwK = torch.bmm(q_ZwD, k_ZDK) if bias is None else torch.baddbmm(bias, q_ZwD, k_ZDK)
    if pad_B is None:
        return torch.softmax(p_ZwK, -1, out=p_ZwK)
    position_K = torch.arange(tile.keys.start, tile.keys.stop, device=pad_B.device)
    hidden_b1WK = position_K < pad_B[tile.batch, None, None, None]
    if tile.mask_WK is not None:
        hidden_b1WK = hidden_b1WK | (tile.mask_WK < 0)
    p_bHWK = p_ZwK.view(-1, heads, W, K)
    p_bHWK.masked_fill_(hidden_b1WK, mask_value(p_bHWK.dtype))
    torch.softmax(p_bHWK, -1, out=p_bHWK)
    p_bHWK.masked_fill_(hidden_b1WK, 0.0)  # a row that sees nothing is uniform after the softmax
    return p_ZwK


def _tiled(
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    c_BNH: Tensor | None,
    pad_B: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
) -> Tensor:
    M, H = q_BMHD.shape[1:3]
    N, G = k_BNGD.shape[1:3]
    o_BMHD = torch.empty_like(q_BMHD, memory_format=torch.contiguous_format)
    for tile in _tiles(q_BMHD, k_BNGD, c_BNH, scale, causal, window):
        q_ZwD = _stack(q_BMHD, tile, G) * scale
        k_ZDK, v_ZDK = _sequence_last(k_BNGD, tile), _sequence_last(v_BNGD, tile)
        p_ZwK = _probabilities(tile, q_ZwD, k_ZDK, H, c_BNH, pad_B, N - M)
        o_ZDw = torch.bmm(v_ZDK, p_ZwK.transpose(1, 2))
        o_BMHD[tile.batch, tile.rows] = _unstack(o_ZDw, G, tile.rows.stop - tile.rows.start)
    return o_BMHD


def _tiled_backward(
    do_BMHD: Tensor,
    o_BMHD: Tensor,
    q_BMHD: Tensor,
    k_BNGD: Tensor,
    v_BNGD: Tensor,
    c_BNH: Tensor | None,
    pad_B: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ds = p ∘ (dp − δ), δ_i = do_i·o_i; dc_i = Σ_j ds_ij − Σ_m ds_mi, over the scores where i is query and key."""
    M, H = q_BMHD.shape[1:3]
    N, G = k_BNGD.shape[1:3]
    dq_BMHD, dk_BNGD, dv_BNGD, dc_BNH = _empty_gradients(q_BMHD, k_BNGD, c_BNH)
    for gradient in (dk_BNGD, dv_BNGD, dc_BNH):
        gradient.zero_()
    delta_BMH1 = (do_BMHD * o_BMHD).sum(-1, keepdim=True)
    for tile in _tiles(q_BMHD, k_BNGD, c_BNH, scale, causal, window):
        W = tile.rows.stop - tile.rows.start
        q_ZwD = _stack(q_BMHD, tile, G) * scale
        k_ZDK, v_ZDK = _sequence_last(k_BNGD, tile), _sequence_last(v_BNGD, tile)
        p_ZwK = _probabilities(tile, q_ZwD, k_ZDK, H, c_BNH, pad_B, N - M)
        do_ZwD = _stack(do_BMHD, tile, G)
        dp_ZwK, delta_Zw1 = torch.bmm(do_ZwD, v_ZDK), _stack(delta_BMH1, tile, G)
        if c_BNH is not None and causal and not p_ZwK.is_cuda:
            delta_Zw1 = _shifted(p_ZwK, dp_ZwK, delta_Zw1, W, N - M + tile.rows.start - tile.keys.start)
        ds_ZwK = dp_ZwK.sub_(delta_Zw1).mul_(p_ZwK)
        dq_BMHD[tile.batch, tile.rows] = _unstack(torch.bmm(k_ZDK, ds_ZwK.transpose(1, 2)), G, W)
        dk_BNGD[tile.batch, tile.keys] += _sequence_first(torch.bmm(q_ZwD.transpose(1, 2), ds_ZwK), G)
        dv_BNGD[tile.batch, tile.keys] += _sequence_first(torch.bmm(do_ZwD.transpose(1, 2), p_ZwK), G)
        if c_BNH is not None:
            ds_bHWK = ds_ZwK.view(-1, H, W, ds_ZwK.shape[2])
            dc_BNH[tile.batch, N - M + tile.rows.start : N - M + tile.rows.stop] += ds_bHWK.sum(3).transpose(1, 2)
            dc_BNH[tile.batch, tile.keys] -= ds_bHWK.sum(2).transpose(1, 2)
    return dq_BMHD.mul_(scale), dk_BNGD, dv_BNGD, dc_BNH


def _shifted(p_ZwK: Tensor, dp_ZwK: Tensor, delta_Zw1: Tensor, width: int, first: int) -> Tensor:
    """If queries see little but their own key (behind closed gates), subtract the own key's dp from dp, in place, and
    from δ: otherwise dp_ii − δ_i would be a difference of two nearly equal numbers. `first` is row 0's own key."""
    p_own, dp_own = (x.unflatten(1, (-1, width)).diagonal(first, 2, 3).flatten(1) for x in (p_ZwK, dp_ZwK))
    if float(p_own.mean()) < SHARP:
        return delta_Zw1
    dp_ZwK -= dp_own[..., None].clone()
    return (p_ZwK * dp_ZwK).sum(-1, keepdim=True)


def _empty_gradients(q_BMHD: Tensor, k_BNGD: Tensor, c_BNH: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uninitialised dq, dk, dv, dc; without a gate dc has no elements (an operator cannot return None)."""
    dc_BNH = q_BMHD.new_empty(len(q_BMHD), 0, 0) if c_BNH is None else c_BNH.new_empty(c_BNH.shape)
    return q_BMHD.new_empty(q_BMHD.shape), k_BNGD.new_empty(k_BNGD.shape), k_BNGD.new_empty(k_BNGD.shape), dc_BNH


class _TiledAttention(torch.autograd.Function):
    """Joins the two operators, which keep the loop out of compiled graphs. A Function, because torch.func cannot
    differentiate a custom operator by its autograd formula; its vmap rule is that of the operators (end of the
    file)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q_BMHD: Tensor,
        k_BNGD: Tensor,
        v_BNGD: Tensor,
        c_BNH: Tensor | None,
        pad_B: Tensor | None,
        scale: float,
        causal: bool,
        window: int,
    ) -> Tensor:
        tiled = _tiled if _eager(q_BMHD) else _tiled_operator
        o_BMHD: Tensor = tiled(q_BMHD, k_BNGD, v_BNGD, c_BNH, pad_B, scale, causal, window)
        return o_BMHD

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q_BMHD, k_BNGD, v_BNGD, c_BNH, pad_B, scale, causal, window = inputs
        ctx.save_for_backward(output, q_BMHD, k_BNGD, v_BNGD, c_BNH, pad_B)
        ctx.options = scale, causal, window

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BMHD: Tensor) -> tuple[Tensor | None, ...]:
        backward = _tiled_backward if _eager(do_BMHD) else _tiled_backward_operator
        dq, dk, dv, dc = backward(do_BMHD, *ctx.saved_tensors, *ctx.options)
        return dq, dk, dv, dc if ctx.needs_input_grad[3] else None, None, None, None, None


keep_signature(_TiledAttention)


def _eager(x: Tensor) -> bool:
    """Whether `x` is a plain tensor outside any tracing: then no custom operator is needed, whose first call imports
    torch's compiler, which takes twice as long as importing torch itself."""
    wrapped = in_graph() or type(x) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(x)
    return not wrapped and not torch._C._len_torch_dispatch_stack()


def _tiled_vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    folded = list(fold_replicas(args, in_dims, info.batch_size))
    tiled = _tiled if _eager(folded[0]) else _tiled_operator
    return unfold_replicas(tiled(*folded), info.batch_size), 0


def _tiled_backward_vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], Any]:
    folded = list(fold_replicas(args, in_dims, info.batch_size))
    backward = _tiled_backward if _eager(folded[0]) else _tiled_backward_operator
    return tuple(unfold_replicas(x, info.batch_size) for x in backward(*folded)), (0, 0, 0, 0)


_tiled_operator = torch.library.custom_op("plait::tiled_attention", _tiled, mutates_args=())
_tiled_operator.register_fake(lambda q_BMHD, *_: q_BMHD.new_empty(q_BMHD.shape))
_tiled_operator.register_vmap(_tiled_vmap)
_tiled_backward_operator = torch.library.custom_op("plait::tiled_attention_backward", _tiled_backward, mutates_args=())
_tiled_backward_operator.register_fake(
    lambda do, o, q_BMHD, k_BNGD, v, c_BNH, *_: _empty_gradients(q_BMHD, k_BNGD, c_BNH)
)
_tiled_backward_operator.register_vmap(_tiled_backward_vmap)
