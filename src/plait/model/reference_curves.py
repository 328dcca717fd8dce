"""The library of complete learning curves included in plait, and how candidates relate to it; no torch.

    known = reference_known({"a": architecture("attn …"), "b": …})
    extrapolate(observations, budgets, "library", known=known)

`reference_curves.json` is made from complete trainings (`benchmarks/verdict.py --write`): some thirty architectures of
one size on three texts, and the estimated variation of their curves. A candidate whose layers match a library
architecture, at any width, is known directly; all others are described by their traits. The benchmark also measures how
well the library generalises to new texts and architectures; for much larger models this was not measured. The library
is a prior that a race's observations update (`curve_posterior`); the way `hierarchical` forecasts without it.

Traits are a few numbers describing an architecture that predict the shape of its learning curve. They are derived from
the declared cost of every mixer, so users' mixers have them as well. They describe what copying from the context
requires: a layer that sees the whole context (its KV cache grows with the sequence) after one that sees neighbouring
tokens (a short convolution or token shift). `analysis.curve_library` estimates the effect of each trait at each budget
from complete trainings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from plait.analysis.curve_library import Known, Library
from plait.analysis.curve_posterior import Covariances
from plait.analysis.curve_screening import ScreenedKnown, ScreenedLibrary, Screenings
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost

PATH = Path(__file__).with_suffix(".json")
TEXTS = {"builtin:stdlib": "stdlib"}  # what users can open of the library's texts; bytes
SAME_SIZE = 1.5  # parameters over those of the library's architectures, or their inverse, at most
#: Options that set the size of a layer, not what it does.
_SIZES = re.compile(r"\b(heads|kv_heads|head_dim|inner|d_ff|state|expand|decay_rank|mix_rank|gate_rank)=[^,\]]*,?")


def pattern(arch: Architecture) -> str:
    """The layers without their sizes, equal for the same architecture at different widths."""
    layers = arch.text.split("|", 1)[1]
    return re.sub(r"\[,?\]", "", re.sub(r",\]", "]", _SIZES.sub("", layers))).strip()


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return document


@lru_cache(maxsize=1)
def reference_library() -> Library:
    """The library, with architectures named by their patterns."""
    document = _document()
    specs = [architecture(row["spec"]) for row in document["architectures"]]
    learnt = {name: np.array(document[f"{name}_covariance"], np.float64) for name in ("alike", "own", "text", "seeds")}
    return Library(
        [pattern(arch) for arch in specs],
        np.array([traits(arch) for arch in specs]),
        [float(b) for b in document["budgets"]],
        np.array([row["deviations"] for row in document["architectures"]], np.float64).swapaxes(0, 1),
        np.array(document["curves"], np.float64),
        learnt["seeds"],
        int(document["runs"]),
        Covariances(
            learnt["alike"],
            learnt["own"],
            learnt["text"],
            np.array([row["weight"] for row in document["architectures"]], np.float64),
        ),
        float(document["width"]),
        document["texts"],
    )


def reference_known(candidates: Mapping[str, Architecture]) -> Known:
    """Prior knowledge about these candidates from the library."""
    lib = reference_library()
    same = {name: pattern(arch) for name, arch in candidates.items() if pattern(arch) in lib.names}
    return Known(lib, {name: traits(arch) for name, arch in candidates.items()}, same)


def library_text(data: str, tokens_per_step: int, candidates: Mapping[str, Architecture]) -> str:
    """The name of the library's text that `data` is, where candidates train on it as the library's architectures did:
    with as many tokens per step and about as many parameters. Otherwise empty: a mean curve holds for no other size."""
    document = _document()
    provenance = document["provenance"]
    wanted = model_cost(architecture(document["architectures"][0]["spec"])).total_params
    sizes = [model_cost(arch).total_params / wanted for arch in candidates.values()]
    alike = all(1 / SAME_SIZE <= size <= SAME_SIZE for size in sizes)
    same = alike and tokens_per_step == provenance["batch"] * provenance["seq_len"]
    return TEXTS.get(data, "") if same else ""


@lru_cache(maxsize=8)
def screened_library(steps: int) -> ScreenedLibrary:
    """The library with the screenings of its architectures after so many steps."""
    kept = _document()["screenings"]
    loss_TAS, noise_S = np.array(kept["loss"], np.float64), np.array(kept["noise"], np.float64)
    screenings = Screenings(kept["steps"], loss_TAS, noise_S, kept["runs"], kept["tokens_per_step"])
    return replace(ScreenedLibrary.beside(reference_library(), screenings, steps), width=float(kept["width"]))


def screened_known(candidates: Mapping[str, Architecture], steps: int, screened: Mapping[str, float]) -> ScreenedKnown:
    """Prior knowledge about candidates whose screenings of so many steps had these log losses."""
    known = reference_known(candidates)
    return ScreenedKnown(screened_library(steps), known.traits, known.same, screened=screened)


TRAITS = (
    "full",  # fraction of sequence mixers that see the whole context without a forget gate
    "forgetting",  # fraction that see the whole context through a forget gate
    "near",  # fraction with a short convolution or token shift
    "any full",
    "full after near",  # fraction of the full ones that have a near one at or before them
    "full first",  # whether the first sees the whole context but has no short convolution or shift
    "blind",  # fraction that are recurrences without a short convolution or shift
    "state",  # ln(1 + numbers of recurrent state per channel of the model)
    "depth",  # ln of the number of mixers
)
SEQ = 256  # sequence length at which growth of a KV cache is tested


def traits(architecture: Architecture) -> list[float]:
    """The traits of an architecture, in the order of `TRAITS`."""
    d = architecture.header.d
    layers = [_layer_traits(options, d) for options in architecture.layers if options.kind == "sequence"]
    if not layers:
        return [0.0] * (len(TRAITS) - 1) + [math.log(len(architecture.layers))]
    full = [place for place, (whole, gated, _, _) in enumerate(layers) if whole and not gated]
    near = [place for place, (_, _, close, _) in enumerate(layers) if close]
    after = [place for place in full if near and near[0] <= place]
    first_whole, _, first_close, _ = layers[0]
    return [
        len(full) / len(layers),
        sum(whole and gated for whole, gated, _, _ in layers) / len(layers),
        len(near) / len(layers),
        float(bool(full)),
        len(after) / len(full) if full else 0.0,
        float(first_whole and not first_close),
        sum(blind for *_, blind in layers) / len(layers),
        math.log1p(sum(float(options.cost(d, SEQ).fixed_state) for options in architecture.layers) / d),
        math.log(len(architecture.layers)),
    ]


def _layer_traits(options: MixerOptions, d: int) -> tuple[bool, bool, bool, bool]:
    """(sees the whole context, has a forget gate, sees neighbours, is a recurrence that does not see neighbours)."""
    cost, longer = options.cost(d, SEQ), options.cost(d, 2 * SEQ)
    close = bool(cost.conv_state > 0)
    held = (*cost.params, *(part.rpartition(": ")[2] for part in cost.shared))
    gated = "forget gate" in held
    return (
        bool(longer.kv_cache > cost.kv_cache) or options.reads == "keys",
        gated,
        close,
        bool(cost.fixed_state > 0) and not close,
    )
