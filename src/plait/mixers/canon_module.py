"""Canon layers: a short causal convolution that is added to what it reads, h ← h + conv₄(h), without a nonlinearity.

    A   the input of a sequence mixer, behind the norm        C   the input of a channel mixer, behind the norm
    B   queries, keys and values, behind their projection     D   the inside of an MLP, before the nonlinearity

Allen-Zhu 2025, arXiv:2512.17351 ("Physics of Language Models", part 4.1). A and C are the same for every mixer and wrap
it; B and D are inside the mixers that support them.

Letters: B batch, T new tokens, D model width, C channels, W width of the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from plait.mixers.mixer import Cut, Draw, Loan, Mixer, State, cannot_crop, trimmed
from plait.mixers.options import CANON_WIDTH
from plait.ops.shortconv import short_conv

TAPS_STD = (3 * CANON_WIDTH) ** -0.5  # as torch initialises convolutions, U(±1/√W)
TAIL = "canon"  # state key: the last inputs of the convolution before the mixer
INNER_TAIL = "canon_inner"  # state key: those of the convolution inside it


class Canon(nn.Module):
    """The convolution at one point."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.taps_CW = nn.Parameter(torch.zeros(channels, CANON_WIDTH))

    def init_weights(self, draw: Draw) -> None:
        draw(self.taps_CW, TAPS_STD)

    def init_tail(self, batch: int, rollback: int) -> Tensor:
        """The inputs before the first token: zeros, plus as many as a crop may remove."""
        return self.taps_CW.new_zeros(batch, CANON_WIDTH - 1 + rollback, self.taps_CW.shape[0])

    def forward(self, x_BTC: Tensor, tail: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum, and the same number of last inputs."""
        if tail is None:
            y_BTC, last = short_conv(x_BTC, self.taps_CW)
            return x_BTC + y_BTC, last
        y_BTC, _ = short_conv(x_BTC, self.taps_CW, state_BHC=tail[:, tail.shape[1] - CANON_WIDTH + 1 :])
        return x_BTC + y_BTC, torch.cat((tail, x_BTC), dim=1)[:, x_BTC.shape[1] :]


def inner_canon(canon: Canon | None, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Apply a mixer's inner convolution, if it has one, to (B, T, C) or to one token, (B, C); also returns the new
    state entries."""
    if canon is None:
        return x, {}
    y, tail = canon(x[:, None] if x.dim() == 2 else x, state.get(INNER_TAIL))
    return y[:, 0] if x.dim() == 2 else y, {INNER_TAIL: tail}


def crop_tail(tail: Tensor, tokens: int, name: str) -> Tensor:
    """The last inputs as they were `tokens` tokens earlier."""
    if tail.shape[1] - tokens < CANON_WIDTH - 1:
        raise cannot_crop(name, tokens)
    return tail[:, : tail.shape[1] - tokens]


class CanonMixer(Mixer):
    """A mixer with the convolution on its input."""

    def __init__(self, mixer: Mixer) -> None:
        super().__init__(mixer.d, mixer.options)
        self.mixer, self.canon = mixer, Canon(mixer.d)

    def init_weights(self, draw: Draw) -> None:
        self.canon.init_weights(draw)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.mixer(self.canon(x_BTD)[0])
        return y_BTD

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.mixer.forward_with_loss(self.canon(x_BTD)[0])

    def tensor_parallel(self, parts: int) -> dict[str, Cut]:
        return {f"mixer.{name}": cut for name, cut in self.mixer.tensor_parallel(parts).items()}

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {**self.mixer.init_state(batch, rollback=rollback), TAIL: self.canon.init_tail(batch, rollback)}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        x_BTD, tail = self.canon(x_BD[:, None], state[TAIL])
        y_BD, new = self.mixer.step(x_BTD[:, 0], _without(state))
        return y_BD, {**new, TAIL: tail}

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        x_BTD, tail = self.canon(x_BTD, state[TAIL])
        y_BTD, new = self.mixer.extend(x_BTD, _without(state))
        return y_BTD, {**new, TAIL: tail}

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None = None
    ) -> tuple[Tensor, State, Loan]:
        x_BTD, tail = self.canon(x_BTD, None if state is None else state[TAIL])
        y_BTD, new, lent = self.mixer.connected(x_BTD, None if state is None else _without(state), loan, pad_B)
        return y_BTD, new if state is None else {**new, TAIL: tail}, lent

    def crop(self, state: State, tokens: int) -> State:
        tail = crop_tail(state[TAIL], tokens, self.options.name)
        return {**self.mixer.crop(_without(state), tokens), TAIL: tail}

    def merge(self, states: Sequence[State]) -> State:
        states = trimmed(states, [TAIL])
        inner = [_without(state) for state in states]
        tail = torch.cat([state[TAIL] for state in states])
        return {**(self.mixer.merge(inner) if inner[0] else {}), TAIL: tail}


def _without(state: State) -> State:
    return {key: value for key, value in state.items() if key != TAIL}
