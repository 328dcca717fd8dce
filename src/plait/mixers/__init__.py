"""Mixers, two files each: `gla.py` has the options and exact cost and needs no torch, `gla_module.py` the torch module.

Everything a user's mixer needs is here: `from plait.mixers import MIXING, Cost, Mixer, MixerOptions, option`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions, option

if TYPE_CHECKING:
    from plait.mixers.mixer import Mixer

__all__ = ["MIXING", "SHORT_CONV", "Cost", "Mixer", "MixerOptions", "option"]


def __getattr__(name: str) -> Any:
    if name == "Mixer":  # imports torch, which options and costs do not need
        from plait.mixers.mixer import Mixer

        return Mixer
    raise AttributeError(f"module 'plait.mixers' has no attribute '{name}'")
