"""JSON of others: one message for whatever is wrong, and a checksum that notices every change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.core.files import parse_json, read_object, sealed, understood, unsealed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "invalid JSON in line 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("9" * 400, "a number of 400 digits"),
        ("1e400", "too large"),
        ("[NaN]", "NaN is not a number"),
        ("[1, 2]", "should hold an object, not a list"),
    ],
    ids=["cut", "lists", "objects", "digits", "exponent", "nan", "list"],
)
def test_what_is_no_document_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        read_object(path)
    assert len(str(raised.value)) < 300


def test_what_is_no_text_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for path, message in ((tmp_path / "binary.json", "not UTF-8"), (tmp_path / "gone.json", "No such file")):
        with pytest.raises(UserError, match=message):
            read_object(path)
    with pytest.raises(UserError, match="Is a directory"):
        read_object(tmp_path)


def test_constants_where_they_belong() -> None:
    assert parse_json("[Infinity]", "a config", constants=True) == [float("inf")]


def test_a_document_of_another_shape_is_one_message() -> None:
    def use(document: dict[str, object]) -> float:
        with understood("theirs.json", "Make it again."):
            return float(document["a"][0]["b"])  # type: ignore[index]
        raise AssertionError

    assert use({"a": [{"b": 2}]}) == 2
    for wrong in ({}, {"a": 1}, {"a": []}, {"a": [{"b": "x"}]}, {"a": [{"b": 10**400}]}, {"a": [{"b": None}]}):
        with pytest.raises(UserError, match=r"theirs.json is damaged: .* Make it again\."):
            use(wrong)


def test_every_flipped_bit_of_a_sealed_document_is_noticed_or_harmless() -> None:
    document = {"step": 28, "losses": [1.5, 2.25e-3], "name": "räuber", "none": None, "flag": True}
    data = json.dumps(sealed(document)).encode()
    noticed = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = unsealed(parse_json(bytes(flipped), "it"), "it")
        except UserError:
            noticed += 1
            continue
        # Only the name `checksum` itself can be hit unnoticed; what the document says is as it was.
        assert {name: found.get(name) for name in document} == document
    assert noticed > 7 * len(data)


def test_documents_of_before_have_no_checksum() -> None:
    assert unsealed({"step": 28}, "it") == {"step": 28}


def test_a_byte_order_mark_before_an_object_is_skipped(tmp_path: Path) -> None:
    """As some editors write it."""
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_object(tmp_path / "a.json") == {"a": 1}
