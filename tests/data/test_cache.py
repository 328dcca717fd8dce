"""Opening: tokenised once, found again, rebuilt when damaged, by many at once."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.data import SPLITS, Corpus, open_corpus
from plait.data.cache import write_tokens


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {number} of the text\n" for number in range(500)))
    return path


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """One entry for every time something is tokenised."""
    calls: list[Path] = []

    def counted(folder: Path, *rest: object) -> dict[str, int]:
        calls.append(folder)
        return write_tokens(folder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("plait.data.cache.write_tokens", counted)
    return calls


def same(one: Corpus, other: Corpus) -> bool:
    return one.fingerprint == other.fingerprint and all(
        np.array_equal(one.tokens(split), other.tokens(split)) for split in SPLITS
    )


def entry_of(cache: Path) -> Path:
    (found,) = (path.parent for path in cache.glob("*/meta.json"))
    return found


def test_text_is_tokenised_once(text: Path, opened, built: list[Path]) -> None:
    first = opened(text, "words")
    assert same(opened(text, "words"), first)
    assert len(built) == 1
    assert opened(text, "bytes").fingerprint != first.fingerprint
    assert opened(text, "words:min_count=2").fingerprint != first.fingerprint
    assert len(built) == 3
    moved = shutil.copy(text, text.with_name("copy.txt"))
    assert len(first.fingerprint) == 32
    text.write_text(text.read_text() + "more\n")
    assert opened(text, "words").fingerprint != first.fingerprint
    shutil.move(moved, text)
    assert same(opened(text, "words"), first)  # what was read counts, not when it was written
    assert len(built) == 4


def test_the_fingerprint_is_of_the_tokens_alone(opened, tmp_path: Path) -> None:
    """Not of the files' names, places and formats: one text is trained on once."""
    texts = [f"note {number} is about {number % 7}" for number in range(300)]
    one, other = tmp_path / "one.jsonl", tmp_path / "elsewhere" / "other.jsonl"
    other.parent.mkdir()
    one.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    other.write_text("".join(json.dumps({"body": text, "id": 3}) + "\n" for text in texts))
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": texts}), tmp_path / "rows.parquet")
    first = opened(one, "words")
    assert same(opened(f"{other}#body", "words"), first)
    assert same(opened(tmp_path / "rows.parquet", "words"), first)
    assert first.as_dict() == opened(tmp_path / "rows.parquet", "words").as_dict()
    entries = [path.parent for path in (tmp_path / "cache").glob("*/meta.json")]
    assert same(opened(shutil.copytree(entries[0], tmp_path / "copied")), first)
    wide = tmp_path / "wide"
    wide.mkdir()
    first.tokenizer.save(wide)
    (wide / "meta.json").write_text(json.dumps({"dtype": "int64", "vocab": first.vocab}))
    for split in SPLITS:
        np.save(wide / f"{split}.npy", first.tokens(split).astype(np.int64))
    assert same(opened(wide), first)


def test_large_token_files_are_hashed_once(opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.data import cache, corpora

    monkeypatch.setattr(cache, "REMEMBERED", 1)
    (tmp_path / "meta.json").write_text('{"vocab": 7}')
    np.save(tmp_path / "all.npy", np.arange(1000) % 7)
    hashed: list[int] = []
    real = corpora.token_digest
    monkeypatch.setattr(corpora, "token_digest", lambda tokens, vocab: hashed.append(vocab) or real(tokens, vocab))
    first = opened(tmp_path / "all.npy").fingerprint
    assert (opened(tmp_path / "all.npy").fingerprint, len(hashed)) == (first, 3)
    np.save(tmp_path / "all.npy", np.arange(1001) % 7)
    assert opened(tmp_path / "all.npy").fingerprint != first
    assert len(hashed) == 6


def test_a_saved_tokenizer_gives_the_same_fingerprint(text: Path, opened, tmp_path: Path) -> None:
    learned = opened(text, "words")
    learned.tokenizer.save(tmp_path / "tokenizer")
    assert same(opened(text, str(tmp_path / "tokenizer")), learned)


def test_tokens_are_as_small_as_their_vocabulary_allows(text: Path, opened) -> None:
    assert opened(text, "bytes").tokens("train").dtype == np.uint8
    assert opened(text, "words").tokens("train").dtype == np.uint16
    from plait.data.corpora import smallest_dtype

    assert [smallest_dtype(vocab).itemsize for vocab in (1, 256, 257, 65536, 65537, 1 << 32)] == [1, 1, 2, 2, 4, 4]


def test_tokens_cannot_be_changed(text: Path, opened) -> None:
    with pytest.raises(ValueError, match="read-only"):
        opened(text).tokens("train")[0] = 1


def truncate(entry: Path) -> None:
    (entry / "train.bin").write_bytes((entry / "train.bin").read_bytes()[:-3])


def flip(entry: Path) -> None:
    content = bytearray((entry / "validation.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (entry / "validation.bin").write_bytes(content)


def remove(entry: Path) -> None:
    (entry / "test.bin").unlink()


def empty(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.mkdir()


def spoil_meta(entry: Path) -> None:
    (entry / "meta.json").write_text((entry / "meta.json").read_text()[:40])


def spoil_fields(entry: Path) -> None:
    (entry / "meta.json").write_text('{"dtype": "uint8", "vocab": 256, "splits": {"train": {}}}')


def spoil_tokenizer(entry: Path) -> None:
    (entry / "plait-tokenizer.json").write_text("{}")


@pytest.mark.parametrize("damage", [truncate, flip, remove, empty, spoil_meta, spoil_fields, spoil_tokenizer])
def test_a_damaged_cache_is_made_again(text: Path, opened, built: list[Path], tmp_path: Path, damage: object) -> None:
    tokens = {split: np.array(opened(text, "words").tokens(split)) for split in SPLITS}
    damage(entry_of(tmp_path / "cache"))  # type: ignore[operator]
    for times in (2, 2):  # made once more, then good
        again = opened(text, "words")
        assert all(np.array_equal(again.tokens(split), tokens[split]) for split in SPLITS)
        assert len(built) == times
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len(left) == 2, left  # the entry and its lock
    assert entry_of(tmp_path / "cache").name in left


def test_what_a_killed_process_left_is_cleared(text: Path, opened, tmp_path: Path) -> None:
    opened(text)
    entry = entry_of(tmp_path / "cache")
    leftover = entry.with_name(f".{entry.name}.tmp-abc")
    entry.rename(leftover)
    opened(text)
    assert not leftover.exists()


def _open(given: str, cache: Path, done: multiprocessing.Queue[str]) -> None:
    corpus = open_corpus(given, "words", cache=cache)
    done.put(f"{corpus.fingerprint} {int(corpus.tokens('train').sum())}")


def test_processes_that_open_at_once_agree(text: Path, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    done: multiprocessing.Queue[str] = spawn.Queue()
    crew = [spawn.Process(target=_open, args=(str(text), tmp_path / "cache", done)) for _ in range(4)]
    for one in crew:
        one.start()
    answers = [done.get(timeout=300) for _ in crew]
    for one in crew:
        one.join()
    assert len(set(answers)) == 1
    assert len(list((tmp_path / "cache").glob("*/meta.json"))) == 1
    assert not list((tmp_path / "cache").glob(".*.tmp-*"))


def test_without_locks_a_second_writer_does_no_harm(text: Path, opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes build; one is faster. The slower finds the entry and takes it."""
    from plait.data import cache

    monkeypatch.setattr(cache, "fcntl", None)
    faster: list[Corpus] = []

    def slow(folder: Path, *rest: object) -> dict[str, int]:
        if not faster:
            monkeypatch.setattr("plait.data.cache.write_tokens", write_tokens)
            faster.append(opened(text))
        return write_tokens(folder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("plait.data.cache.write_tokens", slow)
    assert same(opened(text), faster[0])


def test_a_cache_that_cannot_be_written_is_explained(text: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to the cache .*file/cache.*PLAIT_CACHE"):
        open_corpus(str(text), cache=tmp_path / "file" / "cache")


def test_a_full_disk_leaves_nothing(text: Path, opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, *_: object) -> None:
        (folder / "train.bin").write_bytes(b"begun")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plait.data.cache.write_tokens", full)
    with pytest.raises(UserError, match="No space left on device"):
        opened(text)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_the_cache_is_where_the_environment_says(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_corpus(str(text))
    assert entry_of(tmp_path / "runs" / "cache")
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path / "elsewhere"))
    open_corpus(str(text))
    assert entry_of(tmp_path / "elsewhere")


def test_progress_is_told_and_reaches_the_end(text: Path, opened) -> None:
    told: list[tuple[str, int, int]] = []
    opened(text, "words", progress=lambda *now: told.append(now))
    size = text.stat().st_size
    phases = list(dict.fromkeys(what for what, _, _ in told))
    assert phases == ["hashing", "learning the vocabulary", "tokenising"]
    for phase in phases:
        done = [now for what, now, _ in told if what == phase]
        assert done == sorted(done)
        assert done[-1] == (size if phase != "learning the vocabulary" else max(done))
    assert {total for _, _, total in told} == {size}


def test_what_was_hashed_is_remembered_until_it_changes(
    text: Path, opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.data import cache as digests

    monkeypatch.setattr(digests, "REMEMBERED", 1)
    first = opened(text)
    hashed: list[Path] = []
    real = digests._digest
    monkeypatch.setattr(digests, "_digest", lambda path: hashed.append(path) or real(path))
    assert opened(text).fingerprint == first.fingerprint
    assert hashed == []
    text.write_text(text.read_text() + "x")
    assert opened(text).fingerprint != first.fingerprint
    assert hashed == [text]
    (memory,) = (tmp_path / "cache" / "digests").iterdir()
    memory.write_text('{"damaged": 3}')
    assert opened(text).fingerprint != first.fingerprint
    assert hashed == [text, text]


def test_an_unknown_split_is_refused(text: Path, opened) -> None:
    corpus = opened(text)
    with pytest.raises(UserError, match=r"unknown split 'valid'. Did you mean 'validation'"):
        corpus.tokens("valid")
