"""What a model remembers between calls: one state a layer, and where each row of the batch stands."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plait.mixers.mixer import State


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
