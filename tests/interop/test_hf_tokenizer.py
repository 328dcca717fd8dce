"""The exported tokenizer gives the ids that ours gives, through `AutoTokenizer` as a user has it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.data import trained_tokenizers as bpe
from plait.data.tokenizers import Bytes, Characters, Ids, OwnTokenizer, Words
from plait.interop.hf import write_tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The quick brown fox\njumps over\n\nthe lazy dog",
    "  leading, trailing and   double spaces  \n",
    "naïve café — 日本語 🙂 é\u0301 \u00a0\u2003x\x1cy\x85z\ttab\r\nend",
    "the <eos> x<eos>y <unk> <|endoftext|> <s> [CLS]",
    "\ufffd odd \0 bytes",
    "a",
]
WORDS = Words(["the", "quick", "fox", "x", "y", "z", "dog", "日本語", "tab", "[CLS]"])


def theirs(tokenizer, folder: Path):
    write_tokenizer(tokenizer, folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def drawn_texts(alphabet: str) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choice(alphabet) for _ in range(60)) for _ in range(50)]


CASES = {
    "bytes": (Bytes(), TEXTS + drawn_texts("ab é日🙂\n\t\x00\x7f\xad")),
    "chars": (Characters("".join(sorted(set("".join(TEXTS[:2])))), unknown=True), TEXTS + drawn_texts("abT\n é")),
    "chars with U+FFFD": (Characters("\ufffdab", unknown=True), TEXTS),
    "dna": (Characters("ACGT", unknown=False), drawn_texts("ACGT")),
    "words": (WORDS, TEXTS + drawn_texts("xyz \n\x1c\u3000")),
    "ids": (Ids(1200), ["1 2 3", " 007  0 1199\n00 12", "0"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_ids_and_the_same_text_back(name, tmp_path):
    ours, texts = CASES[name]
    other = theirs(ours, tmp_path)
    assert len(other) == ours.vocab
    for text in texts:
        ids = ours.encode(text).tolist()
        assert other(text)["input_ids"] == ids
        if name != "words" or "x<eos>" not in text:
            assert other.decode(ids) == ours.decode(ids)


def test_bpe(tmp_path):
    ours = bpe.learn_bpe(TEXTS * 3, size=300)
    other = theirs(ours, tmp_path)
    for text in TEXTS:
        ids = ours.encode(text).tolist()
        assert other(text)["input_ids"] == ids
        assert other.decode(ids) == ours.decode(ids)
    assert other.eos_token_id == other.pad_token_id == ours.end
    batch = other(["a", "the quick"], padding=True)
    assert batch["attention_mask"][0][0] == 0, "padding stands on the left"


def test_what_would_add_tokens_is_removed(tmp_path):
    ours = bpe.learn_bpe(TEXTS, size=270)
    hf = pytest.importorskip("tokenizers")
    end = ours.decode([ours.end])
    ours._inner.post_processor = hf.processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, ours.end)])
    assert theirs(ours, tmp_path)("a")["input_ids"] == ours.encode("a").tolist()


def test_characters_outside_an_alphabet_are_an_error_there_too(tmp_path):
    other = theirs(Characters("ACGT", unknown=False), tmp_path)
    with pytest.raises(Exception, match="WordLevel"):
        other("ACXT")


def test_what_cannot_be_said_is_said(tmp_path):
    with pytest.raises(UserError, match="not UTF-8"):
        write_tokenizer(Characters("a\udc80", unknown=True), tmp_path)

    class Odd(OwnTokenizer):
        name = "odd"
        vocab = 3
        encode = decode = from_content = None

        def content(self):
            return {}

    with pytest.raises(UserError, match="type Odd cannot be expressed"):
        write_tokenizer(Odd(), tmp_path)
