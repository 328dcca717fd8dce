"""State tracking: the current value of a quantity that every token changes, which no look-up of single tokens gives.

parity               how many ones so far, modulo 2
modular-arithmetic   3 + 4 * 2 - 1 = 0   modulo 5, products before sums; with `brackets` ((3 + 4) * (2 - 1)) = 2
word-problem         the product of all elements of a group so far: S3, A5, S5 … (60 elements of A5 are 60 tokens)

Training scores the state after every token, evaluation only in the second half of a sequence: at twice the training
length, all scored positions lie beyond those seen in training. Arithmetic has a single target, after the =; training
has expressions of every length, padded on the left, and evaluation those that fill the sequence. From long expressions
alone a model learns nothing, because there is no gradual path from chance to a whole calculation.

parity and arithmetic: Grazzi et al. 2024, arXiv:2411.12537 (which scores parity at the end only); word problems:
Merrill et al. 2024, arXiv:2404.08819; Siems et al. 2025, arXiv:2502.10297.

    N  sequences      T  tokens of a sequence
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from plait.core.errors import UserError, did_you_mean
from plait.tasks.task import IGNORE, Examples, Task

LENGTHS = {"length": (32, 64, 128, 256), "train_size": (12_800, 6_400, 3_200, 1_600, 800)}


@dataclass(frozen=True)
class Parity(Task):
    """Whether the ones so far are even or odd in number."""

    name: ClassVar[str] = "parity"
    skill: ClassVar[str] = "count modulo 2"
    prefixes: ClassVar[bool] = True
    steps: ClassVar[Mapping[str, Sequence[Any]]] = LENGTHS

    vocab: int = 2
    length: int = 32

    @property
    def layout(self) -> dict[str, int]:
        return {"bit": 2}

    def check(self) -> None:
        self.require(self.vocab == 2, "vocab", "2")
        self.require(self.length >= 2, "length", "at least 2")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        inputs_NT = stream.integers(2, size=(count, self.length), dtype=self.dtype)
        return Examples(inputs_NT, _targets(np.cumsum(inputs_NT, axis=1, dtype=self.dtype) % 2, training))

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        if len(inputs) != self.length or any(token not in (0, 1) for token in inputs):
            return None
        ones = itertools.accumulate(inputs)
        return [total % 2 if 2 * at >= self.length else IGNORE for at, total in enumerate(ones)]


@dataclass(frozen=True)
class WordProblem(Task):
    """The product of all elements of a group so far, the first of them first."""

    name: ClassVar[str] = "word-problem"
    skill: ClassVar[str] = "compose permutations"
    prefixes: ClassVar[bool] = True
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {**LENGTHS, "group": ("S3", "S4", "A5", "S5")}

    length: int = 32
    group: str = "S3"

    @property
    def layout(self) -> dict[str, int]:
        return {"element": len(elements(self.group))}

    def check(self) -> None:
        elements(self.group)
        self.require(self.length >= 2, "length", "at least 2")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        table = products(self.group)
        inputs_NT = stream.integers(len(table), size=(count, self.length), dtype=self.dtype)
        states_NT = np.empty_like(inputs_NT)
        states_NT[:, 0] = inputs_NT[:, 0]
        for t in range(1, self.length):
            states_NT[:, t] = table[states_NT[:, t - 1], inputs_NT[:, t]]
        return Examples(inputs_NT, _targets(states_NT, training))

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """By applying one permutation after the other."""
        known = elements(self.group)
        if len(inputs) != self.length or any(token not in range(len(known)) for token in inputs):
            return None
        things, targets = list(range(len(known[0]))), []
        for at, token in enumerate(inputs):
            things = [known[token][thing] for thing in things]
            targets.append(known.index(tuple(things)) if 2 * at >= self.length else IGNORE)
        return targets


@cache
def elements(group: str) -> list[tuple[int, ...]]:
    """The permutations of a group, the identity first: Sn all of n things, An the even ones, Zn the rotations."""
    kind, number = group[:1], group[1:]
    most = {"S": 5, "A": 5, "Z": 60}.get(kind, 0)
    if not number.isdecimal() or not 2 <= int(number) <= most:
        raise UserError(f"no group '{group}'.{did_you_mean(group, KNOWN)} Known: S2 to S5, A3 to A5, Z2 to Z60.")
    n = int(number)
    if kind == "Z":
        return [tuple((i + turn) % n for i in range(n)) for turn in range(n)]
    every = list(itertools.permutations(range(n)))
    return every if kind == "S" else [permutation for permutation in every if _even(permutation)]


KNOWN = ("S3", "S4", "S5", "A4", "A5", "Z2", "Z60")


def _even(permutation: Sequence[int]) -> bool:
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


@cache
def products(group: str) -> np.ndarray:
    """The index of "first the row's element, then the column's"."""
    known = elements(group)
    place = {element: i for i, element in enumerate(known)}
    return np.array([[place[tuple(then[i] for i in first)] for then in known] for first in known])


@dataclass(frozen=True)
class ModularArithmetic(Task):
    """The value of a sum of products, modulo a number."""

    name: ClassVar[str] = "modular-arithmetic"
    skill: ClassVar[str] = "calculate modulo 5"
    revision: ClassVar[int] = 2  # revision 1 trained on the longest expressions only
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {**LENGTHS, "brackets": (0, 1)}

    vocab: int = 5
    length: int = 32
    brackets: int = 0

    @property
    def layout(self) -> dict[str, int]:
        return {"digit": self.vocab, "+": 1, "-": 1, "*": 1, "=": 1, "(": 1, ")": 1, "pad": 1}

    def check(self) -> None:
        self.require(self.vocab >= 2, "vocab", "at least 2")
        self.require(self.length >= 6 and self.length % 2 == 0, "length", "even and at least 6")
        self.require(self.brackets in (0, 1), "brackets", "0 or 1")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        inputs_NT = np.full((count, self.length), self.ids("pad").start, dtype=self.dtype)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        for row in range(count):
            room = self._room(stream) if training else self.length - 1
            text = self._bracketed(stream, room) if self.brackets else self._flat(stream, room)
            inputs_NT[row, self.length - 1 - len(text) : -1] = text
            targets_NT[row, -1] = self._value(text)
        inputs_NT[:, -1] = self.ids("=").start
        return Examples(inputs_NT, targets_NT)

    def _room(self, stream: np.random.Generator) -> int:
        """The number of tokens of a training expression with at least one operator; brackets add two per operator."""
        return 1 + 2 * int(stream.integers(2 if self.brackets else 1, self.length // 2))

    def _flat(self, stream: np.random.Generator, room: int) -> list[int]:
        text = stream.integers(self.vocab, size=room)
        text[1::2] = stream.integers(self.vocab, self.vocab + 3, size=room // 2)
        return [int(token) for token in text]

    def _bracketed(self, stream: np.random.Generator, room: int) -> list[int]:
        """`( left op right )` within `room` tokens, down to a digit."""
        if room < 5:
            return [int(stream.integers(self.vocab))]
        left = self._bracketed(stream, int(stream.integers(1, room - 3)))
        right = self._bracketed(stream, room - 3 - len(left))
        operator = int(stream.integers(self.vocab, self.vocab + 3))
        return [self.ids("(").start, *left, operator, *right, self.ids(")").start]

    def _value(self, text: Sequence[int]) -> int:
        """By two stacks, one of numbers and one of operators."""
        plus, times, opening, closing = (self.ids(kind).start for kind in ("+", "*", "(", ")"))
        numbers: list[int] = []
        operators: list[int] = []

        def apply() -> None:
            operator, b, a = operators.pop(), numbers.pop(), numbers.pop()
            numbers.append((a + b if operator == plus else a * b if operator == times else a - b) % self.vocab)

        for token in text:
            if token < self.vocab:
                numbers.append(token)
            elif token == opening:
                operators.append(token)
            elif token == closing:
                while operators[-1] != opening:
                    apply()
                operators.pop()
            else:
                while operators and operators[-1] != opening and (token != times or operators[-1] == times):
                    apply()
                operators.append(token)
        while operators:
            apply()
        return numbers[0]

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """Evaluated by Python, which has the same precedence of operators."""
        words = {self.ids(kind).start: kind for kind in self.layout if kind != "digit"}
        if len(inputs) != self.length or words.get(inputs[-1]) != "=":
            return None
        written = [str(token) if token < self.vocab else words.get(token, "?") for token in inputs[:-1]]
        text = "".join("" if word == "pad" else word for word in written)
        try:
            value = eval(compile(text, "expression", "eval"), {"__builtins__": {}})
        except SyntaxError:
            return None
        return [IGNORE] * (self.length - 1) + [value % self.vocab]


def _targets(states_NT: np.ndarray, training: bool) -> np.ndarray:
    targets_NT: np.ndarray = states_NT.copy()
    if not training:
        targets_NT[:, : -(-states_NT.shape[1] // 2)] = IGNORE
    return targets_NT
