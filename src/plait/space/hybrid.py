"""plait's own spaces, a large one and a small: every layer chooses its sequence mixer, its channel mixer or none."""

from __future__ import annotations

from typing import ClassVar

from plait.space.declaration import Declaration
from plait.space.space import Space

SEQUENCE_MIXERS = (
    "attn[heads=2|4|8]",
    "attn[heads=4|8,window=64|256]",
    "fox[heads=4|8]",
    "linear[heads=4|8]",
    "gla[heads=*,expand_k=*]",
    "hgrn2[head_dim=32|64]",
    "rwkv6[head_dim=32|64]",
    "deltanet[head_dim=32|64]",
    "gated-deltanet[head_dim=32|64,expand_v=*]",
    "mamba[state=*,expand=*]",
    "mamba2[state=*,expand=*,head_dim=32|64]",
    "hyena[state=*]",
    "mh-hyena[heads=*]",
)
CHANNEL_MIXERS = (
    "swiglu[inner=128..2048 step 128]",
    "mlp[inner=128..2048 step 128]",
    "moe[experts=4|8,active=*]",
    "none",
)


class Hybrid(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="hybrid",
        about="2 to 16 layers, each any sequence mixer with any channel mixer or none",
        layers="2..16",
        d="128..768 step 64",
        slots=[SEQUENCE_MIXERS, CHANNEL_MIXERS],
        header="vocab=50257 tie=true",
        seq=1024,
    )


SMALL_SEQUENCE_MIXERS = (
    "attn[heads=4]",
    "fox[heads=4]",
    "gla[heads=4]",
    "mamba2[state=16,head_dim=32]",
    "hyena[state=8]",
)
SMALL_CHANNEL_MIXERS = ("swiglu[inner=128..1024 step 128]",)


class SmallHybrid(Space):
    """What `plait design` searches unless told otherwise: one setting per mixer, so that its profile takes a minute."""

    declaration: ClassVar[Declaration] = Declaration(
        name="small-hybrid",
        about="2 to 6 layers over bytes, each any of five sequence mixers with a SwiGLU",
        layers="2..6",
        d="64..256 step 64",
        slots=[SMALL_SEQUENCE_MIXERS, SMALL_CHANNEL_MIXERS],
        header="vocab=256 tie=true",
        seq=256,
    )
