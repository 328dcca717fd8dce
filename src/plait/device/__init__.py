"""Latency, memory and energy of models on a device: measured, or predicted from a profile of the device."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "Predictor": "predictor",
    "Point": "profile",
    "Profile": "profile",
    "Setting": "quantities",
}
__getattr__ = lazy(__name__, HOMES)
