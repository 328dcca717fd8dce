"""Compositions of mixers: names, contents, and models of the probe's size."""

from __future__ import annotations

import pytest

from plait.designing.compositions import compositions, few_of, mixers_of, pattern_name, probe_candidate
from plait.model.cost import decoder_params
from plait.probing.protocol import TOLERANCE, quick


@pytest.mark.parametrize(
    ("layers", "name"),
    [
        ("attn swiglu", "attn"),
        ("(attn swiglu)x4", "attn×4"),
        ("gla swiglu attn", "gla+attn"),
        ("(gla swiglu attn swiglu)x3", "(gla+attn)×3"),
        ("gla gla attn swiglu", "gla×2+attn"),
    ],
)
def test_names(layers: str, name: str) -> None:
    assert pattern_name(f"d=64 vocab=256 | {layers}") == name


def rows(*layers: str) -> list[dict[str, object]]:
    """The first is the largest."""
    return [{"spec": f"d=64 vocab=256 | {text}", "size": 100 - at} for at, text in enumerate(layers)]


def test_families_are_sets_of_mixers_the_largest_first() -> None:
    given = rows("gla attn", "attn attn", "attn gla gla", "attn")
    found = compositions(list(reversed(given)), "size")
    assert [[row["size"] for row in composition] for composition in found] == [[100, 98], [99, 97]]


def test_the_few_are_of_different_families() -> None:
    """Attention and forgetting attention are one; the largest come first where nothing else decides."""
    given = compositions(rows("attn", "fox", "attn fox", "attn gla", "fox gla", "gla", "gla hyena", "hyena"), "size")
    found = [set(mixers_of(str(f[0]["spec"]))) for f in few_of(given, 6)]
    assert found == [{"attn"}, {"gla"}, {"hyena"}, {"attn", "gla"}, {"gla", "hyena"}, {"fox"}]
    assert len(few_of(given, 2)) == 2
    assert len(few_of(given, 99)) == len(given)


@pytest.mark.parametrize(
    "layers", ["gla[heads=2] swiglu[inner=512] attn swiglu", "(mamba2 swiglu fox mlp)x2", "(attn swiglu)x3"]
)
def test_a_mix_at_the_probes_size(layers: str) -> None:
    spec = f"d=256 vocab=256 | {layers}"
    protocol = quick()
    found = probe_candidate(spec, protocol)
    assert found.name == pattern_name(spec)
    assert found.arch.header == protocol.header
    assert mixers_of(found.arch.text) == mixers_of(spec)
    assert not found.note
    a_layer = decoder_params(probe_candidate("d=64 vocab=256 | attn swiglu", protocol).arch)
    assert decoder_params(found.arch) == pytest.approx(a_layer * len(mixers_of(spec)), rel=2 * TOLERANCE)


def test_mixers_without_swiglu_are_left_as_they_are() -> None:
    found = probe_candidate("d=64 vocab=256 | attn gla", quick())
    assert "not matched" in found.note


def test_what_mixes_no_tokens_is_of_no_family() -> None:
    found = compositions(rows("mlp mlp", "identity", "gla mlp"), "size")
    assert [[row["size"] for row in composition] for composition in found] == [[98]]
