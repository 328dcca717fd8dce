"""Traits read off what mixers state about themselves."""

from __future__ import annotations

import math

import pytest

from plait.model.architecture import architecture
from plait.model.reference_curves import TRAITS, traits


def of(layers: str) -> dict[str, float]:
    return dict(zip(TRAITS, traits(architecture(f"d=64 vocab=256 | {layers}")), strict=True))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("(attn[heads=4] mlp)x4", {"full": 1, "any full": 1, "near": 0, "full after near": 0, "full first": 1}),
        ("(attn[heads=4,kv_shift] mlp)x4", {"full": 1, "near": 1, "full after near": 1, "full first": 0}),
        ("(attn[heads=4,window=32] mlp)x4", {"full": 0, "any full": 0, "full first": 0}),
        ("(fox[heads=4] mlp)x2", {"full": 0, "forgetting": 1, "any full": 0}),
        ("(mamba2[head_dim=32])x3 attn[heads=4]", {"full": 0.25, "near": 0.75, "full after near": 1, "full first": 0}),
        ("attn[heads=4] (mamba2[head_dim=32])x3", {"full": 0.25, "near": 0.75, "full after near": 0, "full first": 1}),
        ("(gla mlp)x4", {"blind": 1, "near": 0}),
        ("(gated-deltanet[head_dim=32] mlp)x2", {"blind": 0, "near": 1}),
        ("(gated-deltanet[head_dim=32,conv=1] mlp)x2", {"blind": 1, "near": 0}),
        ("(mlp)x3", {"full": 0, "near": 0, "blind": 0}),
    ],
)
def test_what_mixers_see(layers: str, expected: dict[str, float]) -> None:
    found = of(layers)
    assert {name: found[name] for name in expected} == expected


def test_state_is_counted_per_channel() -> None:
    """Four heads of 16 × 16 in each of two layers, over 64 channels."""
    assert of("(gla[heads=4] mlp)x2")["state"] == pytest.approx(math.log1p(2 * 4 * 16 * 16 / 64))
    assert of("(attn[heads=4] mlp)x2")["state"] == 0


def test_depth_counts_mixers_and_width_counts_nothing() -> None:
    assert of("(attn[heads=4] mlp)x4")["depth"] == pytest.approx(math.log(8))
    wide = traits(architecture("d=256 vocab=1000 | (attn[heads=8] mlp)x4"))
    assert wide == traits(architecture("d=64 vocab=256 | (attn[heads=4] mlp)x4"))


def test_sharing_weights_changes_nothing_that_a_mixer_sees() -> None:
    apart, shared = (traits(architecture(f"d=64 | ({layer} swiglu)x4")) for layer in ("fox", "fox[share=a]"))
    assert shared == apart
