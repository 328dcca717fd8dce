"""The library that comes with plait: whole, in order, and found by what an architecture is, not by how wide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_modules import load_benchmark

from plait.analysis.curve_screening import Screenings
from plait.analysis.learning_curve import extrapolate
from plait.model.architecture import architecture
from plait.model.reference_curves import (
    PATH,
    TRAITS,
    library_text,
    pattern,
    reference_known,
    reference_library,
)

truth_tables = load_benchmark("truth_tables")
library_document, read_tables = truth_tables.library_document, truth_tables.read_tables

#: Found by iteration: equal to the last digits but one on every machine.
_LEARNT = ("alike_covariance", "own_covariance", "text_covariance", "seeds_covariance", "architectures")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_the_library_is_that_of_the_truth_table() -> None:
    kept = json.loads(PATH.read_text(encoding="utf-8"))
    path = RESULTS / kept["provenance"]["table"]
    document = json.loads(path.read_text(encoding="utf-8"))
    specs = {row["name"]: row["spec"] for row in document["architectures"]}
    widths = kept["width"], kept["screenings"]["width"]
    again = library_document(read_tables(path), specs, kept["provenance"], *widths, _screenings(kept))
    assert {**again, **dict.fromkeys(_LEARNT)} == {**kept, **dict.fromkeys(_LEARNT)}
    for name in _LEARNT[:-1]:
        np.testing.assert_allclose(again[name], kept[name], atol=2e-6)
    for one, other in zip(again["architectures"], kept["architectures"], strict=True):
        assert (one["spec"], one["deviations"]) == (other["spec"], other["deviations"])
        assert one["weight"] == pytest.approx(other["weight"], abs=0.01)


def _screenings(kept: dict[str, Any]) -> Screenings:
    found = kept["screenings"]
    loss_TAS, noise_S = np.array(found["loss"]), np.array(found["noise"])
    return Screenings(found["steps"], loss_TAS, noise_S, found["runs"], found["tokens_per_step"])


def test_the_screenings_are_those_that_were_trained() -> None:
    """Means over seeds of the ln loss of bytes that repeat the context, in the library's order: with all pieces of the
    text copied up to 2048 steps, and every second piece at 4096."""
    kinds = {1024: "short", 2048: "short", 4096: "some"}
    kept = json.loads(PATH.read_text(encoding="utf-8"))
    table = json.loads((RESULTS / kept["provenance"]["table"]).read_text(encoding="utf-8"))
    names = {architecture(row["spec"]).text: row["name"] for row in table["architectures"]}
    losses: dict[tuple[str, str, int], dict[int, float]] = {}
    for file in kept["provenance"]["screenings"]:
        for row in json.loads((RESULTS / file).read_text(encoding="utf-8"))["setups"]:
            for run in row["runs"] if row["setup"].startswith("tiny-") else []:
                for tokens, parts in run["annealed"]:
                    steps = 16 * tokens // kept["screenings"]["tokens_per_step"]
                    if run["kind"] == kinds.get(steps):
                        by_seed = losses.setdefault((run["text"], row["architecture"], steps), {})
                        by_seed[run.get("seed", 3)] = parts["repeats"]
    screenings = _screenings(kept)
    assert screenings.loss_TAS.shape == (3, len(kept["architectures"]), 3)
    for t, text in enumerate(kept["texts"]):
        for a, row in enumerate(kept["architectures"]):
            wanted = [np.log(list(losses[text, names[row["spec"]], n].values())).mean() for n in screenings.steps]
            np.testing.assert_allclose(screenings.loss_TAS[t, a], wanted, atol=1e-4)


def test_the_library_is_whole() -> None:
    lib = reference_library()
    assert len(set(lib.names)) == len(lib.names) >= 24
    assert lib.traits_AF.shape == (len(lib.names), len(TRAITS))
    assert lib.deviation_TAB.shape == (3, len(lib.names), len(lib.budgets))
    np.testing.assert_allclose(lib.deviation_TAB.mean(axis=1), 0, atol=1e-3)
    assert lib.budgets[-1] / lib.budgets[0] >= 30


def test_an_architecture_is_known_at_any_width_and_a_new_one_by_its_traits() -> None:
    wide = architecture("d=512 vocab=50257 | (attn[heads=8] swiglu[inner=1024])x4")
    assert pattern(wide) == "(attn swiglu)x4"
    assert pattern(architecture("d=64 vocab=256 | (attn[heads=4,window=64] swiglu)x4")) == "(attn[window=64] swiglu)x4"
    known = reference_known({"wide": wide, "new": architecture("d=64 vocab=256 | (attn[heads=4] mlp)x2")})
    assert known.same == {"wide": "(attn swiglu)x4"}
    assert set(known.traits) == {"wide", "new"}


def test_it_knows_that_attention_comes_late() -> None:
    """At a million tokens attention alone is far behind a recurrence with short convolutions; at 30 M it is not."""
    known = reference_known(
        {
            "attn": architecture("d=128 vocab=256 | (attn[heads=4] mlp)x4"),
            "hyena": architecture("d=128 vocab=256 | (hyena mlp)x4"),
        }
    )
    seen = {
        "attn": {0: [(2.6e5, 3.2), (5.2e5, 2.6), (1e6, 2.1)]},
        "hyena": {0: [(2.6e5, 2.3), (5.2e5, 1.9), (1e6, 1.57)]},
    }
    early, late = (extrapolate(seen, [t], "library", known=known, reach=64).at(t) for t in (1e6, 3.3e7))
    assert early.p_best["hyena"] > 0.95
    assert late.p_best["attn"] > 0.5


def test_a_text_of_the_library_is_known_only_to_trainings_like_its_own() -> None:
    own = {"a": architecture(json.loads(PATH.read_text(encoding="utf-8"))["architectures"][3]["spec"])}
    larger = {**own, "b": architecture("d=256 vocab=256 tie=true | (attn[heads=8] swiglu)x4")}
    assert library_text("builtin:stdlib", 8192, own) == "stdlib" in reference_library().texts
    assert library_text("builtin:stdlib", 2048, own) == ""
    assert library_text("builtin:stdlib", 8192, larger) == ""
    assert library_text("my.txt", 8192, own) == ""
