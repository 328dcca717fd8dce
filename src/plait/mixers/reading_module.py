"""Mixers that read from an earlier layer: attention to its keys and values, a gate on its memory, and Zamba2's layer,
which reads the embeddings.

    cross-attn   o_i = Σ_j softmax_j(q_i·k_j / √P) v_j,   y = W_o o,   q = W_q x; k and v are an earlier layer's
    gmu          y = W_o [m ∘ silu(W_g x)],   m an earlier state space's output before its gate

Sun et al. 2024, YOCO, arXiv:2405.05254 (one cache for all later layers); Ren et al. 2025, SambaY, arXiv:2507.06607 (the
gated memory unit; with `norm` its normed form). Neither has a state: what they read is stored by the layer that
computes it.

Letters: B batch, T new tokens, N keys, D model width, H query heads, P head width, E width of the memory.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.attn import AttnOptions
from plait.mixers.attn_module import Attention
from plait.mixers.mamba_module import Mamba2
from plait.mixers.mixer import Draw, Loan, Mixer, RmsNorm, State, make_mixer
from plait.mixers.options import MixerOptions
from plait.mixers.reading import CrossAttnOptions, GmuOptions, Zamba2Options
from plait.mixers.rotary import Rotary
from plait.ops.attention import attention


class Reader(Mixer):
    """Base of readers without their own state: a subclass computes the output from its input and what it reads."""

    paddable = True
    output: nn.Linear

    @abstractmethod
    def read(self, x_BTD: Tensor, loan: Loan) -> Tensor: ...

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None = None
    ) -> tuple[Tensor, State, Loan]:
        return self.read(x_BTD, loan), state or {}, {}

    def forward(self, x_BTD: Tensor) -> Tensor:
        raise UserError(f"{self.options.name} runs in a model, behind the layer it reads of.")

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.forward(x_BD), state

    def crop(self, state: State, tokens: int) -> State:
        return state

    def merge(self, states: Sequence[State]) -> State:
        return {}

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]


class CrossAttention(Reader):
    def __init__(self, d: int, options: CrossAttnOptions) -> None:
        super().__init__(d, options)
        self.heads, self.width = options.heads, int(options.head_width(d))
        self.query = nn.Linear(d, self.heads * self.width, bias=options.bias)
        self.rotary = Rotary(self.width, options.theta) if options.pos == "rope" else None
        self.output = nn.Linear(self.heads * self.width, d, bias=options.bias)

    def read(self, x_BTD: Tensor, loan: Loan) -> Tensor:
        q_BTHP = self.query(x_BTD).unflatten(-1, (self.heads, self.width))
        if self.rotary is not None:
            q_BTHP = self.rotary(q_BTHP, self._positions(x_BTD, loan))
        mixed_BTHP = attention(q_BTHP, loan["k"], loan["v"], pad_B=loan.get("pad"), last=loan.get("held"))
        y_BTD: Tensor = self.output(mixed_BTHP.flatten(-2))
        return y_BTD

    def _positions(self, x_BTD: Tensor, loan: Loan) -> Tensor | None:
        """Positions of the new tokens: `pos` is the cache length including them."""
        if "pos" not in loan:
            return None
        return loan["pos"][:, None] - x_BTD.shape[1] + torch.arange(x_BTD.shape[1], device=x_BTD.device)


class GatedMemory(Reader):
    def __init__(self, d: int, options: GmuOptions) -> None:
        super().__init__(d, options)
        inner = int(options.inner_width(d))
        self.gate = nn.Linear(d, inner, bias=False)
        self.norm = RmsNorm(inner, 1e-5) if options.norm else None
        self.output = nn.Linear(inner, d, bias=False)

    def read(self, x_BTD: Tensor, loan: Loan) -> Tensor:
        gated_BTE = loan["memory"] * F.silu(self.gate(x_BTD))
        y_BTD: Tensor = self.output(gated_BTE if self.norm is None else self.norm(gated_BTE))
        return y_BTD


class Behind(Mixer):
    """A lender and a reader as one mixer, y = lender(x) + reader(x, what the lender provides), so that a reader can be
    checked like any mixer."""

    def __init__(self, d: int, options: MixerOptions) -> None:
        super().__init__(d, options)
        lender = options.lender()
        assert lender is not None
        self.lender, self.reader = make_mixer(lender, d), make_mixer(options, d)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD, _, loan = self.lender.connected(x_BTD, None, {})
        return y_BTD + self.reader.connected(x_BTD, None, loan)[0]

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return self.lender.init_state(batch, rollback=rollback)

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        y_BTD, new, loan = self.lender.connected(x_BTD, state, {})
        return y_BTD + self.reader.connected(x_BTD, {}, loan)[0], new

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        y_BTD, new = self.extend(x_BD[:, None], state)
        return y_BTD[:, 0], new


def standing_alone(options: MixerOptions, d: int) -> Mixer:
    """The mixer, together with a lender if it reads from one."""
    return make_mixer(options, d) if options.lender() is None else Behind(d, options)


EPS = 1e-5
MAMBA_STATE = ("S", "conv")


class Adapter(nn.Module):
    """A low-rank product of two linear maps, initialised to zero."""

    def __init__(self, d_in: int, d_out: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(d_in, rank, bias=False), nn.Linear(rank, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(self.down(x))
        return y


class BlockAttention(Attention):
    """Attention of width 2 D with output width D and a layer's adapter."""

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

    def _queries_apart(self) -> bool:
        return False

    def residual_weights(self) -> list[Tensor]:
        return []  # it ends inside the block


class Zamba2(Mixer):
    """Zamba2's layer: Mamba-2 preceded by a block of attention and MLP that is shared by several layers.

        u = RMSNorm([x; e])                                 e the embeddings of the same tokens
        a = W_o Attention(W_qkv u + A_i u)                  2 d wide, scores divided by √(P / 2)
        h = W_down [gelu(g) ∘ v],   [g; v] = W_up n + B_i n,   n = RMSNorm(a)
        y = Mamba-2(RMSNorm(x + L_i h))

    W and the first two norms belong to the shared block and are stored once; the adapters A_i, B_i (products of two
    maps, of rank `lora`) and L_i belong to each layer, as do the last norm and Mamba-2. The block's output is added
    only to the state space's input, not to the residual stream; inside the block there is no residual sum.

    Glorioso et al. 2024, arXiv:2411.15242; scale and order as in the public implementation of its authors' models.

    Letters: B batch, T new tokens, D model width, P head width (2 D / heads).
    """

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
        """Run as the first layer of a model, whose input is the embeddings."""
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
            if isinstance(module, Adapter):  # a layer starts as the shared block itself
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
