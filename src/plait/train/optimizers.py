"""The optimizers by name. A new one is a file with a builder, and a line here.

A builder takes parameter groups (as torch wants them, each with its weight decay) and the recipe, and returns a torch
optimizer. Whatever that keeps as its state is saved in checkpoints and restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from plait.train.recipe import Recipe

    Builder = Callable[[list[dict[str, Any]], Recipe], torch.optim.Optimizer]


@dataclass(frozen=True)
class Entry:
    """Where the builder is, and a number raised when the same recipe comes to mean another update."""

    place: str  # module:function
    about: str
    revision: int = 1

    def load(self) -> Builder:
        module, _, name = self.place.partition(":")
        builder: Builder = getattr(import_module(module), name)
        return builder


OPTIMIZERS: dict[str, Entry] = {
    "adamw": Entry("plait.train.optimizer:adamw", "Adam with decoupled weight decay"),
    "adam": Entry("plait.train.optimizer:adam", "Adam; weight decay is added to the gradient"),
    "lamb": Entry("plait.train.lamb:lamb", "LAMB, Algorithm 2 of its paper", revision=2),
    "lamb-xl": Entry("plait.train.lamb:lamb_xl", "LAMB as in the public Transformer-XL training code"),
    "nvlamb": Entry("plait.train.lamb:nvlamb", "NVLAMB: LAMB after clipping the whole gradient to norm 1"),
    "sgd": Entry("plait.train.optimizer:sgd", "gradient descent with momentum beta1"),
    "rmsprop": Entry("plait.train.optimizer:rmsprop", "RMSprop, squared gradients decay by beta2"),
    "adagrad": Entry("plait.train.optimizer:adagrad", "Adagrad"),
}
