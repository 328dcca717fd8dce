"""Tokenizers that need no library: bytes, characters, words, and ids as they are.

bytes   one token per byte of UTF-8: nothing to learn, nothing unknown, 256 ids
chars   one token per character of a known alphabet
words   as WikiText-103 and LM1B are modelled: words are what whitespace separates, every line ends in <eos>, rare words
        are <unk>. Ids follow frequency, the most frequent first, so that the cutoffs of an adaptive softmax (Grave et
        al. 2017) group words of like frequency
ids     token ids written as numbers, for data that comes as tokens without a tokenizer
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from plait.core.errors import UserError
from plait.data.tokenizers import OwnTokenizer, count_field, flag_field, string_field, strings_field, utf8


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
            raise UserError("a character is in the alphabet twice.")
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
SPECIAL = (END, UNKNOWN)  # ids 0 and 1; in the published files <unk> is a word like others


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
        words += lines[-1].split()  # a last line that does not end: no <eos>
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
    """The words that occur at least `min_count` times; at most `size` ids in all, where it is not 0."""
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
