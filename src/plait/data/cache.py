"""Tokenised texts: read from the cache, or tokenised into it.

An entry of the cache is a folder named by its key. It is written under another name and renamed when it is complete, so
an existing entry is always complete; a lock lets a second process wait for the first instead of doing the same work. An
entry that is damaged nevertheless is moved aside and built again. Large files are hashed once: their hashes are stored
next to the cache, by size and modification time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.files import atomic_write, loads
from plait.core.progress import OnProgress
from plait.data.corpora import Corpus, fingerprint, split_digests
from plait.data.sources import SPLITS, Document, TextSource, TokenSource, divided
from plait.data.text_files import begins_with_mark
from plait.data.token_files import is_whole, read_meta, read_tokens, write_tokens, written_digests
from plait.data.tokenizer_table import load_tokenizer, tokenizer_recipe

DIGESTS = "digests"  # the cache's folder for hashes of large files


def open_text(name: str, source: TextSource, tokenizer: str, cache: Path | None, progress: OnProgress | None) -> Corpus:
    """The corpus of a source, tokenised by this recipe. `name`: the corpus's."""
    how, folder = tokenizer_recipe(tokenizer), cache_folder(cache)
    digests = file_digests(source.files(), folder / DIGESTS, progress)
    read = _Reader(source, digests, progress)

    def build(unfinished: Path) -> None:
        learned = how.learn(read.texts("train", "learning the vocabulary"))
        written = write_tokens(unfinished, read.documents("tokenising"), learned, source.length)
        if not written["train"]:
            raise UserError(f"'{name}' holds no text to train on.")

    key = [source.identity(), digests, how.identity]
    if marked := [name for name, path in sorted(source.files().items()) if begins_with_mark(path)]:
        key.append({"without byte-order mark": marked})  # entries of earlier versions kept it as text
    entry = cached(folder, fingerprint(*key), _is_good, build)
    meta, loaded = read_meta(entry), load_tokenizer(entry)
    assert meta is not None
    characters = {split: meta["splits"][split]["characters"] for split in SPLITS}
    size = {split: meta["splits"][split]["bytes"] for split in SPLITS}
    identity = fingerprint(written_digests(meta), loaded.as_dict())
    tokens = read_tokens(entry, meta)
    return Corpus(name, loaded, identity, None, tokens, characters.__getitem__, size.__getitem__)


def _is_good(entry: Path) -> bool:
    meta = read_meta(entry)
    try:
        return meta is not None and is_whole(entry, meta) and load_tokenizer(entry).vocab == meta["vocab"]
    except UserError:
        return False


class _Reader:
    """Reads a source's documents and reports progress."""

    def __init__(self, source: TextSource, digests: dict[str, str], progress: OnProgress | None) -> None:
        self._source = source
        self._digests = digests
        self._progress = progress

    def documents(self, what: str) -> Iterator[Document]:
        """Every document with its split."""
        total = sum(path.stat().st_size for path in self._source.files().values())
        done = 0
        for document in divided(lambda: self._source.documents(self._digests), self._source.among):
            yield replace(document, pieces=self._reported(document, what, done, total))
            done += document.size

    def texts(self, split: str, what: str) -> Iterator[str]:
        for document in self.documents(what):
            if document.split == split:
                yield from document.pieces

    def _reported(self, document: Document, what: str, done: int, total: int) -> Iterable[str]:
        read = 0
        for piece in document.pieces:
            yield piece
            read = min(read + len(piece), document.size)
            if self._progress is not None:
                self._progress(what, done + read, total)


try:
    import fcntl
except ImportError:  # not available everywhere; without locks, two processes merely do the same work twice
    fcntl = None  # type: ignore[assignment]

VARIABLE = "PLAIT_CACHE"
DEFAULT = Path("runs/cache")


def cache_folder(folder: Path | None) -> Path:
    """`folder`, otherwise $PLAIT_CACHE, otherwise runs/cache in the working folder."""
    chosen = folder or Path(os.environ.get(VARIABLE) or DEFAULT)
    # Absolute: memory maps are opened later, perhaps from another working folder.
    return Path(os.path.abspath(chosen.expanduser()))


def cached(cache: Path, key: str, is_good: Callable[[Path], bool], build: Callable[[Path], None]) -> Path:
    """The folder of the entry `key`; `build` fills it if there is none that `is_good`."""
    entry = cache / key
    if entry.is_dir() and is_good(entry):
        return entry
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f".{key}.lock") as locked:
            if entry.is_dir() and is_good(entry):  # another process was faster
                return entry
            if locked:  # no other process is building, so unfinished folders of this key belong to dead processes
                for leftover in cache.glob(f".{key}.tmp-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            _build(entry, is_good, build)
    except OSError as wrong:
        raise UserError(
            f"cannot write to the cache {cache}: {wrong.strerror or wrong}. Choose another folder with ${VARIABLE}."
        ) from wrong
    return entry


def _build(entry: Path, is_good: Callable[[Path], bool], build: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f".{entry.name}.tmp-"))
    try:
        unfinished.chmod(0o755)  # mkdtemp's folders are private to their owner
        build(unfinished)
        if entry.exists():  # it is damaged; otherwise `build` would not have been called
            damaged = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f".{entry.name}.tmp-"))
            with suppress(FileNotFoundError):  # without locks, another process may move it aside at the same time
                os.replace(entry, damaged / "damaged")
            shutil.rmtree(damaged, ignore_errors=True)
        try:
            os.rename(unfinished, entry)
        except OSError:
            if not (entry.is_dir() and is_good(entry)):  # unless another process has created it
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Wait until no other process holds the lock; False if the file system does not support locks."""
    if fcntl is None:
        yield False
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
        yield locked


BLOCK = 1 << 22
REMEMBERED = 1 << 24  # files with fewer bytes in total are hashed again every time


def file_digests(files: Mapping[str, Path], memory: Path, progress: OnProgress | None = None) -> dict[str, str]:
    """SHA-256 of each file, by name; `memory` is a folder with the hashes of known files."""
    try:
        marks = {name: _mark(path) for name, path in files.items()}
        total = sum(size for _, size, _ in marks.values())
        kept = memory / f"{_hash_of(sorted(mark[0] for mark in marks.values()))}.json"
        known = _read(kept) if total >= REMEMBERED else {}
        digests, done = {}, 0
        for name, path in files.items():
            before = known.get(name)
            digests[name] = str(before[-1]) if before and before[:-1] == list(marks[name]) else _digest(path)
            done += marks[name][1]
            if progress is not None:
                progress("hashing", done, total)
    except OSError as wrong:
        raise UserError(f"cannot read {wrong.filename}: {wrong.strerror or wrong}.") from wrong
    now = {name: [*marks[name], digests[name]] for name in files}
    if total >= REMEMBERED and now != known:
        _write(kept, now)
    return digests


def remembered_digests(source: TokenSource, cache: Path | None) -> dict[str, str]:
    """`split_digests` of token files; those of large files are stored."""
    memory = cache_folder(cache) / DIGESTS
    marks: list[Any] = [list(mark) for mark in sorted(_mark(path) for path in source.files.values())]
    kept = memory / f"{_hash_of(['tokens', [mark[0] for mark in marks]])}.json"
    large = sum(mark[1] for mark in marks) >= REMEMBERED
    known = _read(kept) if large else {}
    if known.get("files") == marks and len(known.get("digests", ())) == len(SPLITS):
        return dict(zip(SPLITS, map(str, known["digests"]), strict=True))
    digests = split_digests(source)
    if large:
        _write(kept, {"files": marks, "digests": list(digests.values())})
    return digests


def _mark(path: Path) -> tuple[str, int, int]:
    """Identifies a version of a file: its path, size and modification time."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        entries = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        entries = None
    if not isinstance(entries, dict) or not all(isinstance(value, list) for value in entries.values()):
        return {}  # only a cache: missing files are hashed again
    return entries


def _write(path: Path, known: dict[str, list[Any]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            draft.write_text(json.dumps(known), encoding="utf-8")
    except OSError:
        return  # if the hash cannot be stored, only time is lost
