"""One language model, encoder and auto-encoder for every architecture; its cost without building it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.core.registry import lazy

if TYPE_CHECKING:
    from plait.model.cost import ModelCost as ModelCost
    from plait.model.cost import model_cost as model_cost
    from plait.model.language_model import Model as Model
    from plait.model.language_model import build as build

HOMES = {
    "Model": "language_model",
    "build": "language_model",
    "ModelCost": "cost",
    "decoder_costs": "cost",
    "model_cost": "cost",
    "drop_forgotten": "forgetting_cache",
    "Generation": "generation",
    "TextStream": "generation",
    "match": "resize",
    "Sampling": "generation",
}
__getattr__ = lazy(__name__, HOMES)
