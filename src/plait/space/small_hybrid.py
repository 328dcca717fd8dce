"""Hybrids that train in minutes on a processor: a few layers over bytes, every layer with a mixer of its own.

What `plait design` searches unless told otherwise. One setting of every mixer, so that its profile takes a minute.
"""

from __future__ import annotations

from typing import ClassVar

from plait.space.declaration import Declaration
from plait.space.space import Space

SEQUENCE_MIXERS = (
    "attn[heads=4]",
    "fox[heads=4]",
    "gla[heads=4]",
    "mamba2[state=16,head_dim=32]",
    "hyena[state=8]",
)
CHANNEL_MIXERS = ("swiglu[inner=128..1024 step 128]",)


class SmallHybrid(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="small-hybrid",
        about="2 to 6 layers over bytes, each any of five sequence mixers with a SwiGLU",
        layers="2..6",
        d="64..256 step 64",
        slots=[SEQUENCE_MIXERS, CHANNEL_MIXERS],
        header="vocab=256 tie=true",
        seq=256,
    )
