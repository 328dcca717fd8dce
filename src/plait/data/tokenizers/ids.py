"""Token ids written as numbers: for data that comes as tokens without a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from plait.core.errors import UserError
from plait.data.tokenizers.tokenizer import OwnTokenizer, count_field


@final
class Ids(OwnTokenizer):
    name = "ids"

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UserError(f"ids need their number: ids:size=1000; found size={size}.")
        self._size = size

    @property
    def vocab(self) -> int:
        return self._size

    def encode(self, text: str) -> np.ndarray:
        words = text.split()
        wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 19)), None)
        if wrong is not None:
            raise UserError(f"'{wrong}' is no token id; expected whole numbers below {self._size} with spaces between.")
        return self.checked([int(word) for word in words])

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return " ".join(map(str, self.checked(ids).tolist()))

    def content(self) -> dict[str, Any]:
        return {"size": self._size}

    @classmethod
    def from_content(cls, fields: Mapping[str, Any]) -> Ids:
        return cls(count_field(fields, "size"))


def learn_ids(texts: Iterable[str], *, size: int = 0) -> Ids:
    """Numbers below `size`, which must be given; the texts are not read."""
    return Ids(size)
