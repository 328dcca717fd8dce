"""Our own space: every layer chooses its sequence mixer, that mixer's options, and its channel mixer or none."""

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
