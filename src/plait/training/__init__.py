"""Training: the loop for one model, and the fleet (many small models of one shape as one stacked step)."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "Fleet": "ensemble",
    "Plan": "ensemble",
    "Replica": "ensemble",
    "Split": "ensemble",
    "fuse": "fusion",
    "Recipe": "recipe",
}
__getattr__ = lazy(__name__, HOMES)
