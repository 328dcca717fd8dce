"""The table of search spaces, the two general ones (`hybrid`, `small-hybrid`), and users' own spaces from a Python file
or a short text file:

    layers: 4..12
    d: 128..512 step 64
    header: vocab=8192 tie=true
    mixers: [attn[heads=4|8], gla, mamba[state=*]]
    channel: [swiglu[inner=256..1024 step 128], none]
    constraints:
      - inner >= int(1.7 * d)
      - decoder_params <= 20M
      - state <= 2MB

Lists are written in brackets, or one item per line after a dash, as in YAML. `alike: true` makes all layers of a
candidate the same, `seq_len` and `context` (tokens of context before it) set the length at which costs are counted, and
any other key of a spec's header can vary (`d_embed: 128|256`). `files: [my_mixer.py]` loads your own mixers from files
in the same folder.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Entry, Table, accept_subclass, require_known, split_path
from plait.core.user_files import class_from_file
from plait.model.user_mixers import load_mixer
from plait.space.declaration import Declaration, split_list
from plait.space.space import Space
from plait.spec import Header

REQUIRED = ("layers", "d", "mixers")
KEYS = (*REQUIRED, "channel", "header", "alike", "constraints", "seq_len", "context", "about", "name", "files")
ALIASES = {"rules": "constraints", "seq": "seq_len", "memory": "context"}  # keys of earlier releases


def read_space(text: str, name: str, folder: Path = Path()) -> Space:
    """The space that a text declares, called `name` unless the text names it. Its files are looked up in the folder."""
    values = _read_lines(text, name)
    varying = [f.name for f in dataclasses.fields(Header) if f.name != "d"]
    for key in values:
        if key not in KEYS and key not in varying:
            near = did_you_mean(key, (*KEYS, *varying))
            raise UserError(f"{name}: unknown key '{key}'.{near} Known: {', '.join(KEYS)}, and the keys of a header.")
    if missing := [key for key in REQUIRED if key not in values]:
        raise UserError(f"{name}: a space needs {', '.join(REQUIRED)}; missing: {', '.join(missing)}.")
    for file in split_list(values.get("files", "")):
        load_mixer(folder / file)
    slots = [split_list(values[key]) for key in ("mixers", "channel") if key in values]
    return Space(
        Declaration(
            name=values.get("name", name),
            layers=_alternatives(values["layers"]),
            d=_alternatives(values["d"]),
            slots=slots,
            header=values.get("header", ""),
            vary={key: _alternatives(text) for key, text in values.items() if key in varying},
            alike=_truth(values.get("alike", "false"), name),
            constraints=_constraints(values.get("constraints", "")),
            seq=_number(values, "seq_len", 1024, name),
            memory=_number(values, "context", 0, name),
            about=values.get("about", ""),
        )
    )


def require_chosen(space: Space, files: Sequence[str | Path]) -> None:
    """Refuse users' mixers that the space does not choose from: no model would have them, and nothing would say so."""
    for file in files:
        name = load_mixer(file).name
        if name not in space.mixer_sources:
            raise UserError(
                f"--mixers {file}: {space.name} does not choose {name}, so no model would have it. Give --space a file "
                f"that lists it, such as one with layers: 2..4, d: 128, mixers: [{name}, attn] and channel: [swiglu]."
            )


def _read_lines(text: str, name: str) -> dict[str, str]:
    """Key → value; items after dashes are joined by commas, constraints by newlines."""
    values: dict[str, str] = {}
    key = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        if content.startswith("- "):
            if not key:
                raise UserError(f"{name}, line {number}: an item without a key above it.")
            values[key] += content[2:].strip().strip("\"'") + ("\n" if key == "constraints" else ",")
            continue
        key, colon, value = (piece.strip() for piece in content.partition(":"))
        key = ALIASES.get(key, key)
        if not colon:
            raise UserError(f"{name}, line {number}: '{content[:60]}' is neither KEY: VALUE nor - ITEM.")
        if key in values:
            raise UserError(f"{name}, line {number}: '{key}' is given twice.")
        values[key] = value.strip("\"'")
    return values


def _alternatives(text: str) -> str:
    """`[32, 64]`, a YAML list, as `32|64`."""
    return "|".join(split_list(text)) if text.startswith("[") else text


def _constraints(text: str) -> list[str]:
    """Constraints, one per line or separated by commas; commas inside parentheses (min, max) do not separate."""
    return [constraint for line in text.splitlines() for constraint in split_list(line)]


def _truth(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise UserError(f"{name}: alike is true or false, not '{text}'.")
    return text == "true"


def _number(values: dict[str, str], key: str, default: int, name: str) -> int:
    text = values.get(key, str(default))
    if not text.isdecimal():
        raise UserError(f"{name}: {key} is a number of tokens, not '{text}'.")
    return int(text)


SPACES: Table[type[Space]] = Table(
    "space",
    {
        "lts-gpt2": Entry("plait.papers.spaces:LtsGpt2", "GPT-2 models of LiteTransformerSearch"),
        "lts-xl": Entry("plait.papers.spaces:LtsXl", "Transformer-XL models of LiteTransformerSearch"),
        "lts-opt": Entry("plait.papers.spaces:LtsOpt", "LiteTransformerSearch around OPT-350M, 152,064 models"),
        "lts-proxy": Entry(
            "plait.papers.spaces:LtsProxy",
            "Transformer-XL models with varying embeddings, where proxies are compared",
        ),
        "par": Entry("plait.papers.spaces:Par", "PAR Transformer: 32 blocks, each attention, feed-forward or nothing"),
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
    accept=accept_subclass("plait.space.space:Space"),
)
names = SPACES.names


def load_space(name: str, others: Sequence[str] = ()) -> Space:
    """A space of the table, of a text file in the format above, or of a Python file: `my_space.py[:Class]`. `others`:
    names that the caller knows beyond the table, for the message."""
    if name in SPACES:
        return SPACES.load(name)()
    file = split_path(name)
    if file is not None:
        mine = class_from_file(file[0], Space, file[1])
        if not hasattr(mine, "declaration"):
            raise UserError(f"{file[0]}: {mine.__name__} has no `declaration`; add it as a class attribute.")
        return mine()
    path = Path(name)
    if os.path.isfile(path):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise UserError(f"{path} cannot be read as text; a space is a short text file or a .py file.") from None
        return read_space(text, path.stem, path.parent)
    SPACES.discover(name)
    require_known(name, [*others, *SPACES], "there is no space or file", "; or give a file")
    return SPACES.load(name)()


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
    "kda[head_dim=32|64]",
    "deltaproduct[head_dim=32|64,steps=2]",
    "rwkv7[head_dim=32|64]",
    "retnet[heads=4]",
    "mla[heads=4|8]",
    "mamba[state=*,expand=*]",
    "mamba2[state=*,expand=*,head_dim=32|64]",
    "mamba3[state=32|64,expand=1|2,head_dim=32|64]",
    "hyena[state=*]",
    "mh-hyena[heads=*]",
    "sparse-attn[heads=4|8]",
    "(attn[heads=4] | mamba2[state=16,head_dim=32])",
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
    """The default space of `plait design`: one setting per mixer, so that profiling takes a minute."""

    declaration: ClassVar[Declaration] = Declaration(
        name="small-hybrid",
        about="2 to 6 layers over bytes, each any of five sequence mixers with a SwiGLU",
        layers="2..6",
        d="64..256 step 64",
        slots=[SMALL_SEQUENCE_MIXERS, SMALL_CHANNEL_MIXERS],
        header="vocab=256 tie=true",
        seq=256,
    )
