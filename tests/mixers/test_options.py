"""Options: typed, documented, refused by name and column when wrong, and written in their shortest form."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from plait.mixers.attn import AttnOptions, FoxOptions
from plait.mixers.options import MixerOptions, OptionError
from plait.mixers.table import MIXERS, load, names
from plait.model.architecture import architecture, options_of
from plait.spec import Layer, SpecError


@pytest.mark.parametrize(
    ("text", "culprit", "message"),
    [
        ("d=64 | attn atn", "atn", "unknown mixer 'atn'. Did you mean 'attn'?"),
        ("d=64 | attn mlp[iner=32]", "iner=32", "mlp has no option 'iner'. Did you mean 'inner'?"),
        ("d=64 | (attn[heads=4,bias] mlp[act=gelo])x3", "act=gelo", "'gelo' given. Did you mean 'gelu'?"),
        ("d=64 | attn[heads=0]", "heads=0", "0 given, but the least allowed is 1"),
        ("d=64 | attn[heads=2.5]", "heads=2.5", "2.5 given, but this is a whole number"),
        ("d=64 | attn[bias=1]", "bias=1", "'1' given, but this is true or false"),
        ("d=64 | attn[heads=many]", "heads=many", "'many' given, but this is a number"),
        ("d=64 | attn[heads=true]", "heads=true", "'True' given, but this is a number"),
        ("d=64 | attn[pos=3]", "pos=3", "Allowed: rope, alibi, none"),
        ("d=64 | identity[x]", "x]", "Options: none"),
    ],
)
def test_a_wrong_option_is_refused_with_its_column(text: str, culprit: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        architecture(text)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (1, text.index(culprit) + 1)


def test_values_become_the_type_of_the_option() -> None:
    options = options_of(Layer.of("attn", heads=4.0, theta=500000))
    assert isinstance(options, AttnOptions)
    assert (type(options.heads), options.heads) == (int, 4)
    assert (type(options.theta), options.theta) == (float, 500000.0)


def test_an_error_names_the_option_to_blame() -> None:
    with pytest.raises(OptionError) as caught:
        options_of(Layer.of("attn", heads=4, window=-1))
    assert caught.value.option == "window"


def test_the_shortest_layer_leaves_defaults_out() -> None:
    assert str(AttnOptions(heads=8, bias=True, theta=10000.0).to_layer()) == "attn[bias]"
    # fox is attn with other defaults, and its own are what is left out.
    assert str(FoxOptions(pos="none", forget="full").to_layer()) == "fox"
    assert str(FoxOptions(pos="rope", forget="none").to_layer()) == "fox[forget=none,pos=rope]"


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_is_declared_in_full(name: str) -> None:
    options = load(name)
    assert options.name == name
    assert options.kind in ("sequence", "channel")
    assert options.reference
    assert options.__doc__
    for row in options.describe():
        assert row["doc"], row["option"]
        assert row["type"] in ("int", "float", "bool", "str")
        assert type(row["default"]).__name__ == row["type"], f"{row['option']} has a default of another type"
        assert not row["allowed"] or row["default"] in row["allowed"]
        # What a search may choose, the options themselves accept.
        for choice in row["choices"]:
            options.from_layer(Layer.of(name, **{row["option"]: choice}))


@pytest.mark.parametrize("name", MIXERS)
def test_options_survive_the_way_through_a_layer(name: str) -> None:
    options = load(name)()
    assert options_of(options.to_layer()) == options
    changed = [f.name for f in dataclasses.fields(options) if type(f.default) is int and f.default > 0]
    other = dataclasses.replace(options, **{key: getattr(options, key) + 1 for key in changed})
    assert options_of(other.to_layer()) == other
    assert len(other.to_layer().options) == len(changed)


def test_sizes_take_arrays_and_no_unknown_option() -> None:
    heads = np.array([2, 4])
    made = AttnOptions.sizes(heads=heads)
    assert made.heads is heads
    assert made.pos == "rope"
    with pytest.raises(AssertionError, match="haeds"):
        AttnOptions.sizes(haeds=heads)


def test_a_mixer_without_a_cost_cannot_be_costed() -> None:
    with pytest.raises(NotImplementedError):
        MixerOptions().cost(64, 1)


def test_names_lists_the_table() -> None:
    assert names()[: len(MIXERS)] == list(MIXERS)
