"""Memorization (arXiv:2403.17844, Sec. 3.1.6, App. B.1.6): facts that occur only as targets in training.

    a [i] c [i] e [i] a [i]        [i] the insert token; the facts are a:b, c:d, e:f
       b     d     f     b         targets

The facts are the same in all splits: every key has its own value, drawn once per seed. Values are never
inputs, only targets. A fact that does not occur in training can only be guessed, which bounds the accuracy (`ceiling`).

"paper" gives the insert token an id beyond `vocab`; "mad-lab" takes the last of `vocab` (127 keys for 128 values).

    N  sequences      F  facts of a sequence      K  keys
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from plait.tasks.task import IGNORE, Examples, Task
from plait.tasks.task import stream as named_stream


@dataclass(frozen=True)
class Memorization(Task):
    """Know facts by heart."""

    name: ClassVar[str] = "memorization"
    skill: ClassVar[str] = "know facts by heart"
    always_answerable: ClassVar[bool] = False
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {"vocab": (256, 512, 1024, 2048, 4096, 8192)}

    vocab: int = 256
    length: int = 32
    train_size: int = 256
    facts_seed: int = field(default=0, metadata={"setting": False})  # set by `seeded`: the data's seed

    @property
    def layout(self) -> dict[str, int]:
        tokens = self.vocab - self.as_mad_lab
        return {"key": tokens // 2, "value": tokens - tokens // 2, "insert": 1}

    def check(self) -> None:
        self.require(self.vocab >= 4 and self.vocab % 2 == 0, "vocab", "even (half keys, half values) and at least 4")
        self.require(self.length >= 2 and self.length % 2 == 0, "length", "even (keys and inserts) and at least 2")

    def seeded(self, seed: int) -> Memorization:
        return replace(self, facts_seed=seed)

    @cached_property
    def values_K(self) -> np.ndarray:
        """The value of every key."""
        drawn = named_stream(self.as_dict(), self.facts_seed, "facts")
        return drawn.permutation(np.array(self.ids("value"), dtype=self.dtype))[: len(self.ids("key"))]

    @property
    def exposure(self) -> float:
        """The mean number of occurrences of a fact in the training data."""
        return self.train_size * (self.length // 2) / len(self.ids("key"))

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        keys_NF = stream.integers(len(self.ids("key")), size=(count, self.length // 2))
        inputs_NT = np.full((count, self.length), self.ids("insert").start, dtype=self.dtype)
        inputs_NT[:, 0::2] = keys_NF
        targets_NT = np.full_like(inputs_NT, IGNORE)
        targets_NT[:, 1::2] = self.values_K[keys_NF]
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        keys, inserts = inputs[0::2], inputs[1::2]
        if len(inputs) != self.length or any(token not in self.ids("insert") for token in inserts):
            return None
        if any(key not in self.ids("key") for key in keys):
            return None
        return [target for key in keys for target in (IGNORE, int(self.values_K[key]))]

    def ceiling(self, train: Examples, test: Examples) -> float:
        """Facts of the training data are known; the others are guessed among the values of no known fact."""
        known = np.unique(train.inputs_NT[:, 0::2])
        seen = float(np.isin(test.inputs_NT[:, 0::2], known).mean())
        return seen + (1 - seen) / max(1, len(self.ids("value")) - len(known))
