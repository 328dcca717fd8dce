"""Other people's notations, written and read back."""

from __future__ import annotations

import json

import pytest

from plait.core.errors import UserError
from plait.spec import load, parse, presets
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
        ("hymba-1.5b", "fla", "no parallel mixers in one layer"),
        ("kimi-linear", "megatorn", "Did you mean 'megatron'"),
    ],
)
def test_what_cannot_be_written(name, notation, message):
    with pytest.raises(UserError, match=message):
        written(layers(name), notation)


def test_an_unknown_symbol():
    with pytest.raises(SpecError, match="unknown block 'Q'"):
        parse("d=64 vocab=8 | megatron:M-Q")


def test_a_configuration_of_hugging_face_is_read():
    kinds = ["linear_attention", "sliding_attention", "full_attention", "hybrid"]
    config = {
        "model_type": "qwen3_next", "hidden_size": 64, "vocab_size": 99, "num_hidden_layers": 4, "layer_types": kinds,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 128,
        "linear_key_head_dim": 16, "intermediate_size": 96, "tie_word_embeddings": True, "rope_theta": 500000.0,
    }  # fmt: skip
    attention = "attn[head_dim=32,heads=4,kv_heads=2,theta=500000.0"
    spec = load(json.dumps(config))
    assert [str(layer) for layer in spec.layers[::2]] == [
        "gated-deltanet[head_dim=16]", f"{attention},window=128]", f"{attention}]", f"({attention}] | mamba2)",
    ]  # fmt: skip
    assert {str(layer) for layer in spec.layers[1::2]} == {"swiglu[inner=96]"}
    assert (spec.header.d, spec.header.vocab, spec.header.tie) == (64, 99, True)
    assert json.loads(written(spec.layers, "huggingface")) == kinds


def test_a_configuration_of_flash_linear_attention_is_read():
    config = {"model_type": "gla", "hidden_size": 64, "vocab_size": 99, "num_hidden_layers": 6, "num_heads": 4}
    spec = load(json.dumps(config | {"attn": {"layers": [2, 5], "num_heads": 8, "window_size": 32}}))
    assert [str(layer) for layer in spec.layers[::2]] == ["gla[heads=4]"] * 2 + ["attn[heads=8,window=32]"] + [
        "gla[heads=4]"
    ] * 2 + ["attn[heads=8,window=32]"]
    assert json.loads(written(spec.layers, "fla")) == {"mixer": "gla", "attn": {"layers": [2, 5]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention"]}, "1 layer types for 2 layers"),
        ({"layer_types": ["full_attention", "ring"]}, "no layer type ring"),
        ({"model_type": "gla", "attn": {"layers": [7]}}, "not among the 2"),
        ({"hidden_size": "wide"}, "whole numbers"),
    ],
)
def test_a_configuration_that_cannot_be_read(change, message):
    with pytest.raises(SpecError, match=message):
        load(json.dumps({"hidden_size": 64, "num_hidden_layers": 2, **change}))
