"""Streamed text is the text, and never shows half a character."""

from __future__ import annotations

import random

import pytest

from plait.model.generation import UNFINISHED, TextStream


def from_bytes(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def pieces(tokens, decode=from_bytes):
    stream = TextStream(decode)
    return [*(stream.push(token) for token in tokens), stream.finish()]


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語のテキスト" * 9, "a🙂b👩‍👩‍👧", ""])
def test_no_half_character(text):
    shown = pieces(text.encode())
    assert "".join(shown) == text
    assert not any(UNFINISHED in piece for piece in shown)


def test_a_character_comes_with_its_last_byte():
    assert pieces("é€".encode()) == ["", "é", "", "", "€", ""]


def test_what_never_becomes_a_character_is_shown_in_the_end():
    assert pieces(b"a\xe2\x82") == ["a", "", "", UNFINISHED]
    assert "".join(pieces(b"\xff\xfeab\x80c")) == from_bytes(b"\xff\xfeab\x80c")


def test_new_words_continue_a_prompt():
    """Words have a space between them, so the first new one must start with it."""
    words = TextStream(lambda ids: " ".join(map("abc".__getitem__, ids)), prompt=[0] * 20)
    assert [words.push(1), words.push(2), words.finish()] == [" b", " c", ""]


def test_any_bytes_give_their_text():
    draw = random.Random(0)
    for _ in range(200):
        tokens = [draw.choice([draw.randrange(256), 0xF0, 0x9F, 0x98, 0x80, 0x41]) for _ in range(90)]
        assert "".join(pieces(tokens)) == from_bytes(tokens)


def test_spaces_between_words_survive():
    words = [f"w{i}" for i in range(100)]
    shown = pieces(range(100), lambda tokens: " ".join(words[token] for token in tokens))
    assert "".join(shown) == " ".join(words)
    assert shown[60] == " w60"
