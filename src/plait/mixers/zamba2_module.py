"""Zamba2's layer: Mamba-2 with a block of attention and MLP that all calls share in front of it.

    u = RMSNorm([x; e])                                 e the embeddings of the same tokens
    a = W_o Attention(W_qkv u + A_i u)                  2 d wide, scores divided by √(P / 2)
    h = W_down [gelu(g) ∘ v],   [g; v] = W_up n + B_i n,   n = RMSNorm(a)
    y = Mamba-2(RMSNorm(x + L_i h))

W and the first two norms are the block's, held once; the adapters A_i, B_i (products of two maps, of rank `lora`) and
L_i are the call's, as are the last norm and Mamba-2. The block's output reaches the state space alone, not the residual
stream; inside the block there is no residual sum.

Glorioso et al. 2024, arXiv:2411.15242; scale and order as in the public implementation of its authors' models.

Letters: B batch, T new tokens, D model width, P head width (2 D / heads).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.attn import AttnOptions
from plait.mixers.attn_module import Attention
from plait.mixers.mamba_module import Mamba2
from plait.mixers.mixer import Draw, Loan, Mixer, RmsNorm, State
from plait.mixers.zamba2 import Zamba2Options

EPS = 1e-5
MAMBA_STATE = ("S", "conv")


class Adapter(nn.Module):
    """A product of two maps, which starts at zero."""

    def __init__(self, d_in: int, d_out: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(d_in, rank, bias=False), nn.Linear(rank, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(self.down(x))
        return y


class BlockAttention(Attention):
    """Attention 2 D wide that ends at width D, with a call's adapter."""

    def __init__(self, d: int, options: Zamba2Options) -> None:
        super().__init__(2 * d, AttnOptions(heads=options.heads, pos=options.pos, theta=options.theta))
        self.output = nn.Linear(2 * d, d, bias=False)
        #: Of queries, keys and values.
        self.adapters = nn.ModuleList(Adapter(2 * d, 2 * d, options.lora) for _ in range(3 if options.lora_attn else 0))

    def _joint(self, x_BTD: Tensor, state: State) -> Tensor:
        flat = self.qkv(x_BTD)
        if self.adapters:
            flat = flat + torch.cat([adapter(x_BTD) for adapter in self.adapters], dim=-1)
        q, rest = flat.unflatten(-1, (3 * self.heads, self.width)).split([self.heads, 2 * self.heads], dim=-2)
        return torch.cat((math.sqrt(2) * q, rest), dim=-2)

    def residual_weights(self) -> list[Tensor]:
        return []  # it ends inside the block


class Zamba2(Mixer):
    def __init__(self, d: int, options: Zamba2Options) -> None:
        super().__init__(d, options)
        inner = int(options.mlp_width(d))
        self.block_norm, self.mlp_norm, self.norm = RmsNorm(2 * d, EPS), RmsNorm(d, EPS), RmsNorm(d, EPS)
        self.attention = BlockAttention(d, options)
        self.gate_up, self.down = nn.Linear(d, 2 * inner, bias=False), nn.Linear(inner, d, bias=False)
        self.adapter = Adapter(d, 2 * inner, options.lora) if options.lora else None
        self.block_output = nn.Linear(d, d, bias=False)
        self.mamba = Mamba2(d, options.mamba())

    def share_with(self, owner: Mixer) -> Mixer:
        assert isinstance(owner, Zamba2)
        self.block_norm, self.mlp_norm = owner.block_norm, owner.mlp_norm
        self.attention.qkv, self.attention.output = owner.attention.qkv, owner.attention.output
        self.gate_up, self.down = owner.gate_up, owner.down
        return self

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None = None
    ) -> tuple[Tensor, State, Loan]:
        both_BTD = self.block_norm(torch.cat((x_BTD, loan.get("embedding", x_BTD)), dim=-1))
        if state is None:
            return self.mamba(self.norm(x_BTD + self._block(self.attention(both_BTD)))), {}, {}
        attended_BTD, cache = self.attention.extend(both_BTD, _without_mamba(state))
        y_BTD, new = self.mamba.extend(self.norm(x_BTD + self._block(attended_BTD)), _mamba(state))
        return y_BTD, {**cache, **new}, {}

    def forward(self, x_BTD: Tensor) -> Tensor:
        """As the first layer of a model, which reads the embeddings themselves."""
        return self.connected(x_BTD, None, {})[0]

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.connected(x_BTD, state, {})[:2]

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        y_BTD, new = self.extend(x_BD[:, None], state)
        return y_BTD[:, 0], new

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {**self.attention.init_state(batch, rollback=rollback), **self.mamba.init_state(batch)}

    def with_capacity(self, state: State, tokens: int) -> State | None:
        roomy = self.attention.with_capacity(_without_mamba(state), tokens)
        return None if roomy is None else {**roomy, **_mamba(state)}

    def merge(self, states: Sequence[State]) -> State:
        caches = self.attention.merge([_without_mamba(state) for state in states])
        return {**caches, **self.mamba.merge([_mamba(state) for state in states])}

    def init_weights(self, draw: Draw) -> None:
        for module in self.modules():
            if isinstance(module, Adapter):  # a call begins as the block itself
                nn.init.zeros_(module.up.weight)

    def _block(self, attended_BTD: Tensor) -> Tensor:
        n_BTD = self.mlp_norm(attended_BTD)
        both = self.gate_up(n_BTD) if self.adapter is None else self.gate_up(n_BTD) + self.adapter(n_BTD)
        gate, value = both.chunk(2, dim=-1)
        y_BTD: Tensor = self.block_output(self.down(F.gelu(gate) * value))
        return y_BTD


def _mamba(state: State) -> State:
    return {key: state[key] for key in MAMBA_STATE}


def _without_mamba(state: State) -> State:
    return {key: value for key, value in state.items() if key not in MAMBA_STATE}
