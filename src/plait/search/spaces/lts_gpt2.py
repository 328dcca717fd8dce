"""LiteTransformerSearch's space of GPT-2 models (Javaheripi et al. 2022, arXiv:2203.02094, Sec. 3)."""

from __future__ import annotations

from typing import ClassVar

from plait.search.declaration import Declaration
from plait.search.space import Space


class LtsGpt2(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="lts-gpt2",
        about="2 to 15 layers, each with its own heads and inner width",
        layers="2..15",
        d="128..960 step 64",
        slots=[["attn[heads=2|4|8,pos=none,bias]"], ["mlp[inner=128..4032 step 64,act=gelu-tanh]"]],
        header="vocab=50264 pos=learned max_len=1024 tie=true embed=adaptive cutoffs=19997/39997 norm=layer eps=1e-5",
        vary={"div": "4"},  # the adaptive embeddings' factor, a gene of one value
        rules=["inner >= int(1.7 * d)", "6M <= decoder_params <= 100M"],
        seq=192,
    )
