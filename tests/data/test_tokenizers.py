"""Every tokenizer: round trips, saving and loading, and what happens to damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import UserError
from plait.data.tokenizer_table import TOKENIZERS, load_tokenizer, tokenizer_recipe
from plait.data.tokenizers import OWN_FILE, Tokenizer

TEXT = "the cat sat on the mat\nthe dog — ein großer Hund — did not\n\n  日本語 \U0001f600\n" * 4
RECIPES = ["bytes", "chars", "words", "bpe:size=300", "ids:size=50"]


def learned(text: str) -> Tokenizer:
    return tokenizer_recipe(text).learn([TEXT])


def sample(name: str) -> str:
    return "3 1 49 0" if name.startswith("ids") else TEXT


def test_every_tokenizer_of_the_table_is_tested() -> None:
    assert {name.split(":")[0] for name in RECIPES} == set(TOKENIZERS)


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_encoded_decodes_to_itself(name: str) -> None:
    tokenizer = learned(name)
    ids = tokenizer.encode(sample(name))
    assert ids.dtype == np.int64
    assert 0 <= ids.min() <= ids.max() < tokenizer.vocab
    expected = sample(name)
    if name == "words":  # white space is where words end, however much of it
        expected = "\n".join(" ".join(line.split()) for line in TEXT.split("\n"))
    assert tokenizer.decode(ids) == expected
    assert tokenizer.decode(ids.astype(np.uint16)) == tokenizer.decode(ids.tolist()) == expected


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_tokenizer_is_the_same(name: str, tmp_path: Path) -> None:
    tokenizer = learned(name)
    tokenizer.save(tmp_path / "there")
    found = load_tokenizer(tmp_path / "there")
    assert found.as_dict() == tokenizer.as_dict()
    assert (found.vocab, found.end) == (tokenizer.vocab, tokenizer.end)
    assert found.encode(sample(name)).tolist() == tokenizer.encode(sample(name)).tolist()
    again = tokenizer_recipe(str(tmp_path / "there")).learn(["other text"])  # a saved tokenizer is not learned anew
    assert again.as_dict() == tokenizer.as_dict()
    json.dumps(tokenizer.as_dict())


@pytest.mark.parametrize("name", RECIPES)
def test_ids_that_do_not_exist_are_refused(name: str) -> None:
    tokenizer = learned(name)
    for wrong in (-1, tokenizer.vocab):
        with pytest.raises(UserError, match=f"token id {wrong} is outside"):
            tokenizer.decode([0, wrong])


@pytest.mark.parametrize("name", ["bytes", "bpe:size=300"])
@given(text=st.text())
@settings(max_examples=60, deadline=None)
def test_any_text_survives_bytes_and_bpe(name: str, text: str) -> None:
    tokenizer = _ONCE.setdefault(name, learned(name)) if name not in _ONCE else _ONCE[name]
    assert tokenizer.decode(tokenizer.encode(text)) == text


_ONCE: dict[str, Tokenizer] = {}


def test_learning_again_gives_the_same_bpe() -> None:
    assert learned("bpe:size=300").as_dict() == learned("bpe:size=300").as_dict()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
def test_truncated_files_are_refused(name: str, kept: float, tmp_path: Path) -> None:
    learned(name).save(tmp_path)
    file = tmp_path / (OWN_FILE if (tmp_path / OWN_FILE).exists() else "tokenizer.json")
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(UserError, match=file.name):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "should hold an object, not a list"),
        ({"version": 1}, "unknown tokenizer None"),
        ({"tokenizer": "wrds", "version": 1}, "unknown tokenizer 'wrds'. Known: bytes, chars"),
        ({"tokenizer": "bpe", "version": 1}, "unknown tokenizer 'bpe'"),
        ({"tokenizer": "bytes", "version": 2}, "version 2"),
        ({"tokenizer": "chars", "version": 1, "alphabet": "aa", "unknown": True}, "twice"),
        (
            {"tokenizer": "chars", "version": 1, "alphabet": 3, "unknown": True},
            "'alphabet' should be a string; found 3",
        ),
        ({"tokenizer": "chars", "version": 1, "alphabet": "ab"}, "'unknown' should be true or false; found nothing"),
        ({"tokenizer": "words", "version": 1, "words": ["a", 1]}, "list of strings"),
        ({"tokenizer": "words", "version": 1, "words": ["a", "a"]}, "twice"),
        ({"tokenizer": "words", "version": 1, "words": ["a b"]}, "is not a valid word"),
        ({"tokenizer": "words", "version": 1, "words": ["<eos>"]}, "is not a valid word"),
        ({"tokenizer": "ids", "version": 1, "size": 0}, "above 0"),
    ],
)
def test_wrong_fields_are_named(fields: object, message: str, tmp_path: Path) -> None:
    (tmp_path / OWN_FILE).write_text(json.dumps(fields))
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"looked for plait-tokenizer.json and tokenizer.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("byts", "Did you mean 'bytes'"),
        ("words:min_cout=3", "no option 'min_cout'. Did you mean 'min_count'"),
        ("words:min_count=x", "min_count should be a whole number; found 'x'"),
        ("words:min_count=0", "min_count=0"),
        ("words:size=2", "size=2"),
        ("bytes:size=3", "It has none"),
        ("bpe:size=100", "size=100"),
        ("ids", "ids:size=1000"),
        ("hf", "hf:PATH"),
        ("hf:/no/where", "/no/where"),
    ],
)
def test_what_cannot_be_made_is_explained(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tokenizer_recipe(text).learn(["a b"])
