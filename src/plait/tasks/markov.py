"""Markov chains learnt in context: every sequence has its own transition matrix, to be inferred from it alone.

Each row of the matrix is drawn from a Dirichlet with all ones. The target is the token that has followed the current
one most often so far, the best possible guess (Edelman et al. 2024, arXiv:2402.11004; Akyürek et al. 2024,
arXiv:2401.12973). Training is on every next token.

    N  sequences      T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.mqar import TRAIN_SIZES
from plait.tasks.task import IGNORE, Examples, Task


@dataclass(frozen=True)
class Markov(Task):
    """A Markov chain with a random transition matrix per sequence: which token is most likely next?"""

    name: ClassVar[str] = "markov"
    skill: ClassVar[str] = "learn a Markov chain from one sequence"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (64, 128, 256, 512),
        "vocab": (5, 10, 20),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 10
    length: int = 128

    @property
    def layout(self) -> dict[str, int]:
        return {"token": self.vocab}

    def check(self) -> None:
        self.require(self.vocab >= 2, "vocab", "at least 2")
        self.require(self.length >= 4 * self.vocab, "length", f"at least four times the vocabulary, {4 * self.vocab}")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        law_NVV = stream.exponential(size=(count, self.vocab, self.vocab))
        upto_NVV = np.cumsum(law_NVV / law_NVV.sum(axis=-1, keepdims=True), axis=-1)
        rows = np.arange(count)
        tokens_NT = np.empty((count, self.length + 1), dtype=self.dtype)
        tokens_NT[:, 0] = stream.integers(self.vocab, size=count)
        for t in range(1, self.length + 1):
            lots_N1 = stream.random((count, 1))
            tokens_NT[:, t] = (lots_N1 >= upto_NVV[rows, tokens_NT[:, t - 1], :-1]).sum(axis=1)
        inputs_NT = np.ascontiguousarray(tokens_NT[:, :-1])
        return Examples(inputs_NT, np.ascontiguousarray(tokens_NT[:, 1:]) if training else self._likeliest(inputs_NT))

    def _likeliest(self, inputs_NT: np.ndarray) -> np.ndarray:
        """The most frequent successor so far of each token; not scored if there is none, or a tie."""
        count, rows = len(inputs_NT), np.arange(len(inputs_NT))
        seen_NVV = np.zeros((count, self.vocab, self.vocab), dtype=np.int32)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        for t in range(self.length):
            if t:
                seen_NVV[rows, inputs_NT[:, t - 1], inputs_NT[:, t]] += 1
            after_NV = seen_NVV[rows, inputs_NT[:, t]]
            most_N = after_NV.max(axis=1)
            only_N = (most_N > 0) & ((after_NV == most_N[:, None]).sum(axis=1) == 1)
            targets_NT[only_N, t] = after_NV[only_N].argmax(axis=1)
        return targets_NT

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """By counting the successors in the preceding tokens."""
        if len(inputs) != self.length or any(token not in range(self.vocab) for token in inputs):
            return None
        targets = []
        for at, token in enumerate(inputs):
            followed = [inputs[i + 1] for i in range(at) if inputs[i] == token]
            times = {next_token: followed.count(next_token) for next_token in followed}
            best = [next_token for next_token, n in times.items() if n == max(times.values())]
            targets.append(best[0] if len(best) == 1 else IGNORE)
        return targets
