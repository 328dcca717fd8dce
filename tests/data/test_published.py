"""Published layouts, in small: wikitext-103, lm1b, enwik8, text8."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import UserError

WIKI = {
    "train": " \n = Valkyria = \n \n the game the <unk> game \n",
    "valid": " \n = Robert = \n \n the actor \n",
    "test": " the <unk> the \n",
}


def wikitext(folder: Path, ending: str) -> Path:
    folder.mkdir()
    for part, text in WIKI.items():
        (folder / f"wiki.{part}.{ending}").write_text(text, encoding="utf-8")
    return folder


def test_wikitext_103(tmp_path: Path, opened) -> None:
    corpus = opened(f"wikitext-103:{wikitext(tmp_path / 'wiki', 'tokens')}")
    words = ["<eos>", "<unk>", "=", "game", "the", "Valkyria"]  # by frequency in train, then by spelling
    assert corpus.vocab == len(words)
    tokens = {
        split: " ".join(words[token] for token in corpus.tokens(split)) for split in ("train", "validation", "test")
    }
    assert tokens["train"] == "<eos> = Valkyria = <eos> <eos> the game the <unk> game <eos>"
    assert tokens["validation"] == "<eos> = <unk> = <eos> <eos> the <unk> <eos>"
    assert tokens["test"] == "the <unk> the <eos>"
    assert corpus.characters("test") == len(WIKI["test"])


def test_wikitext_103_raw_is_read_as_bytes(tmp_path: Path, opened, text_of) -> None:
    corpus = opened(f"wikitext-103:{wikitext(tmp_path / 'wiki', 'raw')}")
    assert corpus.vocab == 256
    assert text_of(corpus, "validation") == WIKI["valid"]


def test_wikitext_103_says_what_it_looked_for(tmp_path: Path, opened) -> None:
    with pytest.raises(UserError, match=r"wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens"):
        opened(f"wikitext-103:{tmp_path}")
    folder = wikitext(tmp_path / "wiki", "tokens")
    (folder / "wiki.valid.tokens").unlink()
    with pytest.raises(UserError, match=r"wiki.valid.tokens not found"):
        opened(f"wikitext-103:{folder}")


def lm1b(folder: Path) -> Path:
    training = folder / "training-monolingual.tokenized.shuffled"
    validation = folder / "heldout-monolingual.tokenized.shuffled"
    training.mkdir(parents=True)
    validation.mkdir()
    for number in range(1, 100):
        (training / f"news.en-{number:05d}-of-00100").write_text(f"common words {'thrice ' * (number < 4)}no{number}\n")
    for number in range(50):
        (validation / f"news.en.heldout-{number:05d}-of-00050").write_text(f"common held out {number}\n" * (number + 1))
    return folder


def test_lm1b(tmp_path: Path, opened, text_of) -> None:
    corpus = opened(f"lm1b:{lm1b(tmp_path / 'lm1b')}")
    assert corpus.vocab == 5  # <eos> <unk> common words thrice: what occurs three times
    assert text_of(corpus, "train") == "common words thrice <unk>\n" * 3 + "common words <unk>\n" * 96
    assert text_of(corpus, "test") == "common <unk> <unk> <unk>\n"
    assert text_of(corpus, "validation") == "common <unk> <unk> <unk>\n" * 2


def test_a_part_of_lm1b_is_not_lm1b(tmp_path: Path, opened) -> None:
    folder = lm1b(tmp_path / "lm1b")
    for number in (7, 8):
        (folder / f"training-monolingual.tokenized.shuffled/news.en-{number:05d}-of-00100").unlink()
    with pytest.raises(UserError, match=r"news.en-00007-of-00100 and 1 more not found"):
        opened(f"lm1b:{folder}")


@pytest.mark.parametrize("as_folder", [True, False])
def test_enwik8_is_cut_at_the_very_byte(tmp_path: Path, opened, as_folder: bool) -> None:
    content = ("<page>日本語 text</page>\n" * 100).encode()[:1999]  # cuts fall inside characters; the last one is none
    (tmp_path / "enwik8").write_bytes(content)
    corpus = opened(f"enwik8:{tmp_path if as_folder else tmp_path / 'enwik8'}")
    read = {split: corpus.tokens(split).tobytes() for split in ("train", "validation", "test")}
    assert b"".join(read.values()) == content
    assert [len(part) for part in read.values()] == [1801, 99, 99]
    assert [corpus.characters(split) for split in read] == [1801, 99, 99]
    with pytest.raises(UserError, match=r"looked for .*enwik9"):
        opened(f"enwik8:{tmp_path / 'enwik9'}")


def test_text8_has_its_27_characters(tmp_path: Path, opened, text_of) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 50
    (tmp_path / "text8").write_text(text)
    corpus = opened(f"text8:{tmp_path}")
    assert corpus.vocab == 28  # and one for what is none of them
    assert "".join(text_of(corpus, split) for split in ("train", "validation", "test")) == text
    assert len(corpus.tokens("train")) == len(text) * 9 // 10


def test_cuts_of_the_full_hundred_million_are_the_published_ones() -> None:
    from plait.data.sources import bounds

    assert bounds(100_000_000) == [("train", 90_000_000), ("validation", 95_000_000), ("test", 100_000_000)]


def test_everything_is_named_in_the_table(opened) -> None:
    for given, message in {
        "wikitext-103": "wikitext-103:FOLDER",
        "builtin:langage": "Did you mean 'builtin:language'",
        "nowhere/at/all": "neither a known name nor a file or folder",
        "builtin:dna:x": "no corpus",
    }.items():
        with pytest.raises(UserError, match=message):
            opened(given)
    assert json.dumps(opened("builtin:dna").fingerprint)
    assert np.array_equal(opened("builtin:dna").tokens("test"), opened("builtin:dna").tokens("test"))
