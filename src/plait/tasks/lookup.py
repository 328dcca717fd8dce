"""Recall at a chosen load: how much a state can hold, and whether it can be asked for.

mqar         k1 v1 k2 v2 … then keys among noise, each asked for its value (Arora et al. 2023, arXiv:2312.04927; the
             authors' public code). With `updates` some keys get a second value, and the last one counts.
palindrome   x1 … xn <sep> xn … x1, each token but the first of the second half asked for
stack        <push> s e and <pop> s e for many stacks at once; the element that a pop gives is asked for
phonebook    name, number, name, number … then one name, and its number is asked for digit by digit (Jelassi et al.
             2024, arXiv:2402.01032)

Palindrome and stack: Kimi Team 2025, arXiv:2510.26692, Sec. 5.1, which does not say how operations are drawn: here a
stack with elements is popped half of the time.

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
        keys_NP = _distinct(stream, len(self.ids("key")), (count, P)) + self.ids("key").start
        values_NV = _distinct(stream, len(self.ids("value")), (count, P + U)) + first_value
        updated_NU = _distinct(stream, P, (count, U))
        inputs_NT = stream.integers(self.vocab, size=(count, self.length))
        context = 2 * (P + U)
        inputs_NT[:, 0:context:2] = np.concatenate([keys_NP, keys_NP[rows, updated_NU]], axis=1)
        inputs_NT[:, 1:context:2] = values_NV
        answers_NP = values_NV[:, :P].copy()
        answers_NP[rows, updated_NU] = values_NV[:, P:]
        # Gaps to the queries follow a power law; drawing without replacement by weight is sorting exponentials.
        slots = (self.length - context) // 2
        weight = np.arange(1, slots + 1) ** (0.01 - 1)
        lots = stream.exponential(size=(count, slots)) / weight
        at_NP = context + 2 * np.argsort(lots, axis=1)[:, :P]
        targets_NT = np.full((count, self.length), IGNORE)
        inputs_NT[rows, at_NP], targets_NT[rows, at_NP] = keys_NP, answers_NP
        return Examples(inputs_NT.astype(self.dtype), targets_NT.astype(self.dtype))

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """The last value of a key, at the one place of the second part where it is asked for: the first even one."""
        context = 2 * (self.pairs + self.updates)
        if len(inputs) != self.length or any(token not in range(self.vocab) for token in inputs):
            return None
        known = {inputs[at]: inputs[at + 1] for at in range(0, context, 2)}
        targets = [IGNORE] * self.length
        for at in range(context, self.length, 2):
            if inputs[at] in known:
                targets[at] = known.pop(inputs[at])
        return None if known else targets

    def valid(self, inputs: Sequence[int], targets: Sequence[int]) -> bool:
        """Noise may hold a key as well, so that which of two equal tokens is asked cannot be told from the input."""
        context = 2 * (self.pairs + self.updates)
        known = {int(inputs[at]): int(inputs[at + 1]) for at in range(0, context, 2)}
        asked = {int(inputs[at]): int(target) for at, target in enumerate(targets) if target != IGNORE}
        return asked == known and int((np.asarray(targets) != IGNORE).sum()) == self.pairs


@dataclass(frozen=True)
class Palindrome(Task):
    """Tokens, and the same tokens backwards."""

    name: ClassVar[str] = "palindrome"
    skill: ClassVar[str] = "say it backwards"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (32, 64, 128, 256),
        "vocab": (16, 32, 64),
        "train_size": TRAIN_SIZES,
    }

    length: int = 64

    @property
    def layout(self) -> dict[str, int]:
        return {"token": self.vocab, "sep": 1}

    def check(self) -> None:
        self.require(self.vocab >= 2, "vocab", "at least 2")
        self.require(self.length >= 4 and self.length % 2 == 0, "length", "even and at least 4")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        half = self.length // 2
        tokens_NP = stream.integers(self.vocab, size=(count, half), dtype=self.dtype)
        backwards_NP = tokens_NP[:, ::-1]
        sep_N1 = np.full((count, 1), self.ids("sep").start, dtype=self.dtype)
        inputs_NT = np.concatenate([tokens_NP, sep_N1, backwards_NP[:, :-1]], axis=1)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        targets_NT[:, half + 1 :] = backwards_NP[:, 1:]
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        half = self.length // 2
        read, sep, said = list(inputs[:half]), inputs[half : half + 1], list(inputs[half + 1 :])
        if len(inputs) != self.length or list(sep) != [self.vocab] or any(t not in range(self.vocab) for t in read):
            return None
        if said != read[:0:-1]:
            return None
        return [IGNORE] * (half + 1) + read[-2::-1]


@dataclass(frozen=True)
class Stack(Task):
    """Many stacks at once: what does a pop of this one give?"""

    name: ClassVar[str] = "stack"
    skill: ClassVar[str] = "keep many stacks"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (48, 96, 192),
        "stacks": (4, 16, 64),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 26
    length: int = 96
    stacks: int = 64

    @property
    def layout(self) -> dict[str, int]:
        return {"element": self.vocab, "stack": self.stacks, "push": 1, "pop": 1}

    def check(self) -> None:
        self.require(self.vocab >= 2, "vocab", "at least 2")
        self.require(self.stacks >= 1, "stacks", "at least 1")
        self.require(self.length >= 6 and self.length % 3 == 0, "length", "a multiple of 3 and at least 6")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        inputs_NT = np.empty((count, self.length), dtype=self.dtype)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        push, pop, first = self.ids("push").start, self.ids("pop").start, self.ids("stack").start
        which = stream.integers(self.stacks, size=(count, self.length // 3))
        pops = stream.random((count, self.length // 3)) < 0.5
        drawn = stream.integers(self.vocab, size=(count, self.length // 3))
        for row in range(count):
            held: dict[int, list[int]] = {}
            for i in range(self.length // 3):
                # The last operation is a pop of something, so that every sequence asks for something.
                last = i == self.length // 3 - 1
                stack = int(which[row, i])
                if last and not held.get(stack):
                    stack = next((s for s, inside in held.items() if inside), stack)
                taken = bool(held.get(stack)) and (last or bool(pops[row, i]))
                element = held[stack].pop() if taken else int(drawn[row, i])
                if taken:
                    targets_NT[row, 3 * i + 1] = element
                else:
                    held.setdefault(stack, []).append(element)
                inputs_NT[row, 3 * i : 3 * i + 3] = (pop if taken else push, first + stack, element)
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        if len(inputs) != self.length:
            return None
        held: dict[int, list[int]] = {}
        targets: list[int] = []
        for at in range(0, self.length, 3):
            operation, stack, element = inputs[at : at + 3]
            kinds = [self.describe_token(token) for token in (operation, stack, element)]
            if kinds[0] not in ("push", "pop") or kinds[1:] != ["stack", "element"]:
                return None
            inside = held.setdefault(stack, [])
            if kinds[0] == "push":
                inside.append(element)
            elif not inside or inside.pop() != element:
                return None
            targets += [IGNORE, element if kinds[0] == "pop" else IGNORE, IGNORE]
        return targets


@dataclass(frozen=True)
class Phonebook(Task):
    """Names with their numbers, then one of the names: what is its number?"""

    name: ClassVar[str] = "phonebook"
    skill: ClassVar[str] = "look up a number, digit by digit"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (60, 120, 240),
        "digits": (3, 5, 9),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 256
    length: int = 60
    digits: int = 5

    @property
    def layout(self) -> dict[str, int]:
        return {"digit": 10, "name": self.vocab, "ask": 1}

    @property
    def entries(self) -> int:
        """How many numbers the book has; the query takes one entry's room."""
        return self.length // (self.digits + 1) - 1

    def check(self) -> None:
        self.require(self.digits >= 1, "digits", "at least 1")
        self.require(self.length % (self.digits + 1) == 0, "length", "a multiple of digits + 1")
        self.require(2 <= self.entries <= self.vocab, "length", "room for 2 entries to one per name, and the query")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        E, D = self.entries, self.digits
        names_NE = _distinct(stream, self.vocab, (count, E)) + self.ids("name").start
        numbers_NED = stream.integers(10, size=(count, E, D))
        asked_N1 = stream.integers(E, size=(count, 1))
        book = np.concatenate([names_NE[:, :, None], numbers_NED], axis=2).reshape(count, -1)
        name_N1 = np.take_along_axis(names_NE, asked_N1, axis=1)
        number_ND = np.take_along_axis(numbers_NED, asked_N1[:, :, None], axis=1)[:, 0]
        ask_N1 = np.full((count, 1), self.ids("ask").start)
        inputs_NT = np.concatenate([book, ask_N1, name_N1, number_ND[:, :-1]], axis=1)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        targets_NT[:, -D:] = number_ND
        return Examples(inputs_NT.astype(self.dtype), targets_NT.astype(self.dtype))

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        size = self.digits + 1
        book = {inputs[at]: list(inputs[at + 1 : at + size]) for at in range(0, self.entries * size, size)}
        if len(inputs) != self.length or len(book) != self.entries or self.describe_token(inputs[-size]) != "ask":
            return None
        number = book.get(inputs[1 - size] if self.digits > 1 else inputs[-1])
        said = list(inputs[len(inputs) - size + 2 :])
        if number is None or said != number[:-1]:
            return None
        return [IGNORE] * (self.length - self.digits) + number


def _distinct(stream: np.random.Generator, among: int, shape: tuple[int, int]) -> np.ndarray:
    """Rows of different numbers below `among`."""
    count, width = shape
    if not width:
        return np.empty(shape, dtype=np.int64)
    if width * 8 > among:
        return np.argsort(stream.random((count, among)), axis=1)[:, :width]
    # Few of many: draw, and draw again where two are equal.
    found = stream.integers(among, size=shape)
    while True:
        ordered = np.sort(found, axis=1)
        twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if not len(twice):
            return found
        found[twice] = stream.integers(among, size=(len(twice), width))
