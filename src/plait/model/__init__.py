"""One language model, encoder and auto-encoder for every architecture; its cost without building it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.model.construct import Model, build
    from plait.model.cost import ModelCost, model_cost

__all__ = ["Model", "ModelCost", "build", "model_cost"]


def __getattr__(name: str) -> Any:
    # Costs are wanted where torch is not (`plait show`): import either half only when it is asked for.
    from importlib import import_module

    homes = {"build": "construct", "Model": "construct", "model_cost": "cost", "ModelCost": "cost"}
    if name not in homes:
        raise AttributeError(f"module 'plait.model' has no attribute '{name}'")
    return getattr(import_module(f"plait.model.{homes[name]}"), name)
