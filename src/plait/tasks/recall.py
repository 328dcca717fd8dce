"""In-context recall, plain and noisy: key-value pairs, then the value of a key seen before (arXiv:2403.17844).

    a b d e f g a b f g        keys a d f, values b e g
                  b   g        targets: the value of every key that has occurred before

Sec. 3.1.1, App. B.1.1. Values are drawn again for every sequence, so they can only be learnt from the sequence itself.
The last pair always repeats a key. Training scores every next token, evaluation the values of keys seen before. Both
variants draw the same sequences; "mad-lab" cuts the last token (127 tokens of 128).

    a b h d e f g i a b f g        keys a d f, values b e g, noise h i
                      b   g        targets

Sec. 3.1.3, App. B.1.3: the same with noise. "paper" puts single noise tokens anywhere between the pairs, a fixed share
of the sequence; the last unit may be noise. "mad-lab" turns each slot of two tokens into noise with that
probability, so that pairs stay aligned, and cuts the last token. (Its authors' code may leave no pair at all to
score; here one is always kept.)

N  sequences  P  pairs of a sequence  M  tokens of a motif  U  units: pairs and noise tokens  T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.task import IGNORE, Examples, Task


def first_seen(codes_NP: np.ndarray) -> np.ndarray:
    """For each position, the first position of its row with the same code (possibly itself)."""
    order_NP = np.argsort(codes_NP, axis=1, kind="stable")  # equal codes adjacent, earliest position first
    sorted_NP = np.take_along_axis(codes_NP, order_NP, axis=1)
    places = np.arange(codes_NP.shape[1])
    starts_NP = np.where(np.diff(sorted_NP, axis=1, prepend=sorted_NP[:, :1] - 1) != 0, places, 0)
    leaders_NP = np.take_along_axis(order_NP, np.maximum.accumulate(starts_NP, axis=1), axis=1)
    first_NP = np.empty_like(order_NP)
    np.put_along_axis(first_NP, order_NP, leaders_NP, axis=1)
    return first_NP


def motifs(stream: np.random.Generator, shape: tuple[int, int], vocab: int, longest: int) -> np.ndarray:
    """(N, P, M) tokens below `vocab`, none of them twice in a motif, every such motif equally likely."""
    drawn_NPM = np.empty((*shape, longest), dtype=np.int64)
    for m in range(longest):
        # The r-th of the unused tokens: r increases by one for every used token at or below it.
        token_NP = stream.integers(vocab - m, size=shape)
        for taken_NP in np.moveaxis(np.sort(drawn_NPM[..., :m], axis=-1), -1, 0):
            token_NP += token_NP >= taken_NP
        drawn_NPM[..., m] = token_NP
    return drawn_NPM


def choose(stream: np.random.Generator, allowed_NP: np.ndarray) -> np.ndarray:
    """One of the allowed positions of each row, uniformly: (N, 1)."""
    lots_NP = np.where(allowed_NP, stream.random(allowed_NP.shape, dtype=np.float32), -1.0)
    chosen_N1: np.ndarray = np.argmax(lots_NP, axis=1, keepdims=True)
    return chosen_N1


def autoregressive(task: Task, tokens_NT: np.ndarray, scored_NT: np.ndarray, *, training: bool) -> Examples:
    """The target of a position is the token after it: everywhere in training, in evaluation where that token is scored.

    "paper" keeps the last token, which has no target; "mad-lab" leaves it out.
    """
    next_NT = np.full(tokens_NT.shape, IGNORE, dtype=task.dtype)
    next_NT[:, :-1] = tokens_NT[:, 1:] if training else np.where(scored_NT[:, 1:], tokens_NT[:, 1:], IGNORE)
    read = slice(None, -1) if task.as_mad_lab else slice(None)
    inputs_NT = tokens_NT.astype(task.dtype)
    return Examples(np.ascontiguousarray(inputs_NT[:, read]), np.ascontiguousarray(next_NT[:, read]))


def take(values_NP: np.ndarray, places_NP: np.ndarray) -> np.ndarray:
    """`values[n, places[n, p]]`."""
    return np.take_along_axis(values_NP, places_NP, axis=1)


@dataclass(frozen=True)
class InContextRecall(Task):
    """Look a key's value up in what was read."""

    name: ClassVar[str] = "in-context-recall"
    skill: ClassVar[str] = "look a key's value up in what was read"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (128, 256, 512, 1024),
        "train_size": (12_800, 6_400, 3_200, 1_600, 800),
        "vocab": (16, 32, 64, 128),
    }

    @property
    def layout(self) -> dict[str, int]:
        return {"key": self.vocab // 2, "value": self.vocab // 2}

    @property
    def input_length(self) -> int:
        return self.length - self.as_mad_lab

    def check(self) -> None:
        self.require(self.vocab >= 4 and self.vocab % 2 == 0, "vocab", "even (half keys, half values) and at least 4")
        self.require(self.length >= 4 and self.length % 2 == 0, "length", "even (whole pairs) and at least 4")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        pairs_NP2, repeats_NP = self.pairs(stream, np.ones((count, self.length // 2), dtype=bool))
        scored_NP2 = np.zeros(pairs_NP2.shape, dtype=bool)
        scored_NP2[..., 1] = repeats_NP
        tokens_NT, scored_NT = pairs_NP2.reshape(count, -1), scored_NP2.reshape(count, -1)
        return autoregressive(self, tokens_NT, scored_NT, training=training)

    def pairs(self, stream: np.random.Generator, present_NP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N, P, 2) tokens, and where a pair's key has occurred before. The last pair repeats a key.

        Positions that are not present have no pair; their content is undefined.
        """
        keys, values, places = self.ids("key"), self.ids("value"), np.arange(present_NP.shape[1])
        dtype = np.int16 if self.vocab + self.length < np.iinfo(np.int16).max else np.int64  # 16 bits sort fastest
        codes_NP = stream.integers(len(keys), size=present_NP.shape, dtype=dtype)
        # A distinct code for every position without a pair, so that it equals no other.
        codes_NP = np.where(present_NP, codes_NP, (len(keys) + places).astype(dtype))
        fresh_NP = present_NP & (first_seen(codes_NP) == places)
        codes_NP[:, -1:] = take(codes_NP, choose(stream, fresh_NP[:, :-1]))
        first_NP = first_seen(codes_NP)
        values_NP = take(stream.integers(values.start, values.stop, size=codes_NP.shape, dtype=dtype), first_NP)
        return np.stack([codes_NP, values_NP], axis=-1), present_NP & (first_NP != places)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """Pair by pair, with a dictionary of the values so far."""
        if len(inputs) != self.input_length:
            return None
        known: dict[int, int] = {}
        targets = [IGNORE] * len(inputs)
        at, repeats = 0, False
        while at < len(inputs):
            if skipped := self.skip(inputs, at):
                at += skipped
                continue
            key, value = inputs[at], inputs[at + 1] if at + 1 < len(inputs) else known.get(inputs[at], IGNORE)
            if key not in self.ids("key") or value not in self.ids("value") or known.get(key, value) != value:
                return None
            if repeats := key in known:
                targets[at] = value
            known[key] = value
            at += 2
        return targets if repeats else None

    def skip(self, inputs: Sequence[int], at: int) -> int:
        """How many tokens from `at` on belong to no pair."""
        return 0


@dataclass(frozen=True)
class NoisyInContextRecall(InContextRecall):
    """Recall, past tokens that mean nothing. `vocab` counts keys and values; noise has ids of its own."""

    name: ClassVar[str] = "noisy-in-context-recall"
    skill: ClassVar[str] = "look a value up past tokens that mean nothing"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {**InContextRecall.steps, "noise": (0.2, 0.4, 0.6, 0.8)}

    noise: float = 0.2  # share of the tokens
    noise_vocab: int = 16

    @property
    def layout(self) -> dict[str, int]:
        return {**super().layout, "noise": self.noise_vocab}

    @property
    def noise_tokens(self) -> int:
        """How many tokens of a sequence are noise ("paper"): the even number nearest the share."""
        return 2 * round(self.noise * self.length / 2)

    def check(self) -> None:
        super().check()
        self.require(0 <= self.noise < 1, "noise", "a fraction, at least 0 and below 1")
        self.require(self.noise_vocab >= 1, "noise_vocab", "at least 1")
        roomy = self.as_mad_lab or self.length - self.noise_tokens >= 4
        self.require(roomy, "noise", f"small enough to leave two pairs in {self.length} tokens")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        draw = self._aligned if self.as_mad_lab else self._scattered
        tokens_NT, scored_NT = draw(stream, count)
        return autoregressive(self, tokens_NT, scored_NT, training=training)

    def _noise(self, stream: np.random.Generator, count: int) -> np.ndarray:
        ids = self.ids("noise")
        return stream.integers(ids.start, ids.stop, size=(count, self.length), dtype=self.dtype)

    def _scattered(self, stream: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = (self.length - self.noise_tokens) // 2
        pairs_NP2, repeats_NP = self.pairs(stream, np.ones((count, pairs), dtype=bool))
        units = np.arange(pairs + self.noise_tokens)
        is_pair_NU = stream.permuted(np.tile(units < pairs, (count, 1)), axis=1)
        ends_NU = np.cumsum(1 + is_pair_NU, axis=1)
        values_at_NP = ends_NU[is_pair_NU].reshape(count, pairs) - 1
        tokens_NT = self._noise(stream, count)
        np.put_along_axis(tokens_NT, values_at_NP - 1, pairs_NP2[..., 0], axis=1)
        np.put_along_axis(tokens_NT, values_at_NP, pairs_NP2[..., 1], axis=1)
        scored_NT = np.zeros(tokens_NT.shape, dtype=bool)
        np.put_along_axis(scored_NT, values_at_NP, repeats_NP, axis=1)
        return tokens_NT, scored_NT

    def _aligned(self, stream: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        present_NP = stream.random((count, self.length // 2)) >= self.noise
        present_NP[:, -1] = True
        kept = choose(stream, np.ones((count, self.length // 2 - 1), dtype=bool))
        np.put_along_axis(present_NP, kept, True, axis=1)
        pairs_NP2, repeats_NP = self.pairs(stream, present_NP)
        noise_NP2 = self._noise(stream, count).reshape(pairs_NP2.shape)
        scored_NP2 = np.zeros(pairs_NP2.shape, dtype=bool)
        scored_NP2[..., 1] = repeats_NP
        tokens_NP2 = np.where(present_NP[..., None], pairs_NP2, noise_NP2)
        return tokens_NP2.reshape(count, -1), scored_NP2.reshape(count, -1)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        noise = sum(token in self.ids("noise") for token in inputs)
        return super().answers(inputs) if self.as_mad_lab or noise == self.noise_tokens else None

    def skip(self, inputs: Sequence[int], at: int) -> int:
        width = 2 if self.as_mad_lab else 1
        here = inputs[at : at + width]
        return width if len(here) == width and all(token in self.ids("noise") for token in here) else 0
