"""Reasoning within one forward pass: following a chain of links, evaluating an expression.

depo   n names in a ring, as pairs `u v` in any order; then questions `<k> u <ans> w`: which name is k steps after u?
       Training has rings of 3 to N names (n with probability ∝ 1/(n + √N)) and every k up to `hops`; evaluation has N
       and the powers of two. Names are `word` tokens, the last of a second alphabet.
mano   an expression over the numbers modulo `vocab` in prefix form, `+ * 3 5 - 1 2 <ans>`: its value. Training has 1 to
       L operators, evaluation L. (The authors' sequences begin with a token for the number of operators, which
       would be unseen for sequences longer than in training, so it is left out.)

Allen-Zhu 2025, arXiv:2512.17351, and its public code. Sequences are padded on the left.

    N  sequences      T  tokens of a sequence
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.mqar import TRAIN_SIZES
from plait.tasks.task import IGNORE, Examples, Task

LEAST_RING = 3


@dataclass(frozen=True)
class Depo(Task):
    """Names in a ring, given as pairs in random order: which name is k steps after this one?"""

    name: ClassVar[str] = "depo"
    skill: ClassVar[str] = "follow links k steps"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (72, 128, 256),
        "hops": (2, 4, 8),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 512
    length: int = 72
    hops: int = 4
    word: int = 1
    queries: int = 10

    @property
    def layout(self) -> dict[str, int]:
        return {"letter": self.vocab, "end": self.vocab, "hop": self.hops, "ans": 1, "pad": 1}

    @property
    def ring(self) -> int:
        """The largest ring that fits: two names per link, and two names and two tokens per question."""
        return (self.length - self.queries * (2 * self.word + 2)) // (2 * self.word)

    def check(self) -> None:
        for variable in ("hops", "word", "queries"):
            self.require(getattr(self, variable) >= 1, variable, "at least 1")
        least = LEAST_RING * 2 * self.word + self.queries * (2 * self.word + 2)
        self.require(self.length >= least, "length", f"at least {least}")
        self.require(self.vocab**self.word >= self.ring, "vocab", f"enough for {self.ring} names")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        inputs_NT = np.full((count, self.length), self.ids("pad").start, dtype=self.dtype)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        sizes = np.arange(LEAST_RING, self.ring + 1)
        odds = 1 / (sizes + math.sqrt(self.ring))
        powers = [2**i for i in range(self.hops.bit_length()) if 2**i <= self.hops]
        hop, ans = self.ids("hop").start, self.ids("ans").start
        for row in range(count):
            n = int(stream.choice(sizes, p=odds / odds.sum())) if training else self.ring
            names = self._names(stream, n)
            text = [token for i in stream.permutation(n) for token in (*names[i], *names[(i + 1) % n])]
            targets: list[int] = []
            for _ in range(self.queries):
                start = int(stream.integers(n))
                k = int(stream.integers(1, self.hops + 1)) if training else int(stream.choice(powers))
                answer = names[(start + k) % n]
                targets += [*[IGNORE] * (1 + self.word), *answer, IGNORE]
                text += [hop + k - 1, *names[start], ans, *answer]
            inputs_NT[row, self.length - len(text) :] = text
            targets_NT[row, self.length - len(targets) :] = targets
        return Examples(inputs_NT, targets_NT)

    def _names(self, stream: np.random.Generator, n: int) -> list[tuple[int, ...]]:
        names: dict[tuple[int, ...], None] = {}
        while len(names) < n:
            drawn = stream.integers(self.vocab, size=(n, self.word))
            drawn[:, -1] += self.ids("end").start
            names |= dict.fromkeys(tuple(int(token) for token in name) for name in drawn)
        return list(names)[:n]

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """Step by step along the links."""
        if len(inputs) != self.length:
            return None
        kinds = [self.describe_token(token) for token in inputs]
        targets = [IGNORE] * self.length
        links: dict[tuple[int, ...], tuple[int, ...]] = {}
        words: list[tuple[int, ...]] = []
        letters: list[int] = []
        steps = 0
        for at, (token, kind) in enumerate(zip(inputs, kinds, strict=True)):
            if kind == "hop":
                links |= {words[i]: words[i + 1] for i in range(0, len(words) - 1, 2)} if not links else {}
                steps, words = token - self.ids("hop").start + 1, []
            elif kind == "ans":
                if len(words) != 1 or words[0] not in links:
                    return None
                name = words[0]
                for _ in range(steps):
                    name = links[name]
                targets[at : at + self.word] = name
                if tuple(inputs[at + 1 : at + 1 + self.word]) != name:
                    return None
                words = []
            elif kind in ("letter", "end"):
                letters.append(token)
                if kind == "end":
                    words.append(tuple(letters))
                    letters = []
        return targets if kinds.count("ans") == self.queries else None


@dataclass(frozen=True)
class Mano(Task):
    """The value of an expression in prefix form, modulo a prime."""

    name: ClassVar[str] = "mano"
    skill: ClassVar[str] = "work an expression out at once"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (8, 16, 24, 32),
        "vocab": (5, 11, 23),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 23
    length: int = 16

    @property
    def layout(self) -> dict[str, int]:
        return {"number": self.vocab, "+": 1, "-": 1, "*": 1, "ans": 1, "pad": 1}

    @property
    def operators(self) -> int:
        """The largest number of operators that fits: n of them take 2 n + 1 tokens."""
        return self.length // 2 - 1

    def check(self) -> None:
        self.require(self.vocab >= 2, "vocab", "at least 2")
        self.require(self.length >= 4 and self.length % 2 == 0, "length", "even and at least 4")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        inputs_NT = np.full((count, self.length), self.ids("pad").start, dtype=self.dtype)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        for row in range(count):
            n = int(stream.integers(1, self.operators + 1)) if training else self.operators
            text, value = self._expression(stream, n)
            inputs_NT[row, self.length - 1 - len(text) : -1] = text
            targets_NT[row, -1] = value
        inputs_NT[:, -1] = self.ids("ans").start
        return Examples(inputs_NT, targets_NT)

    def _expression(self, stream: np.random.Generator, operators: int) -> tuple[list[int], int]:
        """Text and value; the left operand has any number of the other operators."""
        if not operators:
            number = int(stream.integers(self.vocab))
            return [number], number
        left = int(stream.integers(operators))
        kind = int(stream.integers(3))
        (first, a), (second, b) = (self._expression(stream, n) for n in (left, operators - 1 - left))
        value = (a + b, a - b, a * b)[kind] % self.vocab
        return [self.ids("+").start + kind, *first, *second], value

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """From right to left with a stack."""
        signs = {self.ids(sign).start: sign for sign in ("+", "-", "*", "ans", "pad")}
        if len(inputs) != self.length or signs.get(inputs[-1]) != "ans":
            return None
        stack: list[int] = []
        for token in reversed([token for token in inputs[:-1] if signs.get(token) != "pad"]):
            if token in range(self.vocab):
                stack.append(token)
                continue
            if len(stack) < 2 or signs.get(token) not in ("+", "-", "*"):
                return None
            a, b = stack.pop(), stack.pop()
            stack.append({"+": a + b, "-": a - b, "*": a * b}[signs[token]] % self.vocab)
        return [IGNORE] * (self.length - 1) + stack if len(stack) == 1 else None
