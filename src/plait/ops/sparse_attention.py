"""Softmax attention to a few keys, selected for each query: tokens by a score, or blocks of neighbouring tokens.

    o_t = Σ_{s ∈ S_t} softmax_s(q_t·k_s / √P) v_s,   S_t ⊆ {s ≤ t}

A whole sequence is computed a few rows at a time as products masked by S; one token gathers its S and reads nothing
else. Ties are broken in favour of the newest key, so that the selection does not depend on the number of keys: scores
after a ReLU are often exactly equal.

Letters: B batch, T queries, N keys, H query heads, G key-value heads, Q query heads per key-value head, P head width,
C blocks, S keys attended to, R rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

ROWS = 256

#: For queries [first, last) of T and the keys [0, n): which keys each sees, (B, H or 1, R, n).
Mask = Callable[[int, int, int], Tensor]


def best(scores: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest along the last dimension; among equals the last."""
    size = scores.shape[-1]
    order = scores.flip(-1).argsort(dim=-1, descending=True, stable=True)
    return size - 1 - order[..., :count]


def best_mask(scores: Tensor, count: int) -> Tensor:
    """True at those indices."""
    if count >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best(scores, count), torch.ones_like(scores) > 0)


def row_blocks(queries: int, keys: int) -> Iterator[tuple[int, int, int]]:
    """(first, last, keys that the last of these rows sees): the queries are the last of the keys."""
    for first in range(0, queries, ROWS):
        last = min(first + ROWS, queries)
        yield first, last, keys - queries + last


def causal_mask(first: int, last: int, visible: int, device: torch.device) -> Tensor:
    """(R, n): the row `last - 1` sees all of the `visible` keys."""
    at_R1 = visible - last + torch.arange(first, last, device=device)[:, None]
    return torch.arange(visible, device=device) <= at_R1


def sparse_attention(q_BTHP: Tensor, k_BNGP: Tensor, v_BNGP: Tensor, mask: Mask, scale: float) -> Tensor:
    """Every query attends to the keys that `mask` gives it, at least one; the queries are the last of the keys."""
    rows = []
    for first, last, visible in row_blocks(q_BTHP.shape[1], k_BNGP.shape[1]):
        weights = sparse_weights(q_BTHP[:, first:last], k_BNGP[:, :visible], mask(first, last, visible), scale)
        rows.append(_weighted(weights, v_BNGP[:, :visible]))
    return torch.cat(rows, dim=1)


def sparse_weights(q_BRHP: Tensor, k_BNGP: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The softmax of one block of rows, (B, G, Q, R, N)."""
    G = k_BNGP.shape[2]
    q_BGQRP = q_BRHP.unflatten(2, (G, -1)).permute(0, 2, 3, 1, 4)
    scores = scale * q_BGQRP @ k_BNGP.permute(0, 2, 3, 1)[:, :, None]
    seen = mask.unflatten(1, (G, -1)) if mask.shape[1] > 1 else mask[:, :, None]
    weights: Tensor = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights


def _weighted(weights_BGQRN: Tensor, v_BNGP: Tensor) -> Tensor:
    out: Tensor = weights_BGQRN @ v_BNGP.permute(0, 2, 1, 3)[:, :, None]
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def gathered_attention(
    q_BHP: Tensor, k_BNGP: Tensor, v_BNGP: Tensor, chosen_BHS: Tensor, valid_BHS: Tensor, scale: float
) -> Tensor:
    """One query per row, each head with the keys `chosen` for it."""
    G, P = k_BNGP.shape[2:]
    queries_per_group = q_BHP.shape[1] // G
    at_BHSP = chosen_BHS.clamp(min=0, max=k_BNGP.shape[1] - 1)[..., None].expand(-1, -1, -1, P)

    def of_heads(x_BNGP: Tensor) -> Tensor:
        return x_BNGP.transpose(1, 2).repeat_interleave(queries_per_group, dim=1).gather(2, at_BHSP)

    scores_BHS = scale * (of_heads(k_BNGP) @ q_BHP[..., None])[..., 0]
    weights_BHS = scores_BHS.masked_fill(~valid_BHS, -torch.inf).softmax(-1)
    out_BHP: Tensor = (weights_BHS[..., None, :] @ of_heads(v_BNGP))[..., 0, :]
    return out_BHP


def block_means(x_BNGP: Tensor, block: int) -> Tensor:
    """The mean of every complete block, (B, C, G, P)."""
    whole = x_BNGP.shape[1] // block
    means: Tensor = x_BNGP[:, : whole * block].unflatten(1, (whole, block)).mean(2)
    return means


def past_blocks(first: int, last: int, visible: int, blocks: int, block: int, device: torch.device) -> Tensor:
    """(R, C): the blocks that end before a query's own begins."""
    at_R1 = visible - last + torch.arange(first, last, device=device)[:, None]
    return torch.arange(blocks, device=device) < at_R1 // block


def block_scores(q_BRHP: Tensor, means_BCGP: Tensor) -> Tensor:
    """q·mean of every head and block, (B, H, R, C)."""
    G = means_BCGP.shape[2]
    scores: Tensor = q_BRHP.unflatten(2, (G, -1)).permute(0, 2, 3, 1, 4) @ means_BCGP.permute(0, 2, 3, 1)[:, :, None]
    return scores.flatten(1, 2)


def tokens_of_blocks(chosen: Tensor, first: int, last: int, visible: int, block: int) -> Tensor:
    """(…, R, C) chosen blocks as (…, R, n) tokens: those of the blocks, and of a query's own block up to itself."""
    device = chosen.device
    keys = torch.arange(visible, device=device)
    at_R1 = visible - last + torch.arange(first, last, device=device)[:, None]
    own = keys // block == at_R1 // block
    more = -(-visible // block) - chosen.shape[-1]  # the last block may not be complete
    padded = torch.cat((chosen, chosen.new_zeros(*chosen.shape[:-1], more)), dim=-1) if more > 0 else chosen
    spread = padded.repeat_interleave(block, dim=-1)[..., :visible]
    return (spread | own) & (keys <= at_R1)
