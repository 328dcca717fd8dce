"""The table of spaces: name → where it is declared. A user's own is a text file or a Python file."""

from __future__ import annotations

from pathlib import Path

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Entry, Table
from plait.core.user_files import class_from_file, split_path
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
            "plait.space.hybrid:Hybrid",
            "every layer chooses its sequence mixer, that mixer's options, its channel mixer or none",
        ),
        "small-hybrid": Entry(
            "plait.space.hybrid:SmallHybrid",
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
