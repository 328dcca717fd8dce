"""Mixers that read from an earlier layer: attention to its keys and values, a gate on its memory.

    cross-attn   o_i = Σ_j softmax_j(q_i·k_j / √P) v_j,   y = W_o o,   q = W_q x; k and v are an earlier layer's
    gmu          y = W_o [m ∘ silu(W_g x)],   m an earlier state space's output ahead of its gate

Sun et al. 2024, YOCO, arXiv:2405.05254 (one cache for all later layers); Ren et al. 2025, SambaY, arXiv:2507.06607 (the
gated memory unit; with `norm` its normed form). Neither has a state: what they read is held where it is made.

Letters: B batch, T new tokens, N keys, D model width, H query heads, P head width, E width of the memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import Loan, Mixer, RmsNorm, State, make_mixer
from plait.mixers.options import MixerOptions
from plait.mixers.reading import CrossAttnOptions, GmuOptions
from plait.mixers.rotary import Rotary
from plait.ops.attention import attention


class Reader(Mixer):
    """Base of those without a state of their own: a subclass says what it makes of its input and of what it reads."""

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
        """Where the new tokens stand: `pos` counts those that the cache holds with them."""
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
    """A layer and one that reads from it as one mixer, y = lender(x) + reader(x, what that lends), so that a reader can
    be checked like any mixer."""

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
    """The mixer, together with a lender where it reads from one."""
    return make_mixer(options, d) if options.lender() is None else Behind(d, options)
