"""The two kinds of sources: text that is yet to be tokenised, and tokens as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from plait.data.corpus import SPLITS
from plait.data.documents import Document
from plait.data.tokenizers.tokenizer import Tokenizer, utf8


class TextSource(ABC):
    """Documents in files."""

    #: What tokenises it unless the user says otherwise.
    tokenizer: str = "bytes"
    #: The splits among which documents without one of their own are divided.
    among: Sequence[str] = SPLITS
    #: Published results on some corpora count bytes and call them characters.
    counts_bytes: bool = False

    @abstractmethod
    def files(self) -> Mapping[str, Path]:
        """Every file that is read, under the name it has within the source."""

    @abstractmethod
    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        """All documents in a fixed order; `digests` holds the hash of every file."""

    def identity(self) -> dict[str, Any]:
        """What else decides the documents beside the files' contents."""
        return {}

    def length(self, piece: str) -> int:
        """How many characters a piece of text counts for."""
        return len(utf8(piece)) if self.counts_bytes else len(piece)


@final
@dataclass(frozen=True)
class TokenSource:
    """Tokens that are there already, or made on the spot."""

    tokenizer: Tokenizer
    identity: dict[str, Any]  # decides the tokens; plain JSON
    tokens: Mapping[str, np.ndarray]
    characters: Callable[[str], int]  # of a split
    entropy: float | None = None
    files: Mapping[str, Path] = field(default_factory=dict)  # hashed for the fingerprint
