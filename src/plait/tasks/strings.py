"""Copying a string, and finding a piece of it: attention can look back, a fixed state has to hold the whole string.

copy           x | x           the string again, after the bar
ngram-lookup   x | g → a       a piece g that occurs once in x; the target is the letter that followed it there. With
               g | x | → a     `before=1` the piece comes first, so that a fixed state knows what to look for

Jelassi et al. 2024, arXiv:2402.01032, Secs. 3 and 4 (letters, pieces of three).

    N  sequences      T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.mqar import TRAIN_SIZES
from plait.tasks.task import IGNORE, Examples, Task


@dataclass(frozen=True)
class Copy(Task):
    """A string, and the same string."""

    name: ClassVar[str] = "copy"
    skill: ClassVar[str] = "say it again"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (32, 64, 128, 256),
        "vocab": (10, 26, 100),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 26
    length: int = 64

    @property
    def layout(self) -> dict[str, int]:
        return {"letter": self.vocab, "bar": 1}

    def check(self) -> None:
        self.require(self.vocab >= 2, "vocab", "at least 2")
        self.require(self.length >= 4 and self.length % 2 == 0, "length", "even and at least 4")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        half = self.length // 2
        letters_NH = stream.integers(self.vocab, size=(count, half), dtype=self.dtype)
        bar_N1 = np.full((count, 1), self.ids("bar").start, dtype=self.dtype)
        inputs_NT = np.concatenate([letters_NH, bar_N1, letters_NH[:, :-1]], axis=1)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        targets_NT[:, half:] = letters_NH
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        bar = self.ids("bar").start
        if len(inputs) != self.length or bar not in inputs:
            return None
        at = list(inputs).index(bar)
        read, said = list(inputs[:at]), list(inputs[at + 1 :])
        return [IGNORE] * at + read if said == read[:-1] and bar not in read else None


@dataclass(frozen=True)
class NgramLookup(Task):
    """A piece of a string that occurs once in it: which letter follows there?"""

    name: ClassVar[str] = "ngram-lookup"
    skill: ClassVar[str] = "find a piece of a string"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (32, 64, 128),
        "n": (2, 3, 4),
        "before": (0, 1),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 26
    length: int = 64
    n: int = 3
    before: int = 0

    @property
    def layout(self) -> dict[str, int]:
        return {"letter": self.vocab, "bar": 1}

    @property
    def string_length(self) -> int:
        return self.length - self.n - 1 - self.before

    def check(self) -> None:
        self.require(self.n >= 1, "n", "at least 1")
        self.require(self.before in (0, 1), "before", "0 or 1")
        self.require(self.string_length > self.n, "length", f"at least {2 * self.n + 2 + self.before}")
        self.require(self.vocab**self.n >= 4 * self.string_length, "vocab", "enough for pieces that occur once")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        L, n, bar = self.string_length, self.n, self.ids("bar").start
        letters_NL = stream.integers(self.vocab, size=(count, L), dtype=np.int64)
        at_N = np.full(count, -1)
        again = np.arange(count)
        while len(again):
            # Each piece as one number; the last piece of the string has no successor.
            codes = sum(letters_NL[again, i : L - n + 1 + i] * self.vocab**i for i in range(n))
            assert isinstance(codes, np.ndarray)
            place = stream.integers(L - n, size=len(again))
            chosen = codes[np.arange(len(again)), place]
            once = (codes == chosen[:, None]).sum(axis=1) == 1
            at_N[again[once]] = place[once]
            again = again[~once]
            letters_NL[again] = stream.integers(self.vocab, size=(len(again), L))
        piece_Nn = np.take_along_axis(letters_NL, at_N[:, None] + np.arange(n), axis=1)
        bar_N1 = np.full((count, 1), bar)
        parts = [piece_Nn, bar_N1, letters_NL, bar_N1] if self.before else [letters_NL, bar_N1, piece_Nn]
        inputs_NT = np.concatenate(parts, axis=1).astype(self.dtype)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        targets_NT[:, -1] = letters_NL[np.arange(count), at_N + n]
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """By searching all positions of the string."""
        bar, n = self.ids("bar").start, self.n
        if len(inputs) != self.length or list(inputs).count(bar) != 1 + self.before:
            return None
        parts = "".join(chr(token) for token in inputs).split(chr(bar))
        piece, string = (parts[0], parts[1]) if self.before else (parts[1], parts[0])
        places = [i for i in range(len(string) - n + 1) if string[i : i + n] == piece]
        if len(piece) != n or len(places) != 1 or places[0] + n >= len(string):
            return None
        return [IGNORE] * (self.length - 1) + [ord(string[places[0] + n])]
