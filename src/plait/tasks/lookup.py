"""Recall at a chosen load: how much a state can hold, and whether it can be read out again.

palindrome   x1 … xn <sep> xn … x1; every token of the second half but the first is scored
stack        <push> s e and <pop> s e for many stacks at once; the element that a pop returns is scored
phonebook    name, number, name, number … then one of the names; its number is scored digit by digit (Jelassi et al.
             2024, arXiv:2402.01032)

Palindrome and stack: Kimi Team 2025, arXiv:2510.26692, Sec. 5.1, which does not say how operations are drawn: here a
stack with elements is popped half of the time.

    N  sequences      T  tokens of a sequence      P  tokens of a palindrome's half
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.mqar import TRAIN_SIZES, distinct
from plait.tasks.task import IGNORE, Examples, Task


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
                # The last operation is a pop of a non-empty stack, so that every sequence has a target.
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
        """The number of entries; the query takes the space of one."""
        return self.length // (self.digits + 1) - 1

    def check(self) -> None:
        self.require(self.digits >= 1, "digits", "at least 1")
        self.require(self.length % (self.digits + 1) == 0, "length", "a multiple of digits + 1")
        self.require(2 <= self.entries <= self.vocab, "length", "room for 2 entries to one per name, and the query")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        E, D = self.entries, self.digits
        names_NE = distinct(stream, self.vocab, (count, E)) + self.ids("name").start
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
