"""Multi-query associative recall: pairs of keys and values, then the keys among noise; the targets are their values.

mqar                 k1 v1 k2 v2 … then the keys (Arora et al. 2023, arXiv:2312.04927; the authors' public code, as are
                     the other two)
forgetting-mqar      some keys get a second value, and the last one counts: a state that only adds keeps the first
compositional-mqar   a key is two tokens, and all combinations occur: neither token alone determines the value

    N  sequences      T  tokens of a sequence      P  pairs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.task import IGNORE, Examples, Task

TRAIN_SIZES = (12_800, 6_400, 3_200, 1_600, 800)


@dataclass(frozen=True)
class Mqar(Task):
    """Keys with their values, then the keys again among noise."""

    name: ClassVar[str] = "mqar"
    skill: ClassVar[str] = "recall many pairs, asked for once each"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (64, 128, 256),
        "pairs": (4, 8, 16),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 8192
    length: int = 64
    pairs: int = 4
    updates: int = 0

    @property
    def asked(self) -> str:
        """Which keys evaluation scores: all, updated (those with a second value) or kept (the others)."""
        return "all"

    @property
    def layout(self) -> dict[str, int]:
        return {"noise": 1, "key": self.vocab // 2 - 1, "value": self.vocab - self.vocab // 2}

    def check(self) -> None:
        self.require(self.pairs >= 1, "pairs", "at least 1")
        self.require(self.vocab // 2 - 1 >= self.pairs + self.updates, "vocab", "more than twice pairs + updates")
        self.require(self.updates <= self.pairs, "updates", "at most pairs")
        least = 2 * (self.pairs + self.updates) + 2 * self.pairs
        self.require(self.length >= least and self.length % 2 == 0, "length", f"even and at least {least}")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        P, U, first_value = self.pairs, self.updates, self.ids("value").start
        rows = np.arange(count)[:, None]
        keys_NP = distinct(stream, len(self.ids("key")), (count, P)) + self.ids("key").start
        values_NV = distinct(stream, len(self.ids("value")), (count, P + U)) + first_value
        updated_NU = distinct(stream, P, (count, U))
        inputs_NT = stream.integers(self.vocab, size=(count, self.length))
        context = 2 * (P + U)
        inputs_NT[:, 0:context:2] = np.concatenate([keys_NP, keys_NP[rows, updated_NU]], axis=1)
        inputs_NT[:, 1:context:2] = values_NV
        answers_NP = values_NV[:, :P].copy()
        answers_NP[rows, updated_NU] = values_NV[:, P:]
        at_NP = context + 2 * early_slots(stream, (self.length - context) // 2, (count, P))
        targets_NT = np.full((count, self.length), IGNORE)
        if self.asked != "all" and not training:
            changed_NP = np.zeros((count, P), dtype=bool)
            changed_NP[rows, updated_NU] = True
            answers_NP[changed_NP == (self.asked == "kept")] = IGNORE
        inputs_NT[rows, at_NP], targets_NT[rows, at_NP] = keys_NP, answers_NP
        return Examples(inputs_NT.astype(self.dtype), targets_NT.astype(self.dtype))

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """The last value of a key, at its first even position in the second part, where it is asked for."""
        context = 2 * (self.pairs + self.updates)
        if len(inputs) != self.length or any(token not in range(self.vocab) for token in inputs):
            return None
        known, asked = self._known(inputs)
        targets = [IGNORE] * self.length
        for at in range(context, self.length, 2):
            if inputs[at] in known:
                value = known.pop(inputs[at])
                targets[at] = value if inputs[at] in asked else IGNORE
        return None if known else targets

    def valid(self, inputs: Sequence[int], targets: Sequence[int]) -> bool:
        """Noise may equal a key, so the input alone does not say which of two equal tokens is scored."""
        known, asked = self._known([int(token) for token in inputs])
        targets_by_key = {int(inputs[at]): int(target) for at, target in enumerate(targets) if target != IGNORE}
        right = targets_by_key == {key: known[key] for key in asked}
        return right and int((np.asarray(targets) != IGNORE).sum()) == len(asked)

    def _known(self, inputs: Sequence[int]) -> tuple[dict[int, int], set[int]]:
        """Each key's last value, and the keys that are scored."""
        context = 2 * (self.pairs + self.updates)
        known = {inputs[at]: inputs[at + 1] for at in range(0, context, 2)}
        updated = {inputs[at] for at in range(2 * self.pairs, context, 2)}
        return known, {"all": set(known), "updated": updated, "kept": set(known) - updated}[self.asked]


@dataclass(frozen=True)
class ForgettingMqar(Mqar):
    """Keys with their values, some of them changed, then the keys again among noise."""

    name: ClassVar[str] = "forgetting-mqar"
    skill: ClassVar[str] = "recall the last of two values"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {**Mqar.steps, "updates": (1, 2, 4)}

    length: int = 128
    updates: int = 2
    scored: str = "all"  # in evaluation: all, updated or kept

    @property
    def asked(self) -> str:
        return self.scored

    def check(self) -> None:
        super().check()
        there = {"all": self.pairs, "updated": self.updates, "kept": self.pairs - self.updates}
        some = ", ".join(kind for kind, number in there.items() if number)
        self.require(there.get(self.scored, 0) > 0, "scored", some)


@dataclass(frozen=True)
class CompositionalMqar(Task):
    """Keys of two tokens with their values, in a grid of all combinations, then the keys again among noise."""

    name: ClassVar[str] = "compositional-mqar"
    skill: ClassVar[str] = "recall by two tokens together"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (96, 192, 384),
        "side": (2, 3, 4),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 8190
    length: int = 96
    side: int = 3  # of the grid: side² pairs

    @property
    def layout(self) -> dict[str, int]:
        third = self.vocab // 3
        return {"noise": 1, "first": third - 1, "second": third, "value": self.vocab - 2 * third}

    def check(self) -> None:
        self.require(self.side >= 1, "side", "at least 1")
        self.require(self.vocab // 3 - 1 >= self.side**2, "vocab", "more than three times the pairs, side²")
        least = 6 * self.side**2
        self.require(self.length >= least and self.length % 3 == 0, "length", f"a multiple of 3 and at least {least}")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        S, P = self.side, self.side**2
        rows = np.arange(count)[:, None]
        first, second, value = (self.ids(kind) for kind in ("first", "second", "value"))
        firsts_NS = distinct(stream, len(first), (count, S)) + first.start
        seconds_NS = distinct(stream, len(second), (count, S)) + second.start
        values_NP = distinct(stream, len(value), (count, P)) + value.start
        pair_P = np.arange(P)
        triples_NP3 = np.stack([firsts_NS[:, pair_P // S], seconds_NS[:, pair_P % S], values_NP], axis=-1)
        triples_NP3 = triples_NP3[rows, stream.permuted(np.tile(pair_P, (count, 1)), axis=1)]
        inputs_NT = stream.integers(self.vocab, size=(count, self.length))
        inputs_NT[:, : 3 * P] = triples_NP3.reshape(count, -1)
        at_NP = 3 * P + 3 * early_slots(stream, (self.length - 3 * P) // 3, (count, P))
        targets_NT = np.full((count, self.length), IGNORE)
        inputs_NT[rows, at_NP], inputs_NT[rows, at_NP + 1] = triples_NP3[..., 0], triples_NP3[..., 1]
        targets_NT[rows, at_NP + 1] = triples_NP3[..., 2]
        return Examples(inputs_NT.astype(self.dtype), targets_NT.astype(self.dtype))

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """The value of a pair of tokens, at its first position in the second part."""
        context = 3 * self.side**2
        if len(inputs) != self.length or any(token not in range(self.vocab) for token in inputs):
            return None
        known = {tuple(inputs[at : at + 2]): inputs[at + 2] for at in range(0, context, 3)}
        targets = [IGNORE] * self.length
        for at in range(context, self.length, 3):
            targets[at + 1] = known.pop(tuple(inputs[at : at + 2]), IGNORE)
        return None if known else targets

    def valid(self, inputs: Sequence[int], targets: Sequence[int]) -> bool:
        """Noise may equal a key, so the input alone does not say which of two equal pairs is scored."""
        tokens, context = [int(token) for token in inputs], 3 * self.side**2
        known = {tuple(tokens[at : at + 2]): tokens[at + 2] for at in range(0, context, 3)}
        asked = {tuple(tokens[at - 1 : at + 1]): int(t) for at, t in enumerate(targets) if t != IGNORE}
        return asked == known and int((np.asarray(targets) != IGNORE).sum()) == len(known)


def early_slots(stream: np.random.Generator, slots: int, shape: tuple[int, int]) -> np.ndarray:
    """Rows of different slots, early ones preferred: slot i has weight i^-0.99. (To draw by weight without replacement,
    divide exponential noise by the weights and sort.)"""
    count, width = shape
    weight = np.arange(1, slots + 1) ** (0.01 - 1)
    lots = stream.exponential(size=(count, slots)) / weight
    chosen: np.ndarray = np.argsort(lots, axis=1)[:, :width]
    return chosen


def distinct(stream: np.random.Generator, among: int, shape: tuple[int, int]) -> np.ndarray:
    """Rows of different numbers below `among`."""
    count, width = shape
    if not width:
        return np.empty(shape, dtype=np.int64)
    if width * 8 > among:
        return np.argsort(stream.random((count, among)), axis=1)[:, :width]
    # Few of many: draw, and redraw rows with duplicates.
    rows = stream.integers(among, size=shape)
    while True:
        ordered = np.sort(rows, axis=1)
        twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if not len(twice):
            return rows
        rows[twice] = stream.integers(among, size=(len(twice), width))
