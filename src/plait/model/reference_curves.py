"""The library of complete learning curves that comes with plait, and a candidate's place in it; no torch.

    known = reference_known({"a": architecture("attn …"), "b": …})
    extrapolate(observations, budgets, "library", known=known)

`reference_curves.json` is made of the truth table (`benchmarks/verdict.py --write`): some thirty architectures of one
size on two texts. An architecture is known if its layers are the library's, whatever its width; all others by their
traits. How much of it holds on a text or for architectures that it has not seen is measured there, too; how much of it
holds for much larger models is not: what such a race observes weighs in (`curve_process`), and a race without the
library is the way `hierarchical`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from plait.analysis.curve_library import Known, Library, library
from plait.analysis.curve_table import CurveTable
from plait.model.architecture import Architecture, architecture
from plait.model.traits import traits

PATH = Path(__file__).with_suffix(".json")
#: Options that say how large a layer is, not what it does.
_SIZES = re.compile(r"\b(heads|kv_heads|head_dim|inner|d_ff|state|expand|decay_rank|mix_rank|gate_rank)=[^,\]]*,?")


def pattern(arch: Architecture) -> str:
    """The layers without their sizes: what is the same architecture at another width."""
    layers = arch.text.split("|", 1)[1]
    return re.sub(r"\[,?\]", "", re.sub(r",\]", "]", _SIZES.sub("", layers))).strip()


@lru_cache(maxsize=1)
def reference_library() -> Library:
    """Named by pattern."""
    document = json.loads(PATH.read_text(encoding="utf-8"))
    rows = [(architecture(row["spec"]), row["deviation"]) for row in document["architectures"]]
    return Library(
        [pattern(arch) for arch, _ in rows],
        np.array([traits(arch) for arch, _ in rows]),
        [float(b) for b in document["budgets"]],
        np.array([deviation for _, deviation in rows], np.float64),
        int(document["texts"]),
        int(document["runs"]),
    )


def reference_known(candidates: Mapping[str, Architecture]) -> Known:
    """What the library can tell of these candidates."""
    lib = reference_library()
    same = {name: pattern(arch) for name, arch in candidates.items() if pattern(arch) in lib.names}
    return Known(lib, {name: traits(arch) for name, arch in candidates.items()}, same)


def library_document(
    tables: Sequence[CurveTable], specs: Mapping[str, str], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """What `reference_curves.json` holds, from a truth table."""
    whole = library(tables, {name: traits(architecture(spec)) for name, spec in specs.items()})
    rows = [
        {"spec": architecture(specs[name]).text, "deviation": [round(float(x), 4) for x in deviation_B]}
        for name, deviation_B in zip(whole.names, whole.deviation_AB, strict=True)
    ]
    return {
        "provenance": dict(provenance),
        "texts": whole.texts,
        "runs": whole.runs,
        "budgets": whole.budgets,
        "architectures": rows,
    }
