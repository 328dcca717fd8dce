"""The space in which LiteTransformerSearch compares proxies (arXiv:2203.02094, Sec. 4): Transformer-XL models whose
embeddings vary, too, so that total and decoder parameters come apart."""

from __future__ import annotations

from typing import ClassVar

from plait.search.declaration import Declaration
from plait.search.space import Space


class LtsProxy(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="lts-proxy",
        about="2 to 16 layers of any inner width, embeddings of any size",
        layers="2..16",
        d="64|128|256|512",
        slots=[["xl-attn[heads=2|4|8]"], ["mlp[inner=512..2048,act=relu]"]],
        header="vocab=267735 tie=true embed=adaptive cutoffs=19997/39997/199997 norm=layer eps=1e-5 final_norm=false",
        vary={"d_embed": "128|256|512", "div": "1|2|4"},
        seq=192,
    )
