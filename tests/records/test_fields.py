"""Dotted names lead to every field, and to one each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from plait.records.record import flat, matches


def test_flat() -> None:
    nested = {"a": {"b": {"c": 1}, "d": [1, {"e": 2}]}, "f": None, "empty": {}}
    assert flat(nested) == {"a.b.c": 1, "a.d": [1, {"e": 2}], "f": None, "empty": {}}


def test_a_name_with_a_dot_is_quoted() -> None:
    assert flat({"a.b": 1, "a": {"b": 2}}) == {'"a.b"': 1, "a.b": 2}
    assert matches({"models": {"gpt2-1.5b": 3}}, {'models."gpt2-1.5b"': 3})


def leaves(document: object) -> int:
    return sum(map(leaves, document.values())) if isinstance(document, dict) and document else 1


@given(some.recursive(some.integers(), lambda inner: some.dictionaries(some.text('a."', max_size=3), inner)))
def test_no_field_is_lost(value: object) -> None:
    assert len(flat({"x": value})) == leaves(value)
