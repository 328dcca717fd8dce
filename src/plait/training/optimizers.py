"""The optimizers by name. A new one is a file with a builder, and a line here; a package's own, an entry point.

A builder takes parameter groups (as torch wants them, each with its weight decay) and the recipe, and returns a torch
optimizer. Whatever that keeps as its state is saved in checkpoints and restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plait.core.registry import Entry, Table

if TYPE_CHECKING:
    import torch

    from plait.training.recipe import Recipe

    Builder = Callable[[list[dict[str, Any]], Recipe], torch.optim.Optimizer]


@dataclass(frozen=True)
class OptimizerEntry(Entry):
    """Where the builder is, and a number raised when the same recipe comes to mean another update."""

    revision: int = 1
    #: Whether it wants the blocks' matrices in groups of their own, marked `hidden`.
    splits_matrices: bool = False


OPTIMIZERS: Table[Builder] = Table(
    "optimizer",
    {
        "adamw": OptimizerEntry("plait.training.optimizer:adamw", "Adam with decoupled weight decay"),
        "muon": OptimizerEntry(
            "plait.training.muon:muon",
            "orthogonalised momentum for the blocks' matrices, AdamW for the rest",
            splits_matrices=True,
        ),
        "adam": OptimizerEntry("plait.training.optimizer:adam", "Adam; weight decay is added to the gradient"),
        "lamb": OptimizerEntry("plait.training.optimizer:lamb", "LAMB, Algorithm 2 of its paper", revision=2),
        "lamb-xl": OptimizerEntry(
            "plait.training.optimizer:lamb_xl", "LAMB as in the public Transformer-XL training code"
        ),
        "nvlamb": OptimizerEntry(
            "plait.training.optimizer:nvlamb", "NVLAMB: LAMB after clipping the whole gradient to norm 1"
        ),
        "sgd": OptimizerEntry("plait.training.optimizer:sgd", "gradient descent with momentum beta1"),
        "rmsprop": OptimizerEntry("plait.training.optimizer:rmsprop", "RMSprop, squared gradients decay by beta2"),
        "adagrad": OptimizerEntry("plait.training.optimizer:adagrad", "Adagrad"),
    },
    group="plait.optimizers",
)


def splits_matrices(name: str) -> bool:
    entry = OPTIMIZERS.lines.get(name)
    return isinstance(entry, OptimizerEntry) and entry.splits_matrices


def revision_of(name: str) -> int:
    """A package's own has none but the first: its version is for the package to say."""
    entry = OPTIMIZERS.lines.get(name)
    return entry.revision if isinstance(entry, OptimizerEntry) else 1
