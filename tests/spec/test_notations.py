"""Other people's notations, written and read back."""

from __future__ import annotations

import json

import pytest

from plait.core.errors import UserError
from plait.spec import load, parse, presets
from plait.spec.errors import SpecError
from plait.spec.notations import CHANNEL, written


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
    every_fourth = {"layers": list(range(3, 48, 4))}
    assert found == {"model_type": "gated_deltanet", "num_hidden_layers": 48, "attn": every_fourth}
    assert json.loads(written(layers("smollm2-135m"), "fla")) == {"model_type": "transformer", "num_hidden_layers": 30}


@pytest.mark.parametrize(
    ("name", "notation"),
    [
        ("qwen3-next", "huggingface"),
        ("qwen3-next", "fla"),
        ("rwkv-7-1.5b", "fla"),
        ("smollm2-135m", "fla"),
        ("deepseek-v3", "fla"),
        ("mamba2-1.3b", "huggingface"),
        ("nemotron-h-8b", "huggingface"),
        ("falcon-h1-7b", "huggingface"),
    ],
)
def test_what_is_written_is_read_back(name, notation):
    """Sequence mixers, in their places: a notation says nothing of what stands behind them."""
    kinds = [layer.name for layer in layers(name) if layer.name not in CHANNEL]
    assert [layer.name for layer in load(written(layers(name), notation)).layers if layer.name not in CHANNEL] == kinds


@pytest.mark.parametrize(
    ("family", "mixer"),
    [("qwen3_next", "gated-deltanet"), ("kimi_linear", "kda"), ("nemotron_h", "mamba2"), ("minimax", "retnet")],
)
def test_which_recurrent_layer_a_model_has(family, mixer):
    """transformers has one word for all of them."""
    spec = load(json.dumps({"model_type": family, "layer_types": ["linear_attention", "attention"]}))
    assert [layer.name for layer in spec.layers[::2]] == [mixer, "attn"]


def test_attention_by_an_index_is_no_linear_attention():
    spec = parse("d=64 vocab=8 | sparse-attn mlp xl-attn mlp")
    words = ["indexed_attention", "full_attention"]
    assert json.loads(written(spec.layers, "huggingface")) == words
    assert [layer.name for layer in load(json.dumps(words)).layers[::2]] == ["sparse-attn", "attn"]


@pytest.mark.parametrize(
    ("name", "notation", "message"),
    [
        ("kimi-linear", "megatron", "no symbol for kda"),
        ("kimi-linear", "fla", "this has kda, mla"),
        ("hymba-1.5b", "fla", "no parallel mixers in one layer"),
        ("mad-hyena-swiglu", "fla", "no model of hyena"),
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
    found = {"model_type": "gla", "num_hidden_layers": 6, "attn": {"layers": [2, 5]}}
    assert json.loads(written(spec.layers, "fla")) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention"]}, "1 layer types for 2 layers"),
        ({"layer_types": ["full_attention", "ring"]}, "no layer type ring"),
        ({"model_type": "gla", "attn": {"layers": [7]}}, "not among the 2"),
        ({"hidden_size": "wide"}, "whole numbers"),
        ({"layer_types": "full_attention"}, "must be a list of words"),
    ],
)
def test_a_configuration_that_cannot_be_read(change, message):
    with pytest.raises(SpecError, match=message):
        load(json.dumps({"hidden_size": 64, "num_hidden_layers": 2, **change}))
