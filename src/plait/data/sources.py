"""Sources of corpora: text documents, or tokens.

Documents whose source does not state their split are divided: 90 % train, 5 % validation, 5 % test.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np

from plait.core.errors import UserError
from plait.data.tokenizers import Tokenizer, utf8

SPLITS = ("train", "validation", "test")
SHARES = {"train": 90, "validation": 5, "test": 5}  # in percent

#: Common names of the splits in file and folder names.
ALIASES = {"train": "train", "training": "train", "validation": "validation", "valid": "validation",
           "val": "validation", "dev": "validation", "test": "test"}  # fmt: skip


@dataclass(frozen=True)
class Document:
    digest: str  # of the content, in hex, so that the same text is never in two splits
    pieces: Iterable[str]  # the text in order, in parts that can be tokenised separately; read once
    size: int  # in bytes of the source
    split: str | None = None  # if the source states it

    @classmethod
    def of(cls, text: str, size: int) -> Document:
        content = text.encode("utf-8", "replace")  # JSON can contain lone surrogates, which no tokenizer accepts
        return cls(hashlib.sha256(content).hexdigest(), (content.decode("utf-8"),), size)


Documents = Callable[[], Iterator[Document]]  # every call starts over, because sources are read more than once


def divided(documents: Documents, among: Sequence[str] = SPLITS) -> Iterator[Document]:
    """The documents with their splits: their own, or otherwise one of `among`.

    Many documents are divided by their hashes, so that a document's split depends on nothing else. With only a few, a
    split could be empty: these are cut by position, which may put parts of one document into two splits.
    """
    if _hashes_fill(documents(), among):
        for document in documents():
            yield replace(document, split=document.split or split_of(document.digest, among))
    else:
        yield from _by_position(documents, among)


def split_named(name: str) -> str | None:
    """The split that a file's or folder's name states, as in `valid-00000-of-00002.parquet`."""
    words = re.split(r"[._-]", name.lower())
    return next((ALIASES[word] for word in words if word in ALIASES), None)


def split_of(digest: str, among: Sequence[str] = SPLITS) -> str:
    """The split for a hash. Fractions of splits that are not in `among` go to train."""
    place, bound = int(digest[:16], 16) % 100, 0
    for split in reversed(SPLITS):  # train last: it gets the rest
        if split in among:
            bound += SHARES[split]
            if place < bound:
                return split
    return "train"


def bounds(size: int, among: Sequence[str] = SPLITS) -> list[tuple[str, int]]:
    """The end of each split if `size` characters are cut by position, in order."""
    rest = [split for split in SPLITS[1:] if split in among]
    ends, end = [], size
    for split in reversed(rest):
        ends.append((split, end))
        end -= size * SHARES[split] // 100
    return [("train", end), *reversed(ends)]


def _hashes_fill(documents: Iterator[Document], among: Sequence[str]) -> bool:
    """Whether every split gets a document by hash. Of many documents, only the first few dozen are checked."""
    missing, undivided = set(among), False
    for document in documents:
        if document.split is None:
            undivided = True
            missing.discard(split_of(document.digest, among))
        if not missing:
            return True
    return not undivided  # nothing to divide


def _by_position(documents: Documents, among: Sequence[str]) -> Iterator[Document]:
    total = sum(len(piece) for document in documents() if document.split is None for piece in document.pieces)
    if total < len(among):
        raise UserError(f"{total} characters are too few to be divided into {', '.join(among)}.")
    places = bounds(total, among)
    at = 0
    for document in documents():
        if document.split is not None:
            yield document
            continue
        text_by_split: dict[str, list[str]] = {}
        for piece in document.pieces:
            start = 0
            while start < len(piece):
                split, end = next(place for place in places if at < place[1])
                part = piece[start : start + end - at]
                text_by_split.setdefault(split, []).append(part)
                start += len(part)
                at += len(part)
        for split, parts in text_by_split.items():
            yield replace(document, split=split, pieces=parts, size=document.size // len(text_by_split))


class TextSource(ABC):
    """A corpus of text files."""

    #: The default tokenizer.
    tokenizer: str = "bytes"
    #: The splits among which documents without their own split are divided.
    among: Sequence[str] = SPLITS
    #: Published results on some corpora count bytes and call them characters.
    counts_bytes: bool = False

    @abstractmethod
    def files(self) -> Mapping[str, Path]:
        """Every file that is read, by its name within the source."""

    @abstractmethod
    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        """All documents in a fixed order; `digests` holds the hash of every file."""

    def identity(self) -> dict[str, object]:
        """What determines the documents besides the files' contents."""
        return {}

    def length(self, piece: str) -> int:
        """How many characters a piece of text counts for."""
        return len(utf8(piece)) if self.counts_bytes else len(piece)


@final
@dataclass(frozen=True)
class TokenSource:
    """Existing or generated tokens."""

    tokenizer: Tokenizer
    tokens: Mapping[str, np.ndarray]
    characters: Callable[[str], int]  # of a split
    bytes: Callable[[str], int]  # of a split, in UTF-8
    entropy: float | None = None
    files: Mapping[str, Path] = field(default_factory=dict)  # that it was read from
    digests: Mapping[str, str] = field(default_factory=dict)  # `token_digest` of each split, if known
