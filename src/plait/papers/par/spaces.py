"""PAR Transformer's space (Mandava et al. 2020, arXiv:2009.04534, Sec. 2.1): 32 blocks, each attention, feed-forward
or nothing, at the sizes of Transformer-XL Base and its 64 new tokens after 640."""

from __future__ import annotations

from typing import ClassVar

from plait.space.declaration import Declaration
from plait.space.space import Space


class Par(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="par",
        about="32 blocks, each attention, feed-forward or nothing",
        layers="32",
        d="512",
        slots=[["xl-attn[heads=8,shared_bias]", "mlp[inner=2048,act=relu]", "none"]],
        header="vocab=267735 tie=true embed=adaptive cutoffs=19997/39997/199997 norm=layer eps=1e-5 final_norm=false",
        seq=64,
        memory=640,
    )
