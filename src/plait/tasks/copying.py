"""Selective copying (arXiv:2403.17844, Sec. 3.1.4, App. B.1.4): tokens among blanks, to be copied in their order.

    a c [b] t [b] [i] [i] [b] [i]        [b] blank, [i] insert
                   a   c       t         targets

(App. B.1.4 prints this example with one [i] too few for its three tokens.)

"paper": the tokens come first, an insert token for each of them later, blanks anywhere; the special tokens have ids
beyond `vocab`. "mad-lab": tokens among blanks, one copy token, then a blank for each token to be output; a token
always precedes the copy token, and the special tokens are the last two of `vocab`.

    N  sequences      C  tokens to copy      T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.task import IGNORE, Examples, Task


@dataclass(frozen=True)
class SelectiveCopying(Task):
    """Remember some tokens in order, ignore the rest."""

    name: ClassVar[str] = "selective-copying"
    skill: ClassVar[str] = "remember some tokens in order, ignore the rest"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (256, 512, 1024),
        "train_size": (12_800, 6_400, 3_200, 1_600, 800),
        "vocab": (16, 32, 64, 128),
        "to_copy": (16, 32, 64, 96),
    }

    length: int = 256
    to_copy: int = 16

    @property
    def layout(self) -> dict[str, int]:
        if self.as_mad_lab:
            return {"token": self.vocab - 2, "blank": 1, "copy": 1}
        return {"token": self.vocab, "blank": 1, "insert": 1}

    def check(self) -> None:
        least = 4 if self.as_mad_lab else 2
        self.require(self.vocab >= least, "vocab", f"at least {least}")
        self.require(self.to_copy >= 1, "to_copy", "at least 1")
        least = 2 * self.to_copy + self.as_mad_lab
        self.require(self.length >= least, "length", f"at least {least} to copy {self.to_copy} tokens")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        tokens_NC = stream.integers(len(self.ids("token")), size=(count, self.to_copy), dtype=self.dtype)
        inputs_NT = np.full((count, self.length), self.ids("blank").start, dtype=self.dtype)
        if self.as_mad_lab:
            blanks = self.length - 2 * self.to_copy - 1
            before_NC = stream.multinomial(blanks, np.full(self.to_copy, 1 / self.to_copy), size=count)
            read_NC = np.cumsum(before_NC + 1, axis=1) - 1
            asked_NC = np.tile(np.arange(self.length - self.to_copy, self.length), (count, 1))
            inputs_NT[:, self.length - self.to_copy - 1] = self.ids("copy").start
        else:
            # Distinct positions for tokens and inserts, in order: first the tokens, then the inserts.
            lots_NT = stream.random((count, self.length), dtype=np.float32)
            places_N2C = np.sort(np.argpartition(lots_NT, 2 * self.to_copy - 1, axis=1)[:, : 2 * self.to_copy], axis=1)
            read_NC, asked_NC = places_N2C[:, : self.to_copy], places_N2C[:, self.to_copy :]
            np.put_along_axis(inputs_NT, asked_NC, self.ids("insert").start, axis=1)
        np.put_along_axis(inputs_NT, read_NC, tokens_NC, axis=1)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        np.put_along_axis(targets_NT, asked_NC, tokens_NC, axis=1)
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """By a queue: tokens are enqueued, inserts dequeue."""
        if len(inputs) != self.length or any(token not in range(self.model_vocab) for token in inputs):
            return None
        kinds = [self.describe_token(token) for token in inputs]
        if self.as_mad_lab:
            end = self.length - self.to_copy
            if kinds[end - 2] != "token" or kinds[end - 1] != "copy" or set(kinds[end:]) != {"blank"}:
                return None
            kinds[end - 1 :] = ["blank"] + ["insert"] * self.to_copy
        queue: list[int] = []
        targets = [IGNORE] * len(inputs)
        asked = 0
        for at, kind in enumerate(kinds):
            if kind == "token" and asked == 0:
                queue.append(inputs[at])
            elif kind == "insert" and queue and asked + len(queue) == self.to_copy:
                targets[at] = queue.pop(0)
                asked += 1
            elif kind != "blank":
                return None
        return targets if asked == self.to_copy else None
