"""The search spaces of the papers.

LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094): GPT-2 models and Transformer-XL models (Sec. 3; the
latter has 35 genes and 10^36.5 candidates with inner >= int(1.7 * d)), models around OPT-350M (App. H, 152,064 points),
and the Transformer-XL models on which it compares proxies (Sec. 4), whose embeddings vary as well so that total and
decoder parameters differ.

PAR Transformer (Mandava et al. 2020, arXiv:2009.04534, Sec. 2.1): 32 blocks, each attention, feed-forward or nothing,
at the sizes of Transformer-XL Base, with 64 new tokens after a memory of 640.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from plait.space.declaration import Declaration
from plait.space.space import Space


class LtsGpt2(Space):
    declaration: ClassVar[Declaration] = Declaration(
        name="lts-gpt2",
        about="2 to 15 layers, each with its own heads and inner width",
        layers="2..15",
        d="128..960 step 64",
        slots=[["attn[heads=2|4|8,pos=none,bias]"], ["mlp[inner=128..4032 step 64,act=gelu-tanh]"]],
        header="vocab=50264 pos=learned max_len=1024 tie=true embed=adaptive div=4 norm=layer eps=1e-5",
        vary={"div": "4"},  # the adaptive embeddings' factor, a gene of one value
        constraints=["inner >= int(1.7 * d)", "6M <= decoder_params <= 100M"],
        seq=192,
    )


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


class LtsXl(Space):
    declaration: ClassVar[Declaration] = replace(
        LtsGpt2.declaration,
        name="lts-xl",
        about="2 to 16 layers, each with its own heads and inner width",
        layers="2..16",
        slots=[["xl-attn[heads=2|4|8]"], ["mlp[inner=128..4032 step 64,act=relu]"]],
        header="vocab=267735 tie=true embed=adaptive cutoffs=59997/99997 norm=layer eps=1e-5 final_norm=false",
        constraints=["inner >= int(1.7 * d)", "4M <= decoder_params <= 100M"],
    )


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
