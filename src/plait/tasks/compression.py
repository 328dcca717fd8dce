"""Compression (arXiv:2403.17844, Sec. 3.1.5, App. B.1.5): a whole sequence into the vector of its last token.

    a e c b h g i [c]        [c] the compression token
    a e c b h g i            the targets, each predicted from the vector of [c] and the position alone

The model is an auto-encoder: a two-layer MLP reads the last position's vector plus a sine-cosine code of the position
to be recovered. "paper" scores the random tokens and gives [c] an id beyond `vocab`; "mad-lab" also scores [c], whose
id is the last of `vocab`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.task import IGNORE, Examples, Task


@dataclass(frozen=True)
class Compression(Task):
    """Put a sequence into one vector."""

    name: ClassVar[str] = "compression"
    skill: ClassVar[str] = "put a sequence into one vector"
    model_kind: ClassVar[str] = "autoencoder"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (32, 64, 128, 256),
        "train_size": (12_800, 6_400, 3_200, 1_600, 800),
        "vocab": (16, 32, 64, 128),
    }

    length: int = 32

    @property
    def layout(self) -> dict[str, int]:
        return {"token": self.vocab - self.as_mad_lab, "compress": 1}

    def check(self) -> None:
        self.require(self.vocab >= 2 + self.as_mad_lab, "vocab", f"at least {2 + self.as_mad_lab}")
        self.require(self.length >= 2, "length", "at least 2")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        inputs_NT = np.full((count, self.length), self.ids("compress").start, dtype=self.dtype)
        inputs_NT[:, :-1] = stream.integers(len(self.ids("token")), size=(count, self.length - 1))
        targets_NT = inputs_NT.copy()
        if not self.as_mad_lab:
            targets_NT[:, -1] = IGNORE
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        *tokens, last = inputs
        if len(inputs) != self.length or last not in self.ids("compress"):
            return None
        if any(token not in self.ids("token") for token in tokens):
            return None
        return [*tokens, last if self.as_mad_lab else IGNORE]
