"""A corpus: tokens in three splits, and what is known about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from plait.core.errors import UserError, did_you_mean
from plait.data.tokenizers.tokenizer import Tokenizer

SPLITS = ("train", "validation", "test")

#: Called with what is being done, how much of it is done and how much there is, in bytes of the source.
Progress = Callable[[str, int, int], None]


@final
@dataclass(frozen=True)
class Corpus:
    name: str  # as it was asked for
    tokenizer: Tokenizer
    fingerprint: str  # of text, cut and tokenizer: equal fingerprints, equal tokens
    entropy: float | None  # the exact entropy rate in nats a token, where it is known
    _tokens: Mapping[str, np.ndarray] = field(repr=False)
    _characters: Callable[[str], int] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Which corpus it is, in plain JSON. Keys of stored records are made of it: it must not change."""
        return {"name": self.name, "fingerprint": self.fingerprint, "tokenizer": self.tokenizer.as_dict()}

    @property
    def vocab(self) -> int:
        return self.tokenizer.vocab

    def tokens(self, split: str) -> np.ndarray:
        """All tokens of train, validation or test in order; a read-only array of unsigned integers."""
        return self._tokens[_known(split)]

    def training_on(self, tokens: np.ndarray) -> Corpus:
        """The same corpus with these as its training tokens: a part of its own, say."""
        return replace(self, _tokens={**{split: self._tokens[split] for split in SPLITS}, "train": tokens})

    def characters(self, split: str) -> int:
        """How many characters the tokens of a split stand for: what bits per character divide by."""
        return self._characters(_known(split))


def _known(split: str) -> str:
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'.{did_you_mean(split, SPLITS)} Known: {', '.join(SPLITS)}.")
    return split
