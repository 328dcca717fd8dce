"""What a preset is: a published architecture under a name, as spec text, with where it comes from.

Published architectures by name: every one in the tables of the papers that plait builds on.

`lookup` gives a preset's text, `describe` the preset with its source, `names` and `families` list them, and `suite`
names those that belong together in one experiment. Each family is one small module of tables; it is imported when a
name is looked for, and a text is written only when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

from plait.core.errors import UserError, did_you_mean


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


__all__ = ["Preset", "describe", "families", "lookup", "names", "suite"]

# family -> (its modules, the paper, what it holds); the largest last, since a look-up goes through them in order
_FAMILIES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "gpt2": (("plait.papers.gpt2",), "Radford et al. 2019", "GPT-2 in its four sizes"),
    "opt": (("plait.papers.opt",), "Zhang et al. 2022, arXiv:2205.01068", "OPT from 125M to 175B, without 350M"),
    "par": (
        ("plait.papers.par.presets",),
        "Mandava et al. 2020, arXiv:2009.04534",
        "Transformer-XL, Sandwich and PAR Transformer, BERT and PAR BERT",
    ),
    "fox": (
        ("plait.papers.fox.presets",),
        "Lin et al. 2025, arXiv:2503.02130",
        "Forgetting Transformer (LLaMA, Pro), its ablations and its baselines",
    ),
    "mad": (
        ("plait.papers.mad.presets", "plait.papers.mad.scaling_presets"),
        "Poli et al. 2024, arXiv:2403.17844",
        "the 21 probe architectures, the scaling families, the topologies",
    ),
    "lts": (
        ("plait.papers.lts.presets",),
        "Javaheripi et al. 2022, arXiv:2203.02094",
        "LiteTransformerSearch: Pareto fronts for three devices, OPT, scaled baselines",
    ),
}

# suite -> module with a function `suite()` that names its presets
_SUITES = {"mad21": "plait.papers.mad.presets"}


def lookup(name: str) -> str | None:
    """The text of the preset called `name`, or None. Case does not matter."""
    preset = _find(name)
    return preset.text if preset else None


def describe(name: str) -> Preset:
    """The preset called `name`, with its source; a `UserError` when there is none."""
    preset = _find(name)
    if preset is None:
        raise UserError(f"there is no preset '{name}'.{did_you_mean(name, names())}")
    return preset


def names() -> list[str]:
    """The names of all presets, family by family."""
    return [name for family in _FAMILIES for name in _names(family)]


def families() -> list[dict[str, object]]:
    """One row per family: its name, paper, what it holds, and the names of its presets."""
    return [
        {"family": family, "source": source, "what": what, "presets": _names(family)}
        for family, (_, source, what) in _FAMILIES.items()
    ]


def suite(name: str) -> list[str]:
    """The presets that make up one experiment."""
    if name.lower() not in _SUITES:
        known = ", ".join(_SUITES)
        raise UserError(f"there is no suite '{name}'.{did_you_mean(name, _SUITES)} Known: {known}.")
    module = import_module(_SUITES[name.lower()])
    found: list[str] = module.suite()
    return found


def _find(name: str) -> Preset | None:
    for family in _FAMILIES:
        catalog, spelling = _catalog(family)
        if (known := spelling.get(name.lower())) is not None:
            return catalog[known]()
    return None


def _names(family: str) -> list[str]:
    return list(_catalog(family)[0])


@cache
def _catalog(family: str) -> tuple[Catalog, dict[str, str]]:
    """The family's presets, and the spelling of each name by its lower case."""
    modules = [import_module(module) for module in _FAMILIES[family][0]]
    catalog = {name: make for module in modules for name, make in module.catalog().items()}
    return catalog, {name.lower(): name for name in catalog}
