"""Mixers side by side in one layer: `(attn | mamba2)`."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.model.architecture import architecture, options_of
from plait.model.cost import model_cost
from plait.space.declaration import layers_of
from plait.spec import Layer, SpecError, from_json, from_yaml, has_header, parse, to_json, to_yaml


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(attn|mamba2)", "(attn | mamba2)"),
        ("d=64 | (attn[heads=2] | mamba2) mlp", "(attn[heads=2] | mamba2) mlp"),
        ("(attn | mamba2)x3", "(attn | mamba2)x3"),
        ("((attn | mamba2) mlp)x3", "((attn | mamba2) mlp)x3"),
        ("(attn | mamba2)[norm]x2", "((attn | mamba2)[norm])x2"),
        ("( (attn) | (gla)x1 | mlp )[canon=a, norm]", "(attn | gla | mlp)[canon=a,norm]"),
        ("d=8 # a | bar\n | (a | b) # another |", "(a | b)"),
    ],
)
def test_text(text, canonical):
    spec = parse(text)
    assert spec.text.split(" | ", 1)[1] == canonical
    assert parse(spec.text) == spec
    assert from_json(to_json(spec)) == spec
    assert from_yaml(to_yaml(spec)) == spec


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("(attn | mamba2", 1, "never closed"),
        ("(attn | )", 1, "one mixer, and one of these has 0"),
        ("(attn mlp | gla)", 1, "one mixer, and one of these has 2"),
        ("((attn | gla) | mlp)", 1, "not a parallel layer again"),
        ("d=4 | attn | mlp", 12, "second '|'"),
        ("d=64 | (attn | mamba2[stat=3])", 23, "no option 'stat'"),
        ("d=64 | (attn[heads=5] | gla)", 9, "not a multiple of heads=5"),
        ("d=64 | (mlp | swiglu)", 8, "at least one branch must be a sequence mixer"),
        ("d=64 | (attn | gla)[nrom]", 21, "Did you mean 'norm'?"),
    ],
)
def test_what_is_refused(text, column, message):
    with pytest.raises(SpecError) as caught:
        architecture(text)
    assert message in str(caught.value)
    assert caught.value.column == column


def test_headers_are_told_from_branches():
    assert has_header("d=4 | (a | b)")
    assert not has_header("(a | b)")
    assert not has_header("(a # ) |\n | b)")


def test_a_layer_by_its_branches_names():
    assert str(Layer("attn|mamba2")) == "(attn | mamba2)"
    assert options_of(Layer("attn|mamba2")).name == "attn|mamba2"
    assert options_of(Layer("parallel")).to_layer() == Layer("attn|mamba2")


def test_it_costs_what_its_branches_cost():
    apart = [model_cost(f"d=64 vocab=32 | {name}", seq=96) for name in ("attn", "gla[heads=4]", "moe[experts=4]")]
    together = model_cost("d=64 vocab=32 | (attn | gla[heads=4] | moe[experts=4])", seq=96)
    for quantity in ("total_params", "active_params", "fixed_state", "conv_state", "kv_cache"):
        assert getattr(together.layers[0], quantity, None) == sum(getattr(one.layers[0], quantity) for one in apart), (
            quantity
        )
    assert together.layers[0].total_flops == sum(one.layers[0].total_flops for one in apart)


def test_patterns_of_a_space():
    found = [str(layer.to_layer()) for layer in layers_of("(attn[heads=2|4] | gla[heads=2])[norm]")]
    assert found == ["(attn[heads=2] | gla[heads=2])[norm]", "(attn[heads=4] | gla[heads=2])[norm]"]
    with pytest.raises(UserError, match="at least two mixers"):
        layers_of("(attn)")
