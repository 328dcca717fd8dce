"""One language model, encoder and auto-encoder for every architecture; its cost without building it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.core.registry import lazy

if TYPE_CHECKING:
    from plait.model.construct import Model as Model
    from plait.model.construct import build as build
    from plait.model.cost import ModelCost as ModelCost
    from plait.model.cost import model_cost as model_cost

HOMES = {
    "Model": "construct",
    "build": "construct",
    "ModelCost": "cost",
    "decoder_costs": "cost",
    "model_cost": "cost",
    "drop_forgotten": "forgetting_cache",
    "Generation": "generation",
    "TextStream": "generation",
    "match": "resize",
    "Sampling": "sampling",
}
__getattr__ = lazy(__name__, HOMES)
