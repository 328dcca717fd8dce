"""One token a word, as WikiText-103 and LM1B are modelled: words are what whitespace separates, every line ends in
<eos>, rare words are <unk>.

Ids follow frequency, the most frequent first, so that the cutoffs of an adaptive softmax (Grave et al. 2017) group
words of like frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from plait.core.errors import UserError
from plait.data.tokenizers.tokenizer import OwnTokenizer, strings_field

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
                raise UserError(f"{word!r} is no word of a vocabulary: it holds whitespace, is empty or special.")
        self._text_of_id = [*SPECIAL, *words]
        self._id_of_text = {word: number for number, word in enumerate(self._text_of_id)}
        if len(self._id_of_text) != len(self._text_of_id):
            raise UserError("a word stands in the vocabulary twice.")

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
