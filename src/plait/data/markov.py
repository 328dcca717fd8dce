"""Markov chains that can be sampled fast and whose entropy rate is known exactly.

C  contexts (the last k tokens)      U  the 256 values of a byte      T  steps of a block      B  blocks

Probabilities are multiples of 1/256: a random byte picks the next context from a table of one row a context. No
floating-point number decides a token, so a chain is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

BYTE = 256
BURN_IN = 1024  # steps after which where a chain began no longer shows
BLOCK_STEPS = 512


@final
@dataclass(frozen=True)
class Chain:
    next_CU: np.ndarray  # context that follows context C when byte U is drawn
    token_C: np.ndarray  # the last token of each context: the one emitted on entering it

    @cached_property
    def transitions_CC(self) -> np.ndarray:
        """The probability of going from one context to another."""
        contexts = len(self.next_CU)
        counts_CC = np.zeros((contexts, contexts))
        np.add.at(counts_CC, (np.arange(contexts)[:, None], self.next_CU), 1)
        return counts_CC / BYTE

    @cached_property
    def stationary_C(self) -> np.ndarray:
        """How often each context occurs in the long run: π P = π, Σ π = 1."""
        contexts = len(self.next_CU)
        equations = np.vstack([self.transitions_CC.T - np.eye(contexts), np.ones(contexts)])
        solution: np.ndarray = np.linalg.lstsq(equations, np.append(np.zeros(contexts), 1.0), rcond=None)[0]
        return solution

    @cached_property
    def entropy(self) -> float:
        """Nats a token: Σ_c π(c) H(next | c). Exact, as different successors of a context emit different tokens."""
        p_CC = self.transitions_CC
        nats_C = -np.sum(p_CC * np.log(np.where(p_CC > 0, p_CC, 1.0)), axis=1)
        return float(self.stationary_C @ nats_C)

    def sample(self, count: int, stream: np.random.Generator) -> np.ndarray:
        """So many tokens of one unbroken walk.

        A walk is sequential, NumPy is not: the walk is cut into blocks that advance side by side, each from a guessed
        context. Walks that see the same bytes soon meet, so on the second pass, with the ends of the first as
        starts, nearly every block ends as before. When all do, the blocks join to exactly the sequential walk.
        """
        blocks = -(-(count + BURN_IN) // BLOCK_STEPS)
        bytes_TB = np.frombuffer(stream.bytes(blocks * BLOCK_STEPS), dtype=np.uint8).reshape(blocks, BLOCK_STEPS).T
        bytes_TB = np.ascontiguousarray(bytes_TB, dtype=np.int64)
        table = (self.next_CU * BYTE).ravel()  # contexts as the places where their rows begin
        walked_TB = np.empty((BLOCK_STEPS, blocks), dtype=np.int64)
        starts_B = np.zeros(blocks, dtype=np.int64)
        while True:
            rows_B = starts_B
            for step in range(BLOCK_STEPS):
                rows_B = np.take(table, rows_B + bytes_TB[step], out=walked_TB[step])
            ends_B = np.append(0, rows_B[:-1])
            if np.array_equal(ends_B, starts_B):
                break
            starts_B = ends_B
        tokens: np.ndarray = self.token_C[walked_TB.T.ravel()[BURN_IN : BURN_IN + count] // BYTE]
        return tokens


def byte_shares(weights: np.ndarray) -> np.ndarray:
    """Positive weights (…, N) as whole numbers of at least 1 that add up to 256."""
    choices = weights.shape[-1]
    share = weights / weights.sum(axis=-1, keepdims=True)
    counts: np.ndarray = 1 + np.floor(share * (BYTE - choices)).astype(np.int64)
    largest = np.argmax(counts, axis=-1)[..., None]
    left = BYTE - counts.sum(axis=-1, keepdims=True)
    np.put_along_axis(counts, largest, np.take_along_axis(counts, largest, axis=-1) + left, axis=-1)
    return counts
