"""What a preset is: a published architecture under a name, as spec text, with where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A published architecture.

    name    what `preset:NAME` and the command line take; case does not matter
    text    the architecture in the spec language
    family  the paper's short name: lts, par, mad, fox, gpt2
    source  the paper's table or section
    what    one line for a listing, with whatever the text cannot say (evaluation settings, errata)
    """

    name: str
    text: str
    family: str
    source: str
    what: str


#: The presets of a family by name. Texts are written when asked for, not when listed.
Catalog = Mapping[str, Callable[[], Preset]]
