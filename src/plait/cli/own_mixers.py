"""Mixers of the user's own among what a command is given: `plait measure my_mixer.py "d=128 | (my-mixer mlp)x4"`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from plait.core.user_files import split_path

if TYPE_CHECKING:
    from plait.arch import Architecture, MixerOptions


def read_architectures(given: Sequence[str]) -> list[Architecture]:
    """The specs given, after all mixers given. Where there are mixers alone, each stands for two blocks of it."""
    from plait.arch import architecture

    mixers = load_mixers(text for text in given if split_path(text))
    specs = [text for text in given if not split_path(text)]
    return [architecture(spec) for spec in specs or map(_blocks, mixers)]


def load_mixers(files: Iterable[str]) -> list[MixerOptions]:
    """Run the files, which imports torch; from then on specs may name their mixers."""
    given = list(files)
    if not given:
        return []
    from plait.check.load import load_mixer

    return [load_mixer(file) for file in given]


def _blocks(options: MixerOptions) -> str:
    return f"({options.name} swiglu)x2" if options.kind == "sequence" else f"(attn {options.name})x2"
