"""Architectures without torch: each mixer's options and exact cost, and specs checked against them."""

from plait.arch.architecture import Architecture, architecture
from plait.arch.cost import MIXING, SHORT_CONV, Cost
from plait.arch.options import MixerOptions, option
from plait.arch.source import MixerSource
from plait.arch.table import load, load_packaged, names, register

__all__ = [
    "MIXING",
    "SHORT_CONV",
    "Architecture",
    "Cost",
    "MixerOptions",
    "MixerSource",
    "architecture",
    "load",
    "load_packaged",
    "names",
    "option",
    "register",
]
