"""A residual layer, x + mixer(norm(x)), the norm in front (pre-norm) whatever the mixer; and what a model keeps between
calls: one state per layer, and where each row of the batch is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import Mixer, State
from plait.mixers.options import MixerOptions
from plait.mixers.shared import make_norm
from plait.mixers.xl_attn_module import RelativeAttention
from plait.spec import Header


@dataclass(frozen=True)
class ModelState:
    """Never changed in place: every call returns a new one, and an old one stays good."""

    layers: tuple[State, ...]
    pos_B: Tensor  # tokens seen, padding included
    pad_B: Tensor | None = None  # padded positions at the start of each row

    def reorder(self, rows: Tensor) -> ModelState:
        """The rows given by index, in that order, repeats allowed (beam search)."""
        layers = tuple({key: value[rows] for key, value in layer.items()} for layer in self.layers)
        return ModelState(layers, self.pos_B[rows], None if self.pad_B is None else self.pad_B[rows])

    @property
    def nbytes(self) -> int:
        """Memory held by the layers' states."""
        return sum(value.numel() * value.element_size() for layer in self.layers for value in layer.values())


def make_mixer(options: MixerOptions, d: int) -> Mixer:
    """Import and build the torch side of a mixer."""
    module, _, attribute = options.module.partition(":")
    made: Mixer = getattr(import_module(module), attribute)(d, options)
    return made


class Block(nn.Module):
    def __init__(self, header: Header, options: MixerOptions) -> None:
        super().__init__()
        self.norm = make_norm(header.norm, header.d, header.eps) if options.prenorm else nn.Identity()
        self.mixer = make_mixer(options, header.d)
        self.dropout = 0.0  # set by a training that wants it

    def forward(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> Tensor:
        inner = self.norm(x_BTD)
        # Only sequence mixers need to know of padding; `Backbone` has made sure that they take it.
        mixed: Tensor = (
            self.mixer(inner) if pad_B is None or self.mixer.options.kind == "channel" else self.mixer(inner, pad_B)
        )
        return x_BTD + self._dropped(mixed)

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        """The output, and the mixer's auxiliary loss where it has one (load balancing of experts)."""
        mixed, loss = self.mixer.forward_with_loss(self.norm(x_BTD))
        return x_BTD + self._dropped(mixed), loss

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = self.mixer.extend(self.norm(x_BTD), state)
        return x_BTD + self._dropped(mixed), state

    def init_memory(self, batch: int, tokens: int) -> State:
        """Segment memory: the layer's last `tokens` inputs, where it is one that looks at them."""
        if isinstance(self.mixer, RelativeAttention):
            return self.mixer.init_memory(batch, tokens)
        if self.mixer.options.kind != "channel":
            raise UserError(f"segment memory is for xl-attn; {self.mixer.options.name} has its own state.")
        return {}

    def remember(self, x_BTD: Tensor, memory: State) -> State:
        """Segment memory after these inputs, without running the layer on them."""
        return self.mixer.remember(self.norm(x_BTD), memory) if isinstance(self.mixer, RelativeAttention) else memory

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = self.mixer.step(self.norm(x_BD), state)
        return x_BD + mixed, state

    def _dropped(self, mixed_BTD: Tensor) -> Tensor:
        return F.dropout(mixed_BTD, self.dropout) if self.dropout and self.training else mixed_BTD


class Blocks(nn.ModuleList):
    """A list of blocks that a type checker knows to be blocks."""

    def __iter__(self) -> Iterator[Block]:
        return cast("Iterator[Block]", super().__iter__())
