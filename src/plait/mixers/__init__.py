"""A mixer in one place: `gla.py` has its options and exact cost and needs no torch, `gla_module.py` its module.

What a mixer of one's own needs is here: `from plait.mixers import MIXING, Cost, Mixer, MixerOptions, option`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions, option

if TYPE_CHECKING:
    from plait.mixers.mixer import Mixer

__all__ = ["MIXING", "SHORT_CONV", "Cost", "Mixer", "MixerOptions", "option"]


def __getattr__(name: str) -> Any:
    if name == "Mixer":  # a torch module: options and costs are wanted without it
        from plait.mixers.mixer import Mixer

        return Mixer
    raise AttributeError(f"module 'plait.mixers' has no attribute '{name}'")
