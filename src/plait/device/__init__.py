"""What a model costs on a device: measured latency and memory, a profile of the device, predictions from it."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "Predictor": "predictor",
    "Point": "profile",
    "Profile": "profile",
    "Setting": "setting",
}
__getattr__ = lazy(__name__, HOMES)
