"""One token a character of a known alphabet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from plait.core.errors import UserError
from plait.data.tokenizers.tokenizer import OwnTokenizer, flag_field, string_field

UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # how an unknown character is decoded


@final
class Characters(OwnTokenizer):
    """Ids follow the order of the alphabet. With `unknown` the last id stands for every other character; without it
    a character outside the alphabet is refused."""

    name = "chars"

    def __init__(self, alphabet: str, *, unknown: bool) -> None:
        if not alphabet and not unknown:
            raise UserError("an alphabet needs at least one character.")
        if len(set(alphabet)) != len(alphabet):
            raise UserError("a character stands in the alphabet twice.")
        self.alphabet = alphabet
        self.unknown = unknown
        codes = _codes(alphabet)
        other = len(alphabet) if unknown else -1
        # One entry a code point up to the highest of the alphabet, and one for all that lie above it.
        self._id_of_code = np.full(int(codes.max(initial=0)) + 2, other, dtype=np.int64)
        self._id_of_code[codes] = np.arange(len(alphabet))

    @property
    def vocab(self) -> int:
        return len(self.alphabet) + self.unknown

    def encode(self, text: str) -> np.ndarray:
        codes = _codes(text)
        ids: np.ndarray = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
        if not self.unknown and ids.size and ids.min() < 0:
            character = text[int(np.argmin(ids))]
            shown = self.alphabet if len(self.alphabet) <= 64 else f"{self.alphabet[:61]}…"
            raise UserError(f"the character {character!r} is not in the alphabet {shown!r}.")
        return ids

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        characters = self.alphabet + UNKNOWN_CHARACTER * self.unknown
        return "".join(characters[number] for number in self.checked(ids).tolist())

    def content(self) -> dict[str, Any]:
        return {"alphabet": self.alphabet, "unknown": self.unknown}

    @classmethod
    def from_content(cls, fields: Mapping[str, Any]) -> Characters:
        return cls(string_field(fields, "alphabet"), unknown=flag_field(fields, "unknown"))


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def learn_characters(texts: Iterable[str]) -> Characters:
    """Every character of the texts in code order, and one id for all others."""
    alphabet: set[str] = set()
    for text in texts:
        alphabet.update(text)
    return Characters("".join(sorted(alphabet)), unknown=True)
