"""The table of spaces: name → where it is declared. A user's own is a text file or a Python file.

plait's own spaces, a large one and a small: every layer chooses its sequence mixer, its channel mixer or none.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Entry, Table
from plait.core.user_files import class_from_file, split_path
from plait.space.declaration import Declaration
from plait.space.file import read_space
from plait.space.space import Space

SPACES: Table[type[Space]] = Table(
    "space",
    {
        "lts-gpt2": Entry("plait.papers.lts.spaces:LtsGpt2", "GPT-2 models of LiteTransformerSearch"),
        "lts-xl": Entry("plait.papers.lts.spaces:LtsXl", "Transformer-XL models of LiteTransformerSearch"),
        "lts-opt": Entry("plait.papers.lts.spaces:LtsOpt", "LiteTransformerSearch around OPT-350M, 152,064 models"),
        "lts-proxy": Entry(
            "plait.papers.lts.spaces:LtsProxy",
            "Transformer-XL models with varying embeddings, where proxies are compared",
        ),
        "par": Entry(
            "plait.papers.par.spaces:Par", "PAR Transformer: 32 blocks, each attention, feed-forward or nothing"
        ),
        "hybrid": Entry(
            "plait.space.table:Hybrid",
            "every layer chooses its sequence mixer, that mixer's options, its channel mixer or none",
        ),
        "small-hybrid": Entry(
            "plait.space.table:SmallHybrid",
            "hybrids over bytes that train in minutes on a processor; the default of `plait design`",
        ),
    },
    group="plait.spaces",
)
names = SPACES.names


def load_space(given: str) -> Space:
    """A space of the table, a text file of `plait.space.file`, or `my_space.py[:Class]`."""
    if given in SPACES:
        return SPACES.load(given)()
    file = split_path(given)
    if file is not None:
        mine = class_from_file(file[0], Space, file[1])
        if not hasattr(mine, "declaration"):
            raise UserError(f"{file[0]}: {mine.__name__} has no `declaration`; add it as a class attribute.")
        return mine()
    path = Path(given)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise UserError(f"{path} cannot be read as text; a space is a short text file or a .py file.") from None
        return read_space(text, path.stem, path.parent)
    SPACES.discover(given)
    if given in SPACES:
        return SPACES.load(given)()
    near = did_you_mean(given, SPACES)
    raise UserError(f"there is no space or file '{given}'.{near} Known: {', '.join(SPACES)}; or give a file.")


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
