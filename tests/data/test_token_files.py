"""Token files: used in place, checked before use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.data import SPLITS, load_tokenizer
from plait.data.tokenizers import Words

TOKENS = (np.arange(1000) % 7).astype(np.uint16)


def meta(folder: Path, **fields: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(fields))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return meta(tmp_path / "tokens", dtype="uint16", vocab=7)


@pytest.mark.parametrize("ending", ["bin", "npy"])
def test_one_file_is_cut_by_position(folder: Path, opened, ending: str) -> None:
    path = folder / f"all.{ending}"
    TOKENS.tofile(path) if ending == "bin" else np.save(path, TOKENS)
    corpus = opened(path)
    assert [len(corpus.tokens(split)) for split in SPLITS] == [900, 50, 50]
    assert np.array_equal(np.concatenate([corpus.tokens(split) for split in SPLITS]), TOKENS)
    assert isinstance(corpus.tokens("train"), np.memmap)
    assert (corpus.vocab, corpus.characters("test")) == (7, 50)
    assert corpus.tokenizer.decode(corpus.tokens("train")[:4]) == "0 1 2 3"


def test_a_folder_of_splits_is_taken_as_it_is(folder: Path, opened) -> None:
    for name, size in (("train", 20), ("val", 10), ("test", 5)):
        TOKENS[:size].tofile(folder / f"{name}.bin")
    Words(list("abcde")).save(folder)
    corpus = opened(folder)
    assert [len(corpus.tokens(split)) for split in SPLITS] == [20, 10, 5]
    assert corpus.tokenizer.decode(corpus.tokens("test")) == "\n<unk> a b c"
    assert corpus.characters("test") == len("\n<unk> a b c")
    before = corpus.fingerprint
    TOKENS[1:6].tofile(folder / "test.bin")
    assert opened(folder).fingerprint != before


def test_a_cache_entry_is_a_corpus(tmp_path: Path, opened) -> None:
    (tmp_path / "a.txt").write_text("grüße und mehr\n" * 50)
    made = opened(tmp_path / "a.txt", "chars")
    (entry,) = (path.parent for path in (tmp_path / "cache").glob("*/meta.json"))
    again = opened(entry)
    assert load_tokenizer(entry).as_dict() == again.tokenizer.as_dict() == made.tokenizer.as_dict()
    for split in SPLITS:
        assert np.array_equal(again.tokens(split), made.tokens(split))
        assert again.characters(split) == made.characters(split)
    content = (entry / "test.bin").read_bytes()
    (entry / "test.bin").write_bytes(content[:-1])
    with pytest.raises(UserError, match="cut short or damaged"):
        opened(entry)


def test_what_is_wrong_is_said(folder: Path, opened) -> None:
    path = folder / "all.bin"
    TOKENS.tofile(path)
    for fields, message in (
        ({"dtype": "uint16", "vocab": 6}, "train holds the token id 6, but meta.json states a vocabulary of 6"),
        ({"dtype": "uint16"}, "should state the vocabulary.*found None"),
        ({"dtype": "uint16", "vocab": True}, "should state the vocabulary.*found True"),
        ({"dtype": "float32", "vocab": 7}, "should state the dtype.*found 'float32'"),
        ({"dtype": "wrong", "vocab": 7}, "should state the dtype.*found 'wrong'"),
    ):
        meta(folder, **fields)
        with pytest.raises(UserError, match=message):
            opened(path)
    meta(folder, dtype="uint16", vocab=7)
    Words(list("abc")).save(folder)
    with pytest.raises(UserError, match=r"the tokenizer has 5 ids, but meta.json states vocab 7"):
        opened(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="is truncated: 1999 bytes"):
        opened(path)
    (folder / "meta.json").write_text("{")
    with pytest.raises(UserError, match=r"meta\.json cannot be read: invalid JSON in line 1"):
        opened(path)
    (folder / "meta.json").unlink()
    with pytest.raises(UserError, match=r"meta\.json is not there"):
        opened(path)


@pytest.mark.parametrize("array", [np.zeros((2, 2), int), np.zeros(3), np.array([{}], dtype=object)])
def test_arrays_that_are_no_tokens_are_refused(folder: Path, opened, array: np.ndarray) -> None:
    np.save(folder / "all.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match=r"all\.npy (should hold one row of integers|cannot be read)"):
        opened(folder / "all.npy")


def test_a_folder_without_a_split_says_which(folder: Path, opened) -> None:
    TOKENS.tofile(folder / "train.bin")
    with pytest.raises(UserError, match="no token file for validation, test"):
        opened(folder)
    with pytest.raises(UserError, match="comes as tokens; --tokenizer bytes does not apply"):
        opened(folder / "train.bin", "bytes")
