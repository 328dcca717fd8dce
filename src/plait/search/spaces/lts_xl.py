"""LiteTransformerSearch's space of Transformer-XL models (Javaheripi et al. 2022, arXiv:2203.02094, Sec. 3).

35 genes and 10^36.5 candidates with inner >= int(1.7 * d).
"""

from __future__ import annotations

from typing import ClassVar

from plait.search.declaration import Declaration
from plait.search.space import Space


class LtsXl(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="lts-xl",
        about="2 to 16 layers, each with its own heads and inner width",
        layers="2..16",
        d="128..960 step 64",
        slots=[["xl-attn[heads=2|4|8]"], ["mlp[inner=128..4032 step 64,act=relu]"]],
        header="vocab=267735 tie=true embed=adaptive cutoffs=19997/39997/199997 norm=layer eps=1e-5 final_norm=false",
        vary={"div": "4"},  # the adaptive embeddings' factor, a gene of one value
        rules=["inner >= int(1.7 * d)", "4M <= decoder_params <= 100M"],
        seq=192,
    )
