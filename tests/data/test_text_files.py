"""One file: plain text, JSONL, Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from plait.core.errors import UserError
from plait.data import SPLITS
from plait.data.text_files import begins_with_mark

DOCUMENTS = [f"document {number}: {'grüße ' * (number % 7)}end" for number in range(200)]


@pytest.fixture(params=["jsonl", "parquet"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """200 documents in the field `body`."""
    path = tmp_path / f"records.{request.param}"
    if request.param == "jsonl":
        lines = [json.dumps({"id": number, "body": text}) for number, text in enumerate(DOCUMENTS)]
        path.write_text("\n".join(lines) + "\n\n")
    else:
        table = pyarrow.table({"id": list(range(201)), "body": [*DOCUMENTS, None]})
        pyarrow.parquet.write_table(table, path, row_group_size=30)
    return path


def test_records_are_divided_by_document(records: Path, opened, text_of) -> None:
    corpus = opened(f"{records}#body")
    parts = {split: text_of(corpus, split).split("\n") for split in SPLITS}
    assert sorted(text for part in parts.values() for text in part) == sorted(DOCUMENTS)
    assert all(3 <= len(parts[split]) <= 25 for split in ("validation", "test"))
    assert parts["train"] == [text for text in DOCUMENTS if text in set(parts["train"])]  # in order
    assert corpus.characters("train") == len("\n".join(parts["train"]))


def test_where_a_document_goes_depends_on_nothing_else(tmp_path: Path, opened, text_of) -> None:
    parts = []
    for name, documents in (("a", DOCUMENTS), ("b", [*DOCUMENTS[::-1], "another"])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        parts.append(set(text_of(opened(path), "test").split("\n")) - {"another"})
    assert parts[0] == parts[1]


def test_a_wrong_field_names_those_that_are_there(records: Path, opened) -> None:
    with pytest.raises(UserError, match=r"no text in the field 'text'.*There: id, body"):
        opened(records)
    with pytest.raises(UserError, match="Did you mean 'body'"):
        opened(f"{records}#bdy")
    with pytest.raises(UserError, match=r"no text in the field 'id'|holds int64, not text"):
        opened(f"{records}#id")


@pytest.mark.parametrize("name", ["notes.md", "program.py"])
def test_plain_text_of_other_endings_is_text(tmp_path: Path, opened, name: str) -> None:
    """What a folder of text may hold may be given alone."""
    (tmp_path / name).write_text("a text of many words. " * 400)
    assert opened(tmp_path / name).tokens("train").size > 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"text": "cut', "line 2: no JSON"),
        ("a.jsonl", b"[1]\n", "line 1: expected an object"),
        ("a.jsonl", b"\xff\xfe\n", "line 1: no JSON"),
        ("a.parquet", b"PAR1 but not really", "cannot be read as Parquet"),
        ("a.txt", b"some latin-1 text: gr\xfc\xdfe" * 3, "not UTF-8 text: byte 21 is 0xfc"),
        ("a.txt", b"some latin-1 text: gr\xfc\xdfe" * 3, "iconv -f LATIN1 -t UTF-8"),
        (
            "a.txt",
            "grüße, and ".encode() + b"gr\xfc\xdfe" * 3,
            "mixes encodings, UTF-8 before that: `iconv -c -f UTF-8",
        ),
        (
            "a.txt",
            "UTF-16 from some editor, grüße".encode("utf-16"),
            "begins as UTF-16 does: `iconv -f UTF-16 -t UTF-8",
        ),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" * 20, "probably no text at all: convert it"),
        ("a.txt", b"ab", "has 2 bytes: too few"),
        ("a.jsnl", b"{}", "cannot tell what 'a.jsnl' holds. Did you mean '.jsonl'"),
        ("a.jsonl", b"", "holds no text to train on"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, opened, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        opened(tmp_path / name)
    assert not list((tmp_path / "cache").glob("*/")), "nothing unfinished is left in the cache"


@pytest.mark.parametrize("name", ["a.txt", "folder"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, opened, text_of, monkeypatch, name: str) -> None:
    """Nor do tokens that an earlier version cached with it, or results on them, count as this text's."""
    text = "".join(f"line {number} of the text\n" for number in range(500))
    file = tmp_path / name
    if name == "folder":
        file.mkdir()
    path = file / "train.txt" if name == "folder" else file
    path.write_text(text, encoding="utf-8-sig")
    with monkeypatch.context() as earlier:
        earlier.setattr("plait.data.text_files._decoded", lambda block, *_: "_" + block.decode().removeprefix("_"))
        earlier.setattr("plait.data.cache.begins_with_mark", lambda path: False)
        before = opened(file)
    corpus = opened(file)
    assert text_of(corpus, "train").startswith("line 0 of")
    assert corpus.fingerprint != before.fingerprint
    assert all("\ufeff" not in text_of(corpus, split) for split in SPLITS)


def test_half_characters_in_json_do_no_harm(tmp_path: Path, opened, text_of) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "half \\ud83d of it"}\n' * 9)
    assert text_of(opened(tmp_path / "a.jsonl"), "train").startswith("half ? of it")


@pytest.mark.parametrize("tokenizer", ["bytes", "words", "chars"])
def test_a_text_is_cut_at_line_ends(tmp_path: Path, opened, text_of, tokenizer: str) -> None:
    lines = [f"line {number} grüße" for number in range(1000)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    corpus = opened(tmp_path / "a.txt", tokenizer)
    texts = [text_of(corpus, split) for split in SPLITS]
    counts = [text.count("\n") for text in texts]
    assert sum(counts) == 1000
    assert counts == pytest.approx([900, 50, 50], abs=12)
    if tokenizer == "bytes":
        assert "".join(texts) == "\n".join(lines) + "\n"


def test_a_text_without_lines_or_blanks_is_cut_between_characters(tmp_path: Path, opened, text_of) -> None:
    (tmp_path / "a.txt").write_text("日本語" * 37)
    corpus = opened(tmp_path / "a.txt")
    assert "".join(text_of(corpus, split) for split in SPLITS) == "日本語" * 37
    assert all(len(corpus.tokens(split)) for split in SPLITS)


def test_cutting_never_depends_on_the_size_of_pieces(tmp_path: Path, opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read at a time, and wherever that falls in a character, a word or a line."""
    from plait.data import text_files as reading

    text = "".join(f"{'wörter ' * (number % 5)}日本{number}\n" * (number % 3) for number in range(60))
    (tmp_path / "a.txt").write_text(text)
    tokens = {}
    for size in (1 << 20, 64, 31):
        tokens[size] = {}
        for tokenizer in ("bytes", "words", "chars", "bpe:size=280"):
            monkeypatch.setattr(reading, "PIECE", 1 << 20)
            corpus = opened(tmp_path / "a.txt", tokenizer)
            monkeypatch.setattr(reading, "PIECE", size)
            pieces = reading.text_pieces(tmp_path / "a.txt")
            tokens[size][tokenizer] = [token for piece in pieces for token in corpus.tokenizer.encode(piece).tolist()]
    assert tokens[1 << 20] == tokens[64] == tokens[31]


def test_only_the_first_mark_of_a_file_is_none_of_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.data import text_files as reading

    monkeypatch.setattr(reading, "PIECE", 7)
    (tmp_path / "a.txt").write_text("\ufeffabc\n\ufeffdef\n")
    assert list(reading.text_pieces(tmp_path / "a.txt")) == ["abc\n", "\ufeffdef\n"]
    whole = "".join(reading.text_pieces(tmp_path / "a.txt", errors="surrogateescape"))
    assert whole == "\ufeffabc\n\ufeffdef\n"  # a benchmark that counts bytes has all of them


def test_a_file_that_is_gone_when_its_mark_is_looked_for_has_a_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*gone\.txt"):
        begins_with_mark(tmp_path / "gone.txt")
