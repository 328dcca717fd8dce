"""Matching state and parameters: MAD's settings come out, and what cannot be reached is said."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.model.cost import decoder_params, model_cost, total_state
from plait.model.resize import match

MAD = [
    ("(gla swiglu)x2", "(gla[heads=8] swiglu)x2"),
    ("(mamba)x4", "(mamba[state=4])x4"),
    ("(hyena swiglu)x2", "(hyena swiglu)x2"),
    ("(hyena[state=50] swiglu)x2", "(hyena swiglu)x2"),
    ("(mh-hyena swiglu)x2", "(mh-hyena swiglu)x2"),
    ("(mh-hyena[state=7] moe)x2", "(mh-hyena moe)x2"),
    ("(hyena-experts[state=3] moe)x2", "(hyena-experts moe)x2"),
]


@pytest.mark.parametrize(("given", "wanted"), MAD)
def test_state_gives_mads_settings(given: str, wanted: str) -> None:
    found = match(f"d=128 vocab=16 | {given}", state=4096)
    assert found.text == architecture(f"d=128 vocab=16 | {wanted}").text
    assert model_cost(found).fixed_state == 4096


def test_state_is_sought_before_heads_and_heads_when_it_must() -> None:
    assert match("d=128 vocab=16 | mh-hyena[heads=8]", state=8192).text.endswith("mh-hyena[heads=8,state=4]")
    # One mode in 16 heads of 8 × 8 is 1024; less than that needs more heads.
    assert match("d=128 vocab=16 | mh-hyena", state=512).text.endswith("mh-hyena[heads=32,state=1]")


def test_different_mixers_keep_their_shares() -> None:
    found = match("d=128 vocab=16 | gla swiglu mamba hyena[state=32] swiglu", state=6144)
    shares = [layer.cost(128, 1).fixed_state for layer in found.layers if layer.kind == "sequence"]
    assert shares == [2048, 2048, 2048]


def test_attention_is_left_alone() -> None:
    found = match("d=128 vocab=16 | hyena swiglu attn[heads=16] swiglu", state=4096)
    assert found.text == "d=128 vocab=16 | hyena[state=32] swiglu attn[heads=16] swiglu"


@pytest.mark.parametrize("params", [300_000, 393_216, 1_000_000])
@pytest.mark.parametrize("given", ["(gla swiglu)x2", "(hyena moe)x2", "mh-hyena swiglu hyena mlp", "(attn mlp)x3"])
def test_parameters_within_one_percent_and_nothing_else_changed(given: str, params: int) -> None:
    before = architecture(f"d=128 vocab=16 | {given}")
    found = match(before, params=params)
    assert abs(model_cost(found).decoder_params / params - 1) <= 0.01
    assert model_cost(found).fixed_state == model_cost(before).fixed_state
    for old, new in zip(before.layers, found.layers, strict=True):
        assert old.name == new.name
        assert old == new or old.kind == "channel"


def test_both_at_once() -> None:
    found = match("d=128 vocab=16 | (gla swiglu)x2", state=4096, params=400_000)
    assert model_cost(found).fixed_state == 4096
    assert abs(model_cost(found).decoder_params / 400_000 - 1) <= 0.01


def test_without_channel_mixers_the_expansion_gives_the_parameters() -> None:
    found = match("d=128 vocab=16 | (mamba)x4", state=4096, params=570_000)
    assert abs(model_cost(found).decoder_params / 570_000 - 1) <= 0.01
    assert abs(model_cost(found).fixed_state / 4096 - 1) <= 0.01


def test_a_tolerance_of_zero_asks_for_the_very_number() -> None:
    assert total_state(match("d=128 vocab=16 | (gla swiglu)x2", state=4096, tolerance=0)) == 4096
    with pytest.raises(UserError, match="nearest reachable is 4,096"):
        match("d=128 vocab=16 | (gla swiglu)x2", state=4097, tolerance=0)


def test_what_matches_is_left_alone() -> None:
    arch = architecture("d=128 vocab=16 | (hyena swiglu)x2")
    assert match(arch, state=4080, params=decoder_params(arch) + 1000) == arch


@pytest.mark.parametrize(
    ("given", "targets", "message"),
    [
        ("hyena swiglu", {"state": 1000}, r"within 1.0 % of 1,000; the nearest reachable is 1,024: .*hyena\[state=8\]"),
        ("hyena swiglu", {"params": 1000}, r"nearest reachable is 71,680: .*swiglu\[inner=1\]"),
        ("attn mlp", {"state": 4096}, "no layer has a fixed state"),
        ("hyena", {"params": 100}, "no layer has an inner width or an expansion"),
        ("hyena", {}, "nothing to match"),
        ("hyena", {"state": 0}, "must be at least 1"),
    ],
)
def test_what_cannot_be_reached_is_said(given: str, targets: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        match(f"d=128 vocab=16 | {given}", **targets)


@pytest.mark.parametrize("header", ["", " norm=layer", " final_norm=false"])
def test_counts_agree_with_the_models(header: str) -> None:
    arch = architecture(
        f"d=64 vocab=16{header} | gla swiglu mamba identity xl-attn[shared_bias] xl-attn[shared_bias] moe"
    )
    assert decoder_params(arch) == model_cost(arch).decoder_params
    assert total_state(arch) == model_cost(arch).fixed_state
