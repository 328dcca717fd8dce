"""From a corpus's name to its tokens: found in the cache, or tokenised into it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.data.cache import cache_folder, cached, file_digests
from plait.data.corpora.source import TextSource, TokenSource
from plait.data.corpora.table import open_source
from plait.data.corpus import Corpus, Progress
from plait.data.documents import Document, divided
from plait.data.tokenfiles import is_whole, read_meta, read_tokens, write_tokens
from plait.data.tokenizers.table import TokenizerRecipe, load_tokenizer, tokenizer_recipe

VERSION = 1  # raised by hand when the same source comes to give other tokens
DIGESTS = "digests"  # the cache's folder for hashes of large files


def open_corpus(
    given: str, tokenizer: str | None = None, *, cache: Path | None = None, progress: Progress | None = None
) -> Corpus:
    """A corpus by name or path (`plait data list`), tokenised by its own tokenizer or the one given.

    Text is tokenised once and kept in `cache`, else $PLAIT_CACHE, else runs/cache.
    """
    source = open_source(given)
    folder = cache_folder(cache)
    if isinstance(source, TokenSource):
        if tokenizer is not None:
            raise UserError(f"'{given}' comes as tokens; --tokenizer {tokenizer} does not apply to it.")
        digests = file_digests(source.files, folder / DIGESTS, progress)
        fingerprint = _hash(source.identity, digests, source.tokenizer.as_dict())
        return Corpus(given, source.tokenizer, fingerprint, source.entropy, source.tokens, source.characters)
    return _open_text(given, source, tokenizer_recipe(tokenizer or source.tokenizer), folder, progress)


def _open_text(given: str, source: TextSource, how: TokenizerRecipe, folder: Path, progress: Progress | None) -> Corpus:
    digests = file_digests(source.files(), folder / DIGESTS, progress)
    read = _Reader(source, digests, progress)

    def build(unfinished: Path) -> None:
        tokenizer = how.learn(read.texts("train", "learning the vocabulary"))
        written = write_tokens(unfinished, read.documents("tokenising"), tokenizer, source.length)
        if not written["train"]:
            raise UserError(f"'{given}' holds no text to train on.")

    entry = cached(folder, _hash(source.identity(), digests, how.identity), _is_good, build)
    meta, found = read_meta(entry), load_tokenizer(entry)
    assert meta is not None
    characters = {split: int(about["characters"]) for split, about in meta["splits"].items()}
    fingerprint = _hash(source.identity(), digests, found.as_dict())
    return Corpus(given, found, fingerprint, None, read_tokens(entry, meta), characters.__getitem__)


def _is_good(entry: Path) -> bool:
    meta = read_meta(entry)
    try:
        return meta is not None and is_whole(entry, meta) and load_tokenizer(entry).vocab == meta["vocab"]
    except UserError:
        return False


def _hash(*parts: Any) -> str:
    text = json.dumps([VERSION, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class _Reader:
    """Goes through a source's documents and tells how far it is."""

    def __init__(self, source: TextSource, digests: dict[str, str], progress: Progress | None) -> None:
        self._source = source
        self._digests = digests
        self._progress = progress

    def documents(self, what: str) -> Iterator[Document]:
        """Every document with its split."""
        total = sum(path.stat().st_size for path in self._source.files().values())
        done = 0
        for document in divided(lambda: self._source.documents(self._digests), self._source.among):
            yield replace(document, pieces=self._told(document, what, done, total))
            done += document.size

    def texts(self, split: str, what: str) -> Iterator[str]:
        for document in self.documents(what):
            if document.split == split:
                yield from document.pieces

    def _told(self, document: Document, what: str, done: int, total: int) -> Iterable[str]:
        read = 0
        for piece in document.pieces:
            yield piece
            read = min(read + len(piece), document.size)
            if self._progress is not None:
                self._progress(what, done + read, total)
