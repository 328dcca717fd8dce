"""Search algorithms and objectives: evolution, NSGA-II and III, random search, and zero-cost proxies."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "LtsSearch": "evolution",
    "Predicted": "objectives",
    "exact": "objectives",
    "DevicePredictor": "predicted",
    "PROXIES": "proxies",
    "Windows": "proxies",
    "load_proxy": "proxies",
}
__getattr__ = lazy(__name__, HOMES)
