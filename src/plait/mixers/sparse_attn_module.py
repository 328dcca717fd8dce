"""Sparse attention: the keys that a query attends to are selected beforehand.

`select=index`, DeepSeek Sparse Attention (DeepSeek-AI 2025, arXiv:2512.02556): a small index scores all earlier tokens,

    I_{t,s} = Σ_j w_{t,j} ReLU(q^I_{t,j}·k^I_s),   S_t = the `top` tokens s ≤ t with the largest I_{t,s}

The selection has no gradient. Training adds `index_loss` times KL(p_t ‖ softmax_{s ∈ S_t} I_{t,s}), where p_t are the
heads' attention weights on S_t, summed and normalised; the index reads a detached input.

`select=moba` (Lu et al. 2025, arXiv:2502.13189): keys form blocks. Every head attends to its query's own block, up to
itself, and to the blocks before with the largest q_t·mean(K_block), `top` tokens in all.

`select=nsa`, Native Sparse Attention (Yuan et al. 2025, arXiv:2502.11089): o = Σ σ(w_c·x) o_c over three kinds, with a
gate per head each: the means of the blocks before, as keys and values; `top` tokens in the blocks with the largest
weight there (heads that share keys choose together) and the query's own; a window. The paper's compressed blocks
overlap and are maps of their tokens; means of adjacent blocks need no parameters.

Letters: B batch, T new tokens, N keys, D model width, H query heads, G key-value heads, P head width, J heads of the
index, E their width, C blocks, R rows at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import CachedMixer, Mixer, State
from plait.mixers.rotary import Rotary
from plait.mixers.sparse_attn import SparseAttnOptions
from plait.ops.attention import attention
from plait.ops.sparse_attention import (
    best,
    best_mask,
    block_means,
    block_scores,
    causal_mask,
    gathered_attention,
    past_blocks,
    row_blocks,
    sparse_attention,
    sparse_weights,
    tokens_of_blocks,
)


class Index(nn.Module):
    """The scores I of DSA."""

    def __init__(self, d: int, options: SparseAttnOptions) -> None:
        super().__init__()
        self.heads, self.width = options.index_heads, options.index_dim
        self.splits = [self.heads * self.width, self.width, self.heads]
        self.input = nn.Linear(d, sum(self.splits), bias=False)
        self.rotary = Rotary(self.width, options.theta) if options.pos == "rope" else None

    def forward(self, x_BTD: Tensor, positions_BT: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, T, J, E), the key (B, T, E) and the weights (B, T, J) of every token."""
        q, k, w_BTJ = self.input(x_BTD.detach()).split(self.splits, dim=-1)
        q_BTJE, k_BTE = q.unflatten(-1, (self.heads, self.width)), k
        if self.rotary is not None:
            q_BTJE = self.rotary(q_BTJE.contiguous(), positions_BT)
            k_BTE = self.rotary(k_BTE.contiguous()[:, :, None], positions_BT)[:, :, 0]
        return q_BTJE, k_BTE, w_BTJ * (self.heads * self.width) ** -0.5

    @staticmethod
    def scores(q_BRJE: Tensor, k_BNE: Tensor, w_BRJ: Tensor) -> Tensor:
        """I, (B, R, N)."""
        products_BRJN = (q_BRJE.flatten(1, 2) @ k_BNE.mT).unflatten(1, q_BRJE.shape[1:3]).relu()
        scores_BRN: Tensor = (w_BRJ[..., None] * products_BRJN).sum(2)
        return scores_BRN


class SparseAttention(CachedMixer):
    def __init__(self, d: int, options: SparseAttnOptions) -> None:
        super().__init__(d, options)
        self.heads, self.groups, self.width = options.heads, int(options.groups()), int(options.head_width(d))
        self.select, self.top, self.block, self.window = options.select, options.top, options.block, options.window
        self.index_loss, self.scale = options.index_loss, self.width**-0.5
        self.rotary = Rotary(self.width, options.theta) if options.pos == "rope" else None
        inner = self.heads * self.width
        self.qkv = nn.Linear(d, inner + 2 * self.groups * self.width, bias=False)
        self.index = Index(d, options) if self.select == "index" else None
        self.gates = nn.Linear(d, 3 * self.heads, bias=False) if self.select == "nsa" else None
        self.output = nn.Linear(inner, d, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.extend(x_BTD, {})[0]

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        y_BTD = self(x_BTD)
        if self.index is None or not self.index_loss:
            return y_BTD, None
        return y_BTD, self.index_loss * self._divergence(x_BTD.detach())

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        state = {name: self.zeros(batch, 0, self.groups, self.width) for name in ("k", "v", *self._means)}
        if self.index is not None:
            state["index"] = self.zeros(batch, 0, self.index.width)
        state["pos"] = self.zeros(batch, dtype=torch.long)
        return state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        positions_BT = None
        if state:
            positions_BT = state["pos"][:, None] + torch.arange(x_BTD.shape[1], device=x_BTD.device)
        q, k, v = self._project(x_BTD, positions_BT)
        new = {"k": k, "v": v}
        indexed = self.index(x_BTD, positions_BT) if self.index is not None else None
        if indexed is not None:
            new["index"] = indexed[1]
        if state:
            new = {name: torch.cat((state[name], value), dim=1) for name, value in new.items()}
            new["pos"] = state["pos"] + x_BTD.shape[1]
        for name in self._means:
            new[name] = self._extended_means(state.get(name), new[name[0]])
        if indexed is not None:
            mixed = self._by_index(q, new, indexed[0], indexed[2])
        elif self.select == "moba":
            mixed = self._to_blocks(q, new, block_scores(q, new["k_mean"]))
        else:
            mixed = self._by_three(x_BTD, q, new)
        y_BTD: Tensor = self.output(mixed.flatten(-2))
        return y_BTD, new

    def crop(self, state: State, tokens: int) -> State:
        held = state["k"].shape[1]
        if tokens > held:
            raise UserError(f"cannot take back {tokens} tokens: {self.options.name} has seen {held}.")
        left = held - tokens
        kept = {name: value[:, : left // self.block if name in self._means else left] for name, value in state.items()
                if name != "pos"}  # fmt: skip
        return {**kept, "pos": state["pos"] - tokens}

    def merge(self, states: Sequence[State]) -> State:
        if len({state["k"].shape[1] for state in states}) > 1:
            raise UserError(
                f"{self.options.name}: rows of different lengths cannot be merged, since blocks would shift."
            )
        return Mixer.merge(self, states)  # equal lengths: nothing to pad

    @property
    def _means(self) -> tuple[str, ...]:
        """Which block means the state contains."""
        return {"index": (), "moba": ("k_mean",), "nsa": ("k_mean", "v_mean")}[self.select]

    def _by_index(self, q: Tensor, state: State, q_BTJE: Tensor, w_BTJ: Tensor) -> Tensor:
        k_BNE = state["index"]
        if q.shape[1] == 1:
            chosen_B1S = best(Index.scores(q_BTJE, k_BNE, w_BTJ), self.top)
            chosen_BHS = chosen_B1S.expand(-1, self.heads, -1)
            valid_BHS = torch.ones_like(chosen_BHS, dtype=torch.bool)
            return gathered_attention(q[:, 0], state["k"], state["v"], chosen_BHS, valid_BHS, self.scale)[:, None]

        def mask(first: int, last: int, visible: int) -> Tensor:
            scores = Index.scores(q_BTJE[:, first:last], k_BNE[:, :visible], w_BTJ[:, first:last])
            return self._chosen(scores, first, last, visible)[:, None]

        return sparse_attention(q, state["k"], state["v"], mask, self.scale)

    def _chosen(self, scores_BRN: Tensor, first: int, last: int, visible: int) -> Tensor:
        """S of these rows."""
        seen_RN = causal_mask(first, last, visible, scores_BRN.device)
        return best_mask(scores_BRN.masked_fill(~seen_RN, -torch.inf), self.top) & seen_RN

    def _divergence(self, x_BTD: Tensor) -> Tensor:
        """KL of the index to attention, in nats per token."""
        assert self.index is not None
        with torch.no_grad():
            q, k, _ = self._project(x_BTD, None)
        q_BTJE, k_BNE, w_BTJ = self.index(x_BTD, None)
        total = x_BTD.new_zeros(())
        for first, last, visible in row_blocks(x_BTD.shape[1], x_BTD.shape[1]):
            scores = Index.scores(q_BTJE[:, first:last], k_BNE[:, :visible], w_BTJ[:, first:last])
            chosen = self._chosen(scores.detach(), first, last, visible)
            seen = sparse_weights(q[:, first:last], k[:, :visible], chosen[:, None], self.scale).mean((1, 2))
            guess = scores.masked_fill(~chosen, -torch.inf).log_softmax(-1).masked_fill(~chosen, 0.0)
            total = total + (torch.xlogy(seen, seen) - seen * guess).sum()
        return total / (x_BTD.shape[0] * x_BTD.shape[1])

    def _by_three(self, x_BTD: Tensor, q: Tensor, state: State) -> Tensor:
        assert self.gates is not None
        scores_BHTC = self.scale * block_scores(q, state["k_mean"])
        before = self._before(scores_BHTC, state)
        # A query without an earlier block has nothing to attend to there.
        weights = scores_BHTC.masked_fill(~before, torch.finfo(scores_BHTC.dtype).min).softmax(-1) * before
        by_group = weights.unflatten(1, (self.groups, -1))
        coarse = (by_group @ state["v_mean"].permute(0, 2, 1, 3)[:, :, None]).permute(0, 3, 1, 2, 4).flatten(2, 3)
        together = by_group.sum(2).repeat_interleave(self.heads // self.groups, dim=1)
        fine = self._to_blocks(q, state, together)
        near = attention(q, state["k"], state["v"], window=self.window)
        gates = self.gates(x_BTD).sigmoid().unflatten(-1, (3, self.heads, 1)).unbind(2)
        mixed: Tensor = gates[0] * coarse + gates[1] * fine + gates[2] * near
        return mixed

    def _to_blocks(self, q: Tensor, state: State, scores_BHTC: Tensor) -> Tensor:
        """Attention to a query's own block and to the best blocks before it."""
        before = self._before(scores_BHTC, state)
        count = self.top // self.block - 1
        chosen = best_mask(scores_BHTC.masked_fill(~before, -torch.inf), count) & before
        if q.shape[1] == 1:
            at, valid = self._tokens(chosen[:, :, 0], count, state["k"].shape[1])
            return gathered_attention(q[:, 0], state["k"], state["v"], at, valid, self.scale)[:, None]

        def mask(first: int, last: int, visible: int) -> Tensor:
            rows = chosen[:, :, first:last, : -(-visible // self.block)]
            return tokens_of_blocks(rows, first, last, visible, self.block)

        return sparse_attention(q, state["k"], state["v"], mask, self.scale)

    def _before(self, scores_BHTC: Tensor, state: State) -> Tensor:
        T, C = scores_BHTC.shape[2:]
        return past_blocks(0, T, state["k"].shape[1], C, self.block, scores_BHTC.device)

    def _tokens(self, chosen_BHC: Tensor, count: int, keys: int) -> tuple[Tensor, Tensor]:
        """Token indices of the last query's chosen blocks and its own, and which of them exist."""
        blocks = best(chosen_BHC.long(), count)
        there = chosen_BHC.gather(-1, blocks)
        own = blocks.new_full((*blocks.shape[:-1], 1), (keys - 1) // self.block)
        blocks, there = torch.cat((blocks, own), -1), torch.cat((there, torch.ones_like(own, dtype=torch.bool)), -1)
        at = (blocks[..., None] * self.block + torch.arange(self.block, device=blocks.device)).flatten(-2)
        return at, there.repeat_interleave(self.block, dim=-1) & (at < keys)

    def _project(self, x_BTD: Tensor, positions_BT: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.qkv(x_BTD).unflatten(-1, (self.heads + 2 * self.groups, self.width))
        q, k, v = heads.split([self.heads, self.groups, self.groups], dim=-2)
        if self.rotary is not None:
            q, k = (self.rotary(part.contiguous(), positions_BT) for part in (q, k))
        return q, k, v

    def _extended_means(self, known: Tensor | None, x_BNGP: Tensor) -> Tensor:
        if known is None:
            return block_means(x_BNGP, self.block)
        done = known.shape[1]
        return torch.cat((known, block_means(x_BNGP[:, done * self.block :], self.block)), dim=1)
