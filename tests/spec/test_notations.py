"""Other people's notations, written and read back."""

from __future__ import annotations

import json

import pytest

from plait.core.errors import UserError
from plait.spec import parse, presets
from plait.spec.errors import SpecError
from plait.spec.notations import written


def layers(name):
    return parse(presets.lookup(name)).layers


def test_nemotron_h_is_the_pattern_of_its_report():
    pattern = written(layers("nemotron-h-8b"), "megatron")
    assert pattern == "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    back = parse(f"d=64 vocab=8 | megatron:{pattern}").layers
    assert [layer.name for layer in back] == [layer.name for layer in layers("nemotron-h-8b")]


def test_what_a_symbol_stands_for_can_be_said():
    spec = parse("d=64 vocab=8 | megatron[M=mamba2[state=16],E=moe[experts=4]]:(ME)x2 *-")
    assert [str(layer) for layer in spec.layers] == [
        "mamba2[state=16]", "moe[experts=4]", "mamba2[state=16]", "moe[experts=4]", "attn", "mlp",
    ]  # fmt: skip


def test_layer_types():
    assert written(layers("qwen3-next"), "layer_types") == json.dumps(
        (["linear_attention"] * 3 + ["full_attention"]) * 12
    )
    assert json.loads(written(layers("gpt-oss-20b"), "layer_types")) == ["sliding_attention", "full_attention"] * 12


def test_flash_linear_attention():
    found = json.loads(written(layers("qwen3-next"), "fla"))
    assert found == {"mixer": "gated-deltanet", "attn": {"layers": list(range(3, 48, 4))}}


@pytest.mark.parametrize(
    ("name", "notation", "message"),
    [
        ("kimi-linear", "megatron", "no symbol for kda"),
        ("kimi-linear", "fla", "this has kda, mla"),
        ("kimi-linear", "megatorn", "Did you mean 'megatron'"),
    ],
)
def test_what_cannot_be_written(name, notation, message):
    with pytest.raises(UserError, match=message):
        written(layers(name), notation)


def test_an_unknown_symbol():
    with pytest.raises(SpecError, match="unknown block 'D'"):
        parse("d=64 vocab=8 | megatron:M-D")
