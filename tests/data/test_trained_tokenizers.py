from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from plait.core.errors import UserError
from plait.data.tokenizer_table import tokenizer_recipe
from plait.data.trained_tokenizers import END, HuggingFace, learn_bpe, open_file


def foreign() -> Library:
    """With a hole in its ids, a template that adds tokens, and truncation: what other people's files have."""
    inner = Library(WordLevel({"[UNK]": 0, "[SEP]": 1, "a": 2, "b": 7}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 1)])
    inner.enable_truncation(2)
    return inner


def test_a_foreign_file_is_read_plainly(tmp_path: Path) -> None:
    foreign().save(str(tmp_path / "tokenizer.json"))
    for given in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = tokenizer_recipe(f"hf:{given}").learn([])
        assert (tokenizer.vocab, tokenizer.end) == (8, 1)
        assert tokenizer.encode("a b c b").tolist() == [2, 7, 0, 7]  # nothing added, nothing cut off


@pytest.mark.parametrize("written", ["b", {"content": "b"}])
def test_the_config_says_which_token_ends_a_text(tmp_path: Path, written: object) -> None:
    foreign().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": written}))
    assert open_file(tmp_path).end == 7


def test_an_end_that_is_not_in_the_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="'<stop>' is not in the tokenizer's vocabulary"):
        HuggingFace(foreign(), "<stop>")


def test_transformers_opens_what_is_saved(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = learn_bpe(["some text, some more text"] * 3, size=270)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert theirs("some text")["input_ids"] == tokenizer.encode("some text").tolist()
    assert (theirs.eos_token, theirs.eos_token_id) == (END, tokenizer.end)


def test_bpe_merges_what_is_frequent() -> None:
    tokenizer = learn_bpe(["banana banana banana"], size=262)
    assert len(tokenizer.encode("banana")) < 4
    assert tokenizer.vocab == 262
    assert tokenizer.end == tokenizer.encode(END)[0] == 0


def test_a_size_alone_is_enough() -> None:
    """`bpe:300`, as the help of `--tokenizer` writes it."""
    assert tokenizer_recipe("bpe:300").identity == tokenizer_recipe("bpe:size=300").identity
    with pytest.raises(UserError, match="size should be a whole number; found 'many'"):
        tokenizer_recipe("bpe:many")
