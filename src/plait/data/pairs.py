"""Pairs of texts for next-sentence prediction (Devlin et al. 2019, arXiv:1810.04805, Sec. 3.1 and App. A.2).

A row is boundary, A, boundary, B, boundary, as fine-tuning reads a pair. A and B are stretches of text ("sentences" in
the paper's wide sense). In half of the rows B is what follows A in the corpus, in the others it begins somewhere else,
at least a row's length away. B is as long either way, so that its length says nothing.

B  rows of a batch (of one rank)      T  tokens of a row      N  tokens of A and B: T − 3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from plait.core.errors import UserError
from plait.data.stream import Windows, key, mixed, uniform

MARKERS = 3  # of a row
SHORTEST = 8  # tokens of a row


@dataclass(frozen=True)
class PairRows:
    """The texts of some rows without their boundaries, where each row's B begins, and whether it follows A."""

    texts_BN: np.ndarray
    second_B: np.ndarray
    follows_B: np.ndarray


@final
@dataclass(frozen=True)
class Pairs:
    """A begins where `Windows` would begin a window; its share of the row is drawn between a quarter and three."""

    tokens: np.ndarray
    seq_len: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.seq_len < SHORTEST:
            raise UserError(f"seq_len={self.seq_len}: pairs of texts need {SHORTEST} tokens or more.")
        if len(self.tokens) < 4 * self.seq_len:
            raise UserError(
                f"{len(self.tokens)} tokens are too few for pairs of texts of {self.seq_len}: give more text or a "
                f"smaller seq_len."
            )
        _ = self._windows  # which says what a batch needs

    @property
    def _windows(self) -> Windows:
        return Windows(self.tokens, self.seq_len - MARKERS, self.batch, self.seed)

    def rows(self, step: int, rank: int = 0, world: int = 1) -> PairRows:
        length, total = self.seq_len - MARKERS, len(self.tokens)
        starts_B = self._windows.starts(step, rank, world)
        places_B = step * self.batch + rank * len(starts_B) + np.arange(len(starts_B))
        quarter = max(1, length // 4)
        drawn_B = uniform(places_B, key("cut", self.seed))
        second_B = quarter + np.floor(drawn_B * (length - 2 * quarter + 1)).astype(np.int64)
        follows_B = uniform(places_B, key("follows", self.seed)) < 0.5
        # Elsewhere: so many tokens on from where B would have been, around the end of the corpus.
        far_B = self.seq_len + (
            mixed(places_B, key("elsewhere", self.seed)) % np.uint64(total - length - 2 * self.seq_len + 1)
        ).astype(np.int64)
        texts = []
        for start, cut, follows, far in zip(starts_B, second_B, follows_B, far_B, strict=True):
            at = start + cut if follows else (start + cut + far) % (total - length)
            texts.append(np.concatenate([self.tokens[start : start + cut], self.tokens[at : at + length - cut]]))
        return PairRows(np.stack(texts).astype(np.int64), second_B, follows_B)


def with_boundaries(texts_BN: np.ndarray, second_B: np.ndarray, boundary: int) -> np.ndarray:
    """(B, T): the texts with a boundary before A, between A and B, and after B."""
    rows, length = texts_BN.shape
    found_BT = np.full((rows, length + MARKERS), boundary, dtype=np.int64)
    place_N = np.arange(length)
    at_BN = place_N + 1 + (place_N >= second_B[:, None])
    np.put_along_axis(found_BT, at_BN, texts_BN, axis=1)
    return found_BT


def segments(second_B: np.ndarray, seq_len: int) -> np.ndarray:
    """(B, T): 0 for A with the boundaries around it, 1 for B and its own."""
    return (np.arange(seq_len) >= second_B[:, None] + 2).astype(np.int64)
