"""What every tokenizer can do, and the plain JSON file that ours are kept in."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plait.core.errors import UserError

OWN_FILE = "plait-tokenizer.json"  # not "tokenizer.json": that is Hugging Face's, and has another format
OWN_VERSION = 1


class Tokenizer(ABC):
    """Text ↔ token ids below `vocab`."""

    #: The id that stands between documents; None where the vocabulary has none.
    end: int | None = None

    @property
    @abstractmethod
    def vocab(self) -> int:
        """How many ids there are."""

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int64."""

    @abstractmethod
    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text that the ids stand for."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """A small plain identity: equal for two tokenizers only if they map every text to the same ids."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs into the folder."""

    def keeps_text(self, ids: np.ndarray) -> bool:
        """Whether the text that these came from could be written again, character for character."""
        return True

    def checked(self, ids: Iterable[int] | np.ndarray) -> np.ndarray:
        """The ids as a flat int64 array, every one of them known."""
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64).reshape(-1)
        if array.size and not 0 <= array.min() <= array.max() < self.vocab:
            wrong = array[(array < 0) | (array >= self.vocab)][0]
            raise UserError(f"token id {wrong} is outside the tokenizer's vocabulary of {self.vocab}.")
        return array


class OwnTokenizer(Tokenizer):
    """A tokenizer whose whole content is a few JSON fields."""

    name: ClassVar[str]

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """The fields that `from_content` reads."""

    @classmethod
    @abstractmethod
    def from_content(cls, fields: Mapping[str, Any]) -> OwnTokenizer:
        """What `content` described. Missing or wrong fields are the user's mistake: a UserError."""

    def as_dict(self) -> dict[str, Any]:
        text = json.dumps(self.content(), sort_keys=True)
        return {"tokenizer": self.name, "vocab": self.vocab, "sha256": hashlib.sha256(text.encode()).hexdigest()}

    def save(self, folder: Path) -> None:
        document = {"tokenizer": self.name, "version": OWN_VERSION, **self.content()}
        folder.mkdir(parents=True, exist_ok=True)
        # ASCII, so that lone surrogates (bytes that were no UTF-8) survive.
        (folder / OWN_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")


def utf8(text: str) -> bytes:
    """The bytes of a text. Bytes that were no UTF-8 when it was read (lone surrogates since) come back as they were;
    surrogates that never were bytes become question marks."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def string_field(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise UserError(f"the field '{name}' should be a string; found {_shown(value)}.")
    return value


def boundary_token(tokenizer: Tokenizer) -> int:
    """What begins, parts and ends texts: end-of-text where the tokenizer has one, else what a line break becomes; of an
    alphabet without one, the first token."""
    if tokenizer.end is not None:
        return tokenizer.end
    try:
        line_break = tokenizer.encode("\n")
    except UserError:
        return 0
    return int(line_break[-1]) if len(line_break) else 0


def flag_field(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool):
        raise UserError(f"the field '{name}' should be true or false; found {_shown(value)}.")
    return value


def count_field(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"the field '{name}' should be a whole number above 0; found {_shown(value)}.")
    return value


def strings_field(fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"the field '{name}' should be a list of strings; found {_shown(value)}.")
    if len(set(value)) != len(value):
        raise UserError(f"the field '{name}' holds an entry twice.")
    return value


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
