"""Multi-head latent attention: keys and values of all heads are linear maps of one short vector per token.

    c_t = RMSNorm(W_c x_t),   e_t = rope(W_e x_t),   k_{t,h} = [U_h c_t, e_t],   v_{t,h} = V_h c_t
    q_{t,h} = [q^C, rope(q^E)] = W_q x_t, or U_q RMSNorm(W_d x_t) with `q_rank`
    o_{t,h} = Σ_s softmax_s(q_{t,h}·k_{s,h} / √(D + E)) v_{s,h},   y = W_o o

A whole sequence is computed as written. A state keeps only c and e: q^C·(U_h c) is (U_hᵀ q^C)·c, so each head attends
in the latent space, and V_h is applied to the result. `out_gate` multiplies o by σ(W_g x), one number per head or per
channel. `pos=none` leaves q^E and e unrotated (Kimi Linear).

DeepSeek-AI 2024, arXiv:2405.04434; Kimi Team 2025, arXiv:2510.26692.

Letters: B batch, T new tokens, N keys, M model width, H heads, R rank of keys and values, D width of queries and keys
without positions, E of their part with positions, V value width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import CachedMixer, RmsNorm, State, appended
from plait.mixers.mla import MlaOptions
from plait.mixers.rotary import Rotary
from plait.ops.attention import attention


class LatentAttention(CachedMixer):
    paddable = True
    cache = ("kv",)

    def __init__(self, d: int, options: MlaOptions) -> None:
        super().__init__(d, options)
        self.heads = options.heads
        self.rank, self.nope_dim, self.rope_dim, self.v_dim = (int(width) for width in options.widths(d))
        self.width = self.nope_dim + self.rope_dim
        self.rotary = Rotary(self.rope_dim, options.theta) if options.pos == "rope" else None
        self.query_down = nn.Linear(d, options.q_rank, bias=False) if options.q_rank else None
        self.query_norm = RmsNorm(options.q_rank, 1e-6) if options.q_rank else None
        self.query = nn.Linear(options.q_rank or d, self.heads * self.width, bias=False)
        self.latent = nn.Linear(d, self.rank + self.rope_dim, bias=False)
        self.latent_norm = RmsNorm(self.rank, 1e-6)
        self.expand = nn.Linear(self.rank, self.heads * (self.nope_dim + self.v_dim), bias=False)
        gates = {"none": 0, "per-head": self.heads, "per-element": self.heads * self.v_dim}[options.out_gate]
        self.gate = nn.Linear(d, gates, bias=False) if gates else None
        self.output = nn.Linear(self.heads * self.v_dim, d, bias=False)

    def forward(self, x_BTM: Tensor, pad_B: Tensor | None = None) -> Tensor:
        nope, rope = self._queries(x_BTM, None)
        c_BTR, e_BTE = self._latents(x_BTM, None)
        k, v = self.expand(c_BTR).unflatten(-1, (self.heads, -1)).split([self.nope_dim, self.v_dim], dim=-1)
        q = torch.cat((nope, rope), dim=-1)
        k = torch.cat((k, e_BTE[:, :, None].expand(-1, -1, self.heads, -1)), dim=-1)
        # The op needs queries, keys and values of one width: zero padding does not change products and is removed from
        # values.
        width = max(self.width, self.v_dim)
        q, k, v = (F.pad(part, (0, width - part.shape[-1])) for part in (q, k, v))
        o = attention(q, k, v, pad_B=pad_B, scale=self.width**-0.5)[..., : self.v_dim]
        return self._combine(x_BTM, o)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {"kv": self.zeros(batch, 0, self.rank + self.rope_dim), "pos": self.zeros(batch, dtype=torch.long)}

    def extend(self, x_BTM: Tensor, state: State) -> tuple[Tensor, State]:
        positions_BT = state["pos"][:, None] + torch.arange(x_BTM.shape[1], device=x_BTM.device)
        nope, rope = self._queries(x_BTM, positions_BT)
        kv_BNR = appended(state, "kv", torch.cat(self._latents(x_BTM, positions_BT), dim=-1))
        up_HDR, out_HVR = self.expand.weight.unflatten(0, (self.heads, -1)).split([self.nope_dim, self.v_dim], dim=1)
        q = torch.cat((torch.einsum("bthd,hdr->bthr", nope, up_HDR), rope), dim=-1)
        shared = kv_BNR[:, :, None]  # one key-value head; the value is the latent part of the key
        scale, last = self.width**-0.5, state.get("held")
        o_BTHR = attention(q, shared, shared, pad_B=state.get("pad"), scale=scale, last=last)[..., : self.rank]
        o = torch.einsum("bthr,hvr->bthv", o_BTHR, out_HVR)
        return self._combine(x_BTM, o), {**state, "kv": kv_BNR, "pos": state["pos"] + x_BTM.shape[1]}

    def crop(self, state: State, tokens: int) -> State:
        held = state["kv"].shape[1]
        if tokens > held:
            raise UserError(f"cannot take back {tokens} tokens: {self.options.name} has seen {held}.")
        return {**state, "kv": state["kv"][:, : held - tokens], "pos": state["pos"] - tokens}

    def with_capacity(self, state: State, tokens: int) -> State | None:
        return self.with_room(state, tokens)

    def _queries(self, x_BTM: Tensor, positions_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both parts of the queries, by head."""
        if self.query_down is not None and self.query_norm is not None:
            x_BTM = self.query_norm(self.query_down(x_BTM))
        parts = self.query(x_BTM).unflatten(-1, (self.heads, self.width))
        nope, rope = parts.split([self.nope_dim, self.rope_dim], dim=-1)
        return nope, rope if self.rotary is None else self.rotary(rope.contiguous(), positions_BT)

    def _latents(self, x_BTM: Tensor, positions_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """The cache entries of each token: c and e."""
        c_BTR, e_BTE = self.latent(x_BTM).split([self.rank, self.rope_dim], dim=-1)
        if self.rotary is not None:
            e_BTE = self.rotary(e_BTE.contiguous()[:, :, None], positions_BT)[:, :, 0]
        return self.latent_norm(c_BTR), e_BTE

    def _combine(self, x_BTM: Tensor, o_BTHV: Tensor) -> Tensor:
        if self.gate is not None:
            o_BTHV = o_BTHV * self.gate(x_BTM).sigmoid().unflatten(-1, (self.heads, -1))
        y: Tensor = self.output(o_BTHV.flatten(-2))
        return y
