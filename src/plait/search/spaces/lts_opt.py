"""LiteTransformerSearch's space around OPT-350M (Javaheripi et al. 2022, arXiv:2203.02094, App. H): 152,064 points."""

from __future__ import annotations

from typing import ClassVar

from plait.search.declaration import Declaration
from plait.search.space import Space


class LtsOpt(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="lts-opt",
        about="3 to 29 layers, all alike",
        layers="3..29",
        d="512..1472 step 64",
        slots=[["attn[heads=2|4|8|16,pos=none,bias]"], ["mlp[inner=512..6080 step 64,act=relu]"]],
        header="vocab=50272 pos=learned max_len=2048 tie=true norm=layer eps=1e-5",
        alike=True,
        seq=2048,
    )
