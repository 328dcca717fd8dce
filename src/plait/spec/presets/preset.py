"""What a preset is: a published architecture under a name, as spec text, with where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preset:
    """A published architecture.

    name    what `preset:NAME` and the command line take; case does not matter
    text    the architecture in the spec language
    family  the paper's short name: lts, par, mad, fox, gpt2, opt
    source  the paper's table or section
    what    one line for a listing, with whatever the text cannot say (evaluation settings, errata)
    printed millions of parameters that the paper prints for it, `total` and `active`, where they are not its own
    erratum why they are not
    """

    name: str
    text: str
    family: str
    source: str
    what: str
    printed: Mapping[str, int] = field(default_factory=dict)
    erratum: str = ""


#: The presets of a family by name. Texts are written when asked for, not when listed.
Catalog = Mapping[str, Callable[[], Preset]]
