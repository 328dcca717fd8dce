"""The header: types, choices, and the rules between keys."""

from __future__ import annotations

import dataclasses

import pytest

from plait.spec import Header
from plait.spec.errors import HeaderError


def test_defaults_are_valid_and_documented() -> None:
    header = Header()
    assert header.text == "d=512 vocab=50257"
    for field in dataclasses.fields(header):
        assert field.metadata["about"]
        if isinstance(field.default, str):
            assert field.default in field.metadata["choices"]


ADAPTIVE = {"embed": "adaptive", "vocab": 100}


@pytest.mark.parametrize(
    ("values", "keys", "message"),
    [
        ({"d": 0}, ("d",), "d=0: must be at least 1"),
        ({"vocab": 1}, ("vocab",), "at least 2"),
        ({"max_len": -1}, ("max_len",), "at least 0"),
        ({"eps": 0}, ("eps",), "greater than 0"),
        ({"init": -0.1}, ("init",), "negative"),
        ({"segments": -1}, ("segments",), "at least 0"),
        ({"pos": "learned"}, ("max_len", "pos"), "needs max_len"),
        ({"cutoffs": (10,)}, ("cutoffs",), "needs embed=adaptive"),
        ({"div": 2}, ("div",), "needs embed=adaptive"),
        ({"embed": "adaptive"}, ("embed",), "needs cutoffs"),
        ({**ADAPTIVE, "cutoffs": (20, 10)}, ("cutoffs", "vocab"), "must grow"),
        ({**ADAPTIVE, "cutoffs": (10, 10)}, ("cutoffs", "vocab"), "must grow"),
        ({**ADAPTIVE, "cutoffs": (0, 10)}, ("cutoffs", "vocab"), "must grow"),
        ({**ADAPTIVE, "cutoffs": (10, 100)}, ("cutoffs", "vocab"), "vocab=100"),
        ({**ADAPTIVE, "cutoffs": (10, 20), "div": 23}, ("div", "cutoffs", "embed"), "no width"),
        ({**ADAPTIVE, "cutoffs": (10,), "div": 4, "d_embed": 3}, ("div", "cutoffs", "embed"), "bands of 3"),
        ({"tie": True, "d_embed": 128}, ("d_embed", "tie"), "tie=true needs d_embed=512"),
        ({"tie": 1}, ("tie",), "true or false"),
        ({"d": True}, ("d",), "a whole number"),
        ({"d": 1.0}, ("d",), "a whole number"),
        ({"eps": "small"}, ("eps",), "a number"),
        ({"cutoffs": "a"}, ("cutoffs",), "whole numbers"),
        ({"norm": "layr"}, ("norm",), "Did you mean 'layer'"),
        ({"norm": 1}, ("norm",), "one of rms, layer"),
        ({"vocba": 1}, ("vocba",), "Did you mean 'vocab'"),
        ({"d": None}, ("d",), "NoneType"),
    ],
)
def test_refused(values: dict[str, object], keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(HeaderError, match=message) as caught:
        Header.from_values(values)
    assert caught.value.keys == keys


def test_accepted() -> None:
    xl = Header.from_values(
        {"vocab": 267735, "embed": "adaptive", "cutoffs": [19997, 39997, 199997], "tie": True, "d_embed": 128}
    )
    assert xl.cutoffs == (19997, 39997, 199997)
    assert Header.from_values({**ADAPTIVE, "cutoffs": 10}).cutoffs == (10,)
    assert Header.from_values({"tie": True, "d_embed": 512}).tie
    assert Header.from_values({"NORM".lower(): "LAYER"}).norm == "layer"


def test_one_zero_one_text() -> None:
    assert Header.from_values({"init": -0.0}).text == Header.from_values({"init": 0}).text
