"""key=value on the command line: what is wrong with it is said."""

from __future__ import annotations

import pytest

from plait.cli.key_values import key_value, pairs
from plait.core.errors import UserError
from plait.train.recipe import Recipe


def test_values_have_the_kind_of_their_key() -> None:
    assert key_value("batch=4", "--set", Recipe) == ("batch", 4)
    assert key_value("lr=1e-3", "--set", Recipe) == ("lr", 1e-3)
    assert key_value("undecayed=hyena/gla", "--set", Recipe) == ("undecayed", ("hyena", "gla"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lenght=3", "there is no key 'lenght'. Did you mean 'length'"),
        ("batch", "write key=value"),
        ("batch=many", "batch takes a whole number"),
        ("lr=high", "lr takes a number"),
    ],
)
def test_mistakes_are_told(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"--set {text}: {said}"):
        key_value(text, "--set", Recipe)


def test_plain_pairs() -> None:
    assert pairs(["d=256", "layers = 6..12"], "--fix") == {"d": "256", "layers": "6..12"}
    with pytest.raises(UserError, match="--fix d=: write key=value"):
        pairs(["d="], "--fix")
