"""key=value on the command line: clear errors."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.core.registry import pairs, read_pairs, read_values
from plait.training.recipe import Recipe


def test_values_have_the_kind_of_their_key() -> None:
    given = ["batch=4", "lr = 1e-3", "no_weight_decay=hyena/gla"]
    assert read_pairs(given, "--set", Recipe) == {"batch": 4, "lr": 1e-3, "no_weight_decay": ("hyena", "gla")}


def test_truth_is_read_as_words() -> None:
    assert read_values({"a": "false", "b": "True", "c": False}, dict.fromkeys("abc", bool), "it") == {
        "a": False, "b": True, "c": False,
    }  # fmt: skip
    with pytest.raises(UserError, match="it: a=maybe given, but it is true or false"):
        read_values({"a": "maybe"}, {"a": bool}, "it")


def test_an_unknown_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"a task has no variable 'lenght'. Did you mean 'length'\? Known: length, vocab"
    ):
        read_values({"lenght": 3}, {"length": int, "vocab": int}, "a task", "variable")
    with pytest.raises(UserError, match=r"a task has no setting 'x'\. It has none"):
        read_values({"x": 3}, {}, "a task")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq_length=3", "there is no key 'seq_length'. Did you mean 'seq_len'"),
        ("batch", "write key=value"),
        ("batch=many", "batch takes a whole number"),
        ("lr=high", "lr takes a number"),
    ],
)
def test_mistakes_are_told(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"--set {text}: {said}"):
        read_pairs([text], "--set", Recipe)


def test_plain_pairs() -> None:
    assert pairs(["d=256", "layers = 6..12"], "--fix") == {"d": "256", "layers": "6..12"}
    with pytest.raises(UserError, match="--fix d=: write key=value"):
        pairs(["d="], "--fix")
