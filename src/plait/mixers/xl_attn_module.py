"""Transformer-XL's relative attention with segment memory.

    s_ij = [(q_i + u)·k_j + (q_i + v)·(W_r sinusoid(i − j))] / √P

Keys and values cover the memory and the new tokens; queries only the new ones. Distances beyond `clamp` count as
`clamp`. Dai et al. 2019, arXiv:1901.02860.

Letters: B batch, T new tokens, N keys (memory included), D model width, H heads, P head width, L distances.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from plait.mixers.attn import XlAttnOptions
from plait.mixers.mixer import CachedMixer, Draw, Mixer, State, cannot_crop, trimmed
from plait.ops.relative import relative_attention, sinusoid


class RelativeAttention(CachedMixer):
    paddable = True

    def __init__(self, d: int, options: XlAttnOptions) -> None:
        super().__init__(d, options)
        self.heads, self.width = options.heads, int(options.head_width(d))
        self.window, self.clamp, self.shares_biases = options.window, options.clamp, options.shared_bias
        inner = self.heads * self.width
        self.query = nn.Linear(d, inner, bias=False)
        self.key_value = nn.Linear(d, 2 * inner, bias=False)
        self.distance = nn.Linear(d, inner, bias=False)
        self.output = nn.Linear(inner, d, bias=False)
        self.content_bias_HP = nn.Parameter(torch.zeros(self.heads, self.width))
        self.position_bias_HP = nn.Parameter(torch.zeros(self.heads, self.width))

    def init_weights(self, draw: Draw) -> None:
        draw(self.content_bias_HP, 0.02)
        draw(self.position_bias_HP, 0.02)

    def share_biases(self, owner: RelativeAttention) -> None:
        """Use another layer's biases (`shared_bias`): one pair for the whole model."""
        self.content_bias_HP = owner.content_bias_HP
        self.position_bias_HP = owner.position_bias_HP

    def forward(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> Tensor:
        return self._attend(x_BTD, *self._keys_values(x_BTD), pad_B)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        """Keys and values of the memory. For training over segments use `init_memory` instead."""
        empty = self.zeros(batch, 0, self.heads, self.width)
        return {"k": empty, "v": empty, "spare": self.zeros(batch, rollback, dtype=torch.bool)}

    def init_memory(self, batch: int, tokens: int) -> State:
        """Memory as Transformer-XL trains with it: the layer's inputs of the last `tokens` tokens, whose keys and
        values are recomputed with the current weights, without a gradient into the inputs themselves."""
        return {"hidden": self.zeros(batch, 0, self.d), "kept": self.zeros(batch, tokens, dtype=torch.bool)}

    def remember(self, x_BTD: Tensor, state: State) -> State:
        """The memory after these inputs, which may not have been attended to."""
        held, kept = torch.cat([state["hidden"], x_BTD], dim=1), state["kept"].shape[1]
        return state | {"hidden": held[:, max(0, held.shape[1] - kept) :].detach()}

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        if "hidden" in state:
            held = torch.cat([state["hidden"], x_BTD], dim=1)
            return self._attend(x_BTD, *self._keys_values(held)), self.remember(x_BTD, state)
        k, v = self._keys_values(x_BTD)
        k, v = torch.cat([state["k"], k], dim=1), torch.cat([state["v"], v], dim=1)
        new = dict(state)
        y = self._attend(x_BTD, k, v, state.get("pad"))
        if self.window:
            first = max(0, k.shape[1] - (self.window - 1) - state["spare"].shape[1])
            k, v = k[:, first:], v[:, first:]
            if "pad" in new:
                new["pad"] = (new["pad"] - first).clamp(min=0)
        return y, new | {"k": k, "v": v}

    def crop(self, state: State, tokens: int) -> State:
        rollback = state["spare"].shape[1]
        if tokens and (tokens > state["k"].shape[1] or (self.window and tokens > rollback)):
            raise cannot_crop(self.options.name, tokens)
        keep = state["k"].shape[1] - tokens
        spare = state["spare"][:, : max(0, rollback - tokens)]
        return state | {"k": state["k"][:, :keep], "v": state["v"][:, :keep], "spare": spare}

    def merge(self, states: Sequence[State]) -> State:
        if any("hidden" in state for state in states):
            return Mixer.merge(self, states)  # segment memories of equal length
        return super().merge(trimmed(states, ["spare"]))

    def _keys_values(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.key_value(x_BND).unflatten(-1, (2, self.heads, self.width)).unbind(dim=-3)
        return k, v

    def _attend(self, x_BTD: Tensor, k: Tensor, v: Tensor, pad_B: Tensor | None = None) -> Tensor:
        keys = k.shape[1]
        q = self.query(x_BTD).unflatten(-1, (self.heads, self.width))
        farthest = keys if not self.clamp else min(keys, self.clamp + 1)
        distances_L = torch.arange(farthest, device=x_BTD.device)
        r_LHP = self.distance(sinusoid(distances_L, self.d).to(x_BTD.dtype)).unflatten(-1, (self.heads, self.width))
        mixed = relative_attention(
            q, k, v, r_LHP, self.content_bias_HP, self.position_bias_HP,
            window=self.window, clamp=self.clamp, pad_B=pad_B,
        )  # fmt: skip
        y: Tensor = self.output(mixed.flatten(-2))
        return y
