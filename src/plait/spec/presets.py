"""Presets: published architectures by name, as spec texts with their sources.

`lookup` gives a preset's text, `describe` the preset with its source, `names` and `families` list them, and `suite`
names those that belong together in one experiment. A family's tables are imported when a name is looked up, and a text
is generated only when requested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Entry, Table


@dataclass(frozen=True)
class Preset:
    """A published architecture.

    name    what `preset:NAME` and the command line take; case does not matter
    text    the architecture in the spec language
    family  the paper's short name: lts, par, mad, fox, gpt2, opt, open
    source  the paper's table or section
    what    one line for a listing, with what the text cannot express (evaluation settings, errata)
    printed millions of parameters that the paper prints for it, `total` and `active`, if they are not the actual ones
    erratum why they differ
    """

    name: str
    text: str
    family: str
    source: str
    what: str
    printed: Mapping[str, int] = field(default_factory=dict)
    erratum: str = ""


#: The presets of a family by name. Texts are generated when requested, not when listed.
Catalog = Mapping[str, Callable[[], Preset]]


@dataclass(frozen=True)
class Family(Entry):
    source: str = ""  # the paper
    begins: tuple[str, ...] = ()  # prefixes of its presets' names: other names are not looked up in its tables


_OPEN_MODELS = (
    "deepseek", "falcon", "gemma", "gpt-oss", "hymba", "kimi", "llama", "mamba", "minimax", "mistral", "nemotron",
    "olmo", "qwen", "rwkv", "samba", "smollm", "zamba",
)  # fmt: skip

#: Family → the function that gives its catalog.
FAMILIES: Table[Callable[[], Catalog]] = Table(
    "family of presets",
    {
        "gpt2": Family("plait.papers.open_models:gpt2", "GPT-2 in its four sizes", "Radford et al. 2019", ("gpt2",)),
        "opt": Family(
            "plait.papers.open_models:opt",
            "OPT from 125M to 175B, without 350M",
            "Zhang et al. 2022, arXiv:2205.01068",
            ("opt",),
        ),
        "open": Family(
            "plait.papers.open_models:catalog",
            "open models of today: Llama 3, Qwen3, Qwen3-Next, Kimi Linear, gpt-oss, DeepSeek-V3, Nemotron-H …",
            "their reports and configurations",
            _OPEN_MODELS,
        ),
        "par": Family(
            "plait.papers.par.presets:catalog",
            "Transformer-XL, Sandwich and PAR Transformer, BERT and PAR BERT",
            "Mandava et al. 2020, arXiv:2009.04534",
            ("par", "txl", "sandwich", "bert", "distilbert"),
        ),
        "fox": Family(
            "plait.papers.fox.presets:catalog",
            "Forgetting Transformer (LLaMA, Pro), its ablations and its baselines",
            "Lin et al. 2025, arXiv:2503.02130",
            ("fox", "transformer", "mamba", "hgrn", "deltanet", "samba", "swa"),
        ),
        "mad": Family(
            "plait.papers.mad.presets:catalog",
            "the 21 probe architectures, the scaling families, the topologies",
            "Poli et al. 2024, arXiv:2403.17844",
            ("mad",),
        ),
        "lts": Family(
            "plait.papers.lts.presets:catalog",
            "LiteTransformerSearch: Pareto fronts for three devices, OPT, scaled baselines",
            "Javaheripi et al. 2022, arXiv:2203.02094",
            ("lts",),
        ),
    },
)
#: Suite → the function that names its presets.
SUITES: Table[Callable[[], list[str]]] = Table("suite", {"mad21": "plait.papers.mad.presets:suite"})


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
    return [name for family in FAMILIES for name in _catalog(family)[0]]


def families() -> list[dict[str, object]]:
    """One row per family: its name, paper, description, and the names of its presets."""
    lines = {name: FAMILIES.entry(name) for name in FAMILIES}
    return [
        {"family": name, "source": line.source, "what": line.what, "presets": list(_catalog(name)[0])}
        for name, line in lines.items()
        if isinstance(line, Family)
    ]


def suite(name: str) -> list[str]:
    """The presets that make up one experiment."""
    return SUITES.load(name.lower())()


def _find(name: str) -> Preset | None:
    for family in FAMILIES:
        line = FAMILIES.entry(family)
        if isinstance(line, Family) and name.lower().startswith(line.begins):
            catalog, spelling = _catalog(family)
            if (known := spelling.get(name.lower())) is not None:
                return catalog[known]()
    return None


@cache
def _catalog(family: str) -> tuple[Catalog, dict[str, str]]:
    """The family's presets, and the spelling of each name by its lower case."""
    catalog = FAMILIES.load(family)()
    return catalog, {name.lower(): name for name in catalog}
