"""Patterns of values and layers."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.space.declaration import layers_of, numbers_of, split_list, values_of


def test_values() -> None:
    assert values_of("2|4|8") == (2, 4, 8)
    assert values_of("128..320 step 64") == (128, 192, 256, 320)
    assert values_of("3..5") == (3, 4, 5)
    assert values_of("64|128..256 step 128") == (64, 128, 256)
    assert values_of("0.5|1.0|true|gelu") == (0.5, 1.0, True, "gelu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9..3", "is empty"),
        ("1..9 step 0", "is empty"),
        ("32..64:16", r"'32\.\.64:16' is not a range: write LOW\.\.HIGH or LOW\.\.HIGH step N"),
        ("2|4|2", "twice"),
        ("1..900000", "at most 20,000"),
    ],
)
def test_values_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        values_of(text)


def test_numbers_are_whole() -> None:
    with pytest.raises(UserError, match="whole numbers"):
        numbers_of("1|true")


def test_a_pattern_is_the_product_of_its_options() -> None:
    texts = [str(option.to_layer()) for option in layers_of("mlp[inner=128..256 step 64,act=relu|gelu]") if option]
    assert texts == [
        *("mlp[act=relu,inner=128]", "mlp[inner=128]", "mlp[act=relu,inner=192]", "mlp[inner=192]"),
        *("mlp[act=relu,inner=256]", "mlp[inner=256]"),
    ]


def test_a_star_takes_what_the_mixer_declares() -> None:
    assert [option.state for option in layers_of("mamba[state=*]")] == [4, 8, 16, 32]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="declares no values to try for 'theta'"):
        layers_of("attn[theta=*]")


def test_nothing_is_a_choice() -> None:
    assert layers_of("none") == layers_of("identity") == (None,)


@pytest.mark.parametrize("pattern", ["atn[heads=2]", "attn[head=2]", "attn heads=2", "attn[heads=-1]"])
def test_layers_that_are_none(pattern: str) -> None:
    with pytest.raises(UserError):
        layers_of(pattern)


def test_commas_inside_brackets_do_not_separate() -> None:
    assert split_list("[attn[heads=2,bias], gla, 'mamba']") == ["attn[heads=2,bias]", "gla", "mamba"]
    assert split_list("min(a, b) <= 3, c < 4") == ["min(a, b) <= 3", "c < 4"]
    for broken in ("attn[heads=2, gla", "attn], gla"):
        with pytest.raises(UserError, match="bracket"):
            split_list(broken)
