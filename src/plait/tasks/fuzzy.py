"""Fuzzy in-context recall (arXiv:2403.17844, Sec. 3.1.2, App. B.1.2): recall where keys and values are several tokens.

    (a d) (b) (d a f) (e g) (d a f) (e g)        keys of a d f, values of b e g; the brackets are not there
                                    (e g)        targets, token by token

A key or value is a motif: one to `motif` different tokens. Sequences are padded on the left. Evaluation scores only the
values of repeated keys of full length: a shorter key could be the prefix of a longer one.
The last pair always repeats a key of full length.

"paper" mixes key lengths in all splits, as the example of App. B.1.2 does, and gives the pad token an id beyond
`vocab`. "mad-lab" mixes them in training and evaluates on sequences whose keys are all of full length; its pad token
is the last of `vocab`, and it reads `length` tokens of a sequence one longer. (In 2 % of its sequences the
authors' code asks for keys that never occurred; here every key asked for has been seen.)

    N  sequences      P  pairs of a sequence      M  tokens of a motif      T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from plait.tasks.recall import InContextRecall, autoregressive, choose, first_seen, motifs, take
from plait.tasks.task import IGNORE, Examples, Task


@dataclass(frozen=True)
class _Pairs:
    """Drawn keys and values; a repeated key has its first value. Motifs are longer than their length says."""

    keys_NPM: np.ndarray
    key_lengths_NP: np.ndarray
    values_NPM: np.ndarray
    value_lengths_NP: np.ndarray
    first_NP: np.ndarray

    @property
    def lengths_NP(self) -> np.ndarray:
        both_NP: np.ndarray = self.key_lengths_NP + self.value_lengths_NP
        return both_NP

    @property
    def starts_NP(self) -> np.ndarray:
        before_NP: np.ndarray = np.cumsum(self.lengths_NP, axis=1) - self.lengths_NP
        return before_NP


@dataclass(frozen=True)
class FuzzyInContextRecall(Task):
    """Recall of keys and values that are several tokens long."""

    name: ClassVar[str] = "fuzzy-in-context-recall"
    skill: ClassVar[str] = "recall where keys and values are several tokens"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = InContextRecall.steps

    motif: int = 3  # most tokens of a key, and of a value

    @property
    def layout(self) -> dict[str, int]:
        tokens = self.vocab - self.as_mad_lab
        return {"key": tokens // 2, "value": tokens - tokens // 2, "pad": 1}

    def check(self) -> None:
        self.require(self.vocab % 2 == 0, "vocab", "even (half keys, half values)")
        self.require(self.motif >= 1, "motif", "at least 1")
        least = 2 * (self.motif + self.as_mad_lab)
        self.require(self.vocab >= max(4, least), "vocab", f"at least {max(4, least)} for motifs of {self.motif}")
        self.require(len(self.ids("key")) ** self.motif < 2**60, "motif", "shorter, for this vocabulary")
        self.require(self.length >= 4 * self.motif, "length", f"at least {4 * self.motif} for motifs of {self.motif}")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        total = self.length + self.as_mad_lab
        shape = (count, total // (1 + self.motif if self.as_mad_lab and not training else 2))
        lengths_NP = stream.integers(1, self.motif + 1, size=shape)
        if self.as_mad_lab and not training:
            lengths_NP[:] = self.motif
        keys_NPM = motifs(stream, shape, len(self.ids("key")), self.motif)
        values_NPM = motifs(stream, shape, len(self.ids("value")), self.motif)
        value_lengths_NP = stream.integers(1, self.motif + 1, size=shape)

        # A pair is kept while the longest pair, and the longest last pair after it, would still fit.
        room = total - 4 * self.motif
        pairs = _consistent(keys_NPM, lengths_NP, values_NPM, value_lengths_NP)
        probe_N1 = choose(stream, pairs.starts_NP <= room)
        if not self.as_mad_lab:
            # The key to be repeated gets full length. Its start does not change, so it is always kept.
            np.put_along_axis(lengths_NP, probe_N1, self.motif, axis=1)
            pairs = _consistent(keys_NPM, lengths_NP, values_NPM, value_lengths_NP)
        kept_NP = pairs.starts_NP <= room
        pairs, kept_NP = _with_last(pairs, kept_NP, probe_N1)

        repeated_NP = (pairs.first_NP != np.arange(kept_NP.shape[1])) & (pairs.key_lengths_NP == self.motif)
        tokens_NT, scored_NT = self._laid_out(pairs, kept_NP, repeated_NP, total)
        return autoregressive(self, tokens_NT, scored_NT, training=training)

    def _laid_out(
        self, pairs: _Pairs, kept_NP: np.ndarray, repeated_NP: np.ndarray, total: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the kept pairs, right-aligned, and which of them are scored."""
        lengths_NP = np.where(kept_NP, pairs.lengths_NP, 0)
        starts_NP = total + np.cumsum(lengths_NP, axis=1) - lengths_NP - lengths_NP.sum(axis=1, keepdims=True)
        tokens_NT = np.full((len(kept_NP), total), self.ids("pad").start, dtype=self.dtype)
        scored_NT = np.zeros(tokens_NT.shape, dtype=bool)
        for m in range(self.motif):
            row, pair = np.nonzero(kept_NP & (m < pairs.key_lengths_NP))
            tokens_NT[row, starts_NP[row, pair] + m] = pairs.keys_NPM[row, pair, m]
            row, pair = np.nonzero(kept_NP & (m < pairs.value_lengths_NP))
            at = starts_NP[row, pair] + pairs.key_lengths_NP[row, pair] + m
            tokens_NT[row, at] = pairs.values_NPM[row, pair, m] + self.ids("value").start
            scored_NT[row, at] = repeated_NP[row, pair]
        return tokens_NT, scored_NT

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """Split into motifs (keys and values have different tokens), then pair by pair, with a dictionary."""
        padding = next((at for at, token in enumerate(inputs) if token not in self.ids("pad")), len(inputs))
        runs = [tuple(run) for _, run in groupby(inputs[padding:], lambda token: token in self.ids("key"))]
        keys, values = runs[0::2], runs[1::2]
        if self.as_mad_lab and len(keys) > len(values):
            values.append(())  # the last token, which was cut, was the whole value
        if len(inputs) != self.input_length or not keys or len(keys) != len(values):
            return None
        if not all(self._is_motif(key, "key") for key in keys) or not all(self._is_motif(v, "value") for v in values):
            return None
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        targets, at, repeats = [IGNORE] * len(inputs), padding, False
        for pair, (key, value) in enumerate(zip(keys, values, strict=True), start=1):
            if self.as_mad_lab and pair == len(keys) and value == known.get(key, (IGNORE,))[:-1]:
                value = known[key]
            if known.get(key, value) != value or (self.as_mad_lab and len(key) < self.motif):
                return None
            at += len(key)
            if repeats := key in known and len(key) == self.motif:
                targets[at - 1 : at - 1 + len(value)] = value
            known[key] = value
            at += len(value)
        return targets if repeats else None

    def _is_motif(self, tokens: tuple[int, ...], kind: str) -> bool:
        return len(tokens) == len(set(tokens)) <= self.motif and all(token in self.ids(kind) for token in tokens)


def _consistent(
    keys_NPM: np.ndarray, key_lengths_NP: np.ndarray, values_NPM: np.ndarray, value_lengths_NP: np.ndarray
) -> _Pairs:
    """The pairs, with repeated keys given the value of their first occurrence."""
    used_NPM = np.where(np.arange(keys_NPM.shape[2]) < key_lengths_NP[..., None], keys_NPM + 1, 0)
    base = int(keys_NPM.max(initial=0)) + 2
    first_NP = first_seen(used_NPM @ base ** np.arange(keys_NPM.shape[2]))
    values_NPM = np.take_along_axis(values_NPM, first_NP[..., None], axis=1)
    return _Pairs(keys_NPM, key_lengths_NP, values_NPM, take(value_lengths_NP, first_NP), first_NP)


def _with_last(pairs: _Pairs, kept_NP: np.ndarray, probe_N1: np.ndarray) -> tuple[_Pairs, np.ndarray]:
    """The pairs with one more at the end that repeats the probe."""

    def more(values: np.ndarray) -> np.ndarray:
        index = probe_N1[..., None] if values.ndim == 3 else probe_N1
        return np.concatenate([values, np.take_along_axis(values, index, axis=1)], axis=1)

    extended = replace(pairs, **{name: more(getattr(pairs, name)) for name in vars(pairs)})
    return extended, np.concatenate([kept_NP, np.ones_like(probe_N1, dtype=bool)], axis=1)
