"""The tokenizer interface, and the tokenizers that need no library. `tokenizer_table` lists, creates and loads them.

bytes   one token per byte of UTF-8: nothing to learn, nothing unknown, 256 ids
chars   one token per character of a known alphabet
words   as WikiText-103 and LM1B are modelled: words are what whitespace separates, every line ends in <eos>, rare words
        are <unk>. Ids follow frequency, the most frequent first, so that the cutoffs of an adaptive softmax (Grave et
        al. 2017) group words of like frequency
ids     token ids written as numbers, for data that comes as tokens without a tokenizer
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from plait.core.errors import UserError

OWN_FILE = "plait-tokenizer.json"  # not "tokenizer.json": that is Hugging Face's, and has another format
OWN_VERSION = 1


class Tokenizer(ABC):
    """Text ↔ token ids below `vocab`."""

    #: The id that separates documents; None if the vocabulary has none.
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
        """The text that the ids represent."""

    @abstractmethod
    def as_dict(self) -> dict[str, object]:
        """A small JSON identity, equal for two tokenizers only if they map every text to the same ids."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs into the folder."""

    def keeps_text(self, ids: np.ndarray) -> bool:
        """Whether the original text can be restored from these ids, character for character."""
        return True

    def checked(self, ids: Iterable[int] | np.ndarray) -> np.ndarray:
        """The ids as a flat int64 array; an id outside the vocabulary is an error."""
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
        """The tokenizer that `content` described. Missing or wrong fields raise a UserError."""

    def as_dict(self) -> dict[str, object]:
        text = json.dumps(self.content(), sort_keys=True)
        return {"tokenizer": self.name, "vocab": self.vocab, "sha256": hashlib.sha256(text.encode()).hexdigest()}

    def save(self, folder: Path) -> None:
        document = {"tokenizer": self.name, "version": OWN_VERSION, **self.content()}
        folder.mkdir(parents=True, exist_ok=True)
        # ASCII, so that lone surrogates (bytes that were not UTF-8) survive.
        (folder / OWN_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")


def utf8(text: str) -> bytes:
    """The bytes of a text. Bytes that were not UTF-8 when it was read (now lone surrogates) are restored; other
    surrogates become question marks."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def string_field(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise UserError(f"the field '{name}' should be a string; found {_excerpt(value)}.")
    return value


def boundary_token(tokenizer: Tokenizer) -> int:
    """The token that starts, separates and ends texts: end-of-text if the tokenizer has one, otherwise the encoding of
    a line break; for an alphabet without one, the first token."""
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
        raise UserError(f"the field '{name}' should be true or false; found {_excerpt(value)}.")
    return value


def count_field(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"the field '{name}' should be a whole number above 0; found {_excerpt(value)}.")
    return value


def strings_field(fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"the field '{name}' should be a list of strings; found {_excerpt(value)}.")
    if len(set(value)) != len(value):
        raise UserError(f"the field '{name}' holds an entry twice.")
    return value


def _excerpt(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@final
class Bytes(OwnTokenizer):
    """Bytes that are not UTF-8 are represented in strings as lone surrogates (Python's "surrogateescape") and restored
    on encoding."""

    name = "bytes"

    @property
    def vocab(self) -> int:
        return 256

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        # A model may generate half a character; the output must be printable.
        return self.checked(ids).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def content(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_content(cls, fields: Mapping[str, Any]) -> Bytes:
        return cls()


def learn_bytes(texts: Iterable[str]) -> Bytes:
    """Bytes need no training; the texts are not read."""
    return Bytes()


UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # how an unknown character is decoded


@final
class Characters(OwnTokenizer):
    """Ids follow the order of the alphabet. With `unknown` the last id represents all other characters; without it, a
    character outside the alphabet is refused."""

    name = "chars"

    def __init__(self, alphabet: str, *, unknown: bool) -> None:
        if not alphabet and not unknown:
            raise UserError("an alphabet needs at least one character.")
        if len(set(alphabet)) != len(alphabet):
            raise UserError("a character is in the alphabet twice.")
        self.alphabet = alphabet
        self.unknown = unknown
        codes = _codes(alphabet)
        other = len(alphabet) if unknown else -1
        # One entry per code point up to the highest of the alphabet, and one for all above it.
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

    def keeps_text(self, ids: np.ndarray) -> bool:
        return not (self.unknown and bool((ids == len(self.alphabet)).any()))

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


END = "<eos>"
UNKNOWN = "<unk>"
SPECIAL = (END, UNKNOWN)  # ids 0 and 1; in the published files <unk> is a word like any other


@final
class Words(OwnTokenizer):
    name = "words"
    end = SPECIAL.index(END)

    def __init__(self, words: list[str]) -> None:
        """`words` without the special ones, in the order of their ids."""
        for word in words:
            if word in SPECIAL or word.split() != [word]:
                raise UserError(f"{word!r} is not a valid word: it contains whitespace, is empty or special.")
        self._text_of_id = [*SPECIAL, *words]
        self._id_of_text = {word: number for number, word in enumerate(self._text_of_id)}
        if len(self._id_of_text) != len(self._text_of_id):
            raise UserError("a word is in the vocabulary twice.")

    @property
    def vocab(self) -> int:
        return len(self._text_of_id)

    def encode(self, text: str) -> np.ndarray:
        words: list[str] = []
        lines = text.split("\n")
        for line in lines[:-1]:
            words += line.split()
            words.append(END)
        words += lines[-1].split()  # a last line without a line end has no <eos>
        unknown, known = SPECIAL.index(UNKNOWN), self._id_of_text
        return np.fromiter((known.get(word, unknown) for word in words), dtype=np.int64, count=len(words))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Words with one space between them; <eos> as the end of the line."""
        lines: list[str] = []
        words: list[str] = []
        for number in self.checked(ids).tolist():
            if number == self.end:
                lines.append(" ".join(words) + "\n")
                words = []
            else:
                words.append(self._text_of_id[number])
        return "".join([*lines, " ".join(words)])

    def keeps_text(self, ids: np.ndarray) -> bool:
        """False: the whitespace between words is lost, and so are rare words."""
        return False

    def content(self) -> dict[str, Any]:
        return {"words": self._text_of_id[len(SPECIAL) :]}

    @classmethod
    def from_content(cls, fields: Mapping[str, Any]) -> Words:
        return cls(strings_field(fields, "words"))


def learn_words(texts: Iterable[str], *, min_count: int = 1, size: int = 0) -> Words:
    """The words that occur at least `min_count` times; at most `size` ids in total, unless it is 0."""
    if min_count < 1:
        raise UserError(f"min_count={min_count} given; it should be 1 or more.")
    if 0 < size <= len(SPECIAL) or size < 0:
        raise UserError(f"size={size} given; it should be above {len(SPECIAL)}, or 0 for no limit.")
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
    for special in SPECIAL:
        counts.pop(special, None)
    kept = [word for word, number in counts.items() if number >= min_count]
    kept.sort(key=lambda word: (-counts[word], word))
    return Words(kept[: size - len(SPECIAL)] if size else kept)


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
            raise UserError(f"'{wrong}' is not a token id; expected whole numbers below {self._size}, with spaces.")
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
