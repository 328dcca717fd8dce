from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plait.data.tokenizers import Bytes


@given(st.binary())
def test_bytes_that_are_no_text_come_through(content: bytes) -> None:
    assert Bytes().encode(content.decode("utf-8", "surrogateescape")).tolist() == list(content)


def test_half_a_character_still_prints() -> None:
    assert Bytes().decode([0x61, 0xC3]) == "a\N{REPLACEMENT CHARACTER}"
    assert Bytes().encode("a\ud800").tolist() == [0x61, ord("?")]
