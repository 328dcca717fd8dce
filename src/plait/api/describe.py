"""What an architecture is and costs: `plait.architecture`, `plait.cost`, `plait.build`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plait.model.architecture import Architecture
from plait.model.architecture import architecture as read
from plait.model.cost import ModelCost, model_cost

if TYPE_CHECKING:
    from plait.model.construct import Model


def architecture(spec: str | Architecture, *, mixers: Sequence[str | Path] = ()) -> Architecture:
    """The architecture that a line of text, a preset's name or a file describes, checked; `mixers`: your own files."""
    load_mixers(mixers)
    return spec if isinstance(spec, Architecture) else read(spec)


def cost(
    spec: str | Architecture, *, seq_len: int = 1024, memory: int = 0, mixers: Sequence[str | Path] = ()
) -> ModelCost:
    """Parameters, FLOPs and state, exactly, without building the model and without torch."""
    return model_cost(architecture(spec, mixers=mixers), seq=seq_len, memory=memory)


def build(spec: str | Architecture, *, seed: int = 0, mixers: Sequence[str | Path] = ()) -> Model:
    """The model as a torch module, with seeded initial values."""
    from plait.model.construct import build as construct

    return construct(architecture(spec, mixers=mixers), seed=seed)


def load_mixers(mixers: Sequence[str | Path]) -> None:
    """Run users' files so that specs may name their mixers."""
    if mixers:
        from plait.model.user_mixers import load_mixer

        for file in mixers:
            load_mixer(str(file))
