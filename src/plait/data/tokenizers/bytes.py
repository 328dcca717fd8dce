"""One token a byte of UTF-8: nothing to learn_bytes, nothing unknown, 256 ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from plait.data.tokenizers.tokenizer import OwnTokenizer, utf8


@final
class Bytes(OwnTokenizer):
    """Bytes that were no UTF-8 travel through strings as lone surrogates (Python's "surrogateescape") and come out
    as they were."""

    name = "bytes"

    @property
    def vocab(self) -> int:
        return 256

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        # A model may well write half a character; what is shown must print.
        return self.checked(ids).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def content(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_content(cls, fields: Mapping[str, Any]) -> Bytes:
        return cls()


def learn_bytes(texts: Iterable[str]) -> Bytes:
    """Bytes need no learning; the texts are not read."""
    return Bytes()
