"""In-context recall (arXiv:2403.17844, Sec. 3.1.1, App. B.1.1): key-value pairs, then the value of a key seen before.

    a b d e f g a b f g        keys a d f, values b e g
                  b   g        asked for: the value of every key that has occurred before

The values are drawn anew for every sequence, so nothing but the sequence itself tells them. The last pair always
repeats a key. Training asks for every next token, evaluation for the values that can be known.

The variants draw the same sequences; "mad-lab" cuts the last token (127 tokens of 128).

    N  sequences      P  pairs of a sequence      T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.draws import autoregressive, choose, first_seen, take
from plait.tasks.task import IGNORE, Examples, Task


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

        Places that are not present hold no pair; what stands there is undefined.
        """
        keys, values, places = self.ids("key"), self.ids("value"), np.arange(present_NP.shape[1])
        dtype = np.int16 if self.vocab + self.length < np.iinfo(np.int16).max else np.int64  # 16 bits sort fastest
        codes_NP = stream.integers(len(keys), size=present_NP.shape, dtype=dtype)
        # A code of its own for every place without a pair: it repeats nothing and nothing repeats it.
        codes_NP = np.where(present_NP, codes_NP, (len(keys) + places).astype(dtype))
        fresh_NP = present_NP & (first_seen(codes_NP) == places)
        codes_NP[:, -1:] = take(codes_NP, choose(stream, fresh_NP[:, :-1]))
        first_NP = first_seen(codes_NP)
        values_NP = take(stream.integers(values.start, values.stop, size=codes_NP.shape, dtype=dtype), first_NP)
        return np.stack([codes_NP, values_NP], axis=-1), present_NP & (first_NP != places)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """Read pair by pair, a dictionary in hand."""
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
