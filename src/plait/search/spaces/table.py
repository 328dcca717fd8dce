"""The table of spaces: name → where it is declared. A user's own is a text file or a Python file."""

from __future__ import annotations

from pathlib import Path

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Table
from plait.core.user_files import class_from_file, split_path
from plait.search.space import Space
from plait.search.spacefile import read_space

SPACES: Table[type[Space]] = Table(
    "space",
    {
        "lts-gpt2": "plait.search.spaces.lts_gpt2:LtsGpt2",
        "lts-xl": "plait.search.spaces.lts_xl:LtsXl",
        "lts-opt": "plait.search.spaces.lts_opt:LtsOpt",
        "lts-proxy": "plait.search.spaces.lts_proxy:LtsProxy",
        "par": "plait.search.spaces.par:Par",
        "hybrid": "plait.search.spaces.hybrid:Hybrid",
        "small-hybrid": "plait.search.spaces.small_hybrid:SmallHybrid",
    },
    group="plait.spaces",
)
names = SPACES.names


def load_space(given: str) -> Space:
    """A space of the table, a text file of `plait.search.spacefile`, or `my_space.py[:Class]`."""
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
