"""Batches as pure functions of the step: resuming means requesting the next one, sharding means requesting a part of
it.

B  rows of a batch (of one rank: B / world)      T  tokens of a row      N  tokens of a pair of texts: T − 3

No state is kept, so nothing has to be saved but the step. The batch of a step does not depend on how many ranks
share it: rank r of w gets rows r·B/w up to (r+1)·B/w.

Random numbers are functions of their position: without state, any of them can be computed at any time, anywhere.

`Pairs` of texts are for next-sentence prediction (Devlin et al. 2019, arXiv:1810.04805, Sec. 3.1 and App. A.2). A row
is boundary, A, boundary, B, boundary, as fine-tuning reads a pair. A and B are spans of text ("sentences" in the
paper's broad sense). In half of the rows B follows A in the corpus; in the others it starts elsewhere, at least a row's
length away. B has the same length in both cases, so that its length reveals nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from plait.core.errors import UserError

IGNORE = -100  # the target of a position that is not scored
MASKED, REPLACED = 0.8, 0.1  # Devlin et al. 2019, Sec. 3.1; the remaining tenth is unchanged


@final
@dataclass(frozen=True)
class Windows:
    """Windows of `length` tokens and their targets, shifted by one.

    Every epoch cuts the tokens into non-overlapping windows from a random offset and visits each of them once in random
    order. With `seed=None` windows come in order from the first token, for evaluation.
    """

    tokens: np.ndarray
    length: int
    batch: int
    seed: int | None

    def __post_init__(self) -> None:
        _positive(length=self.length, batch=self.batch)
        if self.windows < self.batch:
            raise UserError(
                f"a batch of {self.batch} windows of {self.length} tokens needs more data: {len(self.tokens)} tokens "
                f"make {self.windows} windows. Give more text, or a smaller --batch or --seq-len."
            )

    @property
    def windows(self) -> int:
        """How many windows an epoch visits."""
        in_order = (len(self.tokens) - 1) // self.length  # the last target is one token after the last window
        if self.seed is None or in_order < 2:
            return max(in_order, 0)
        # One less if there is no room for every offset below `length`.
        return (len(self.tokens) - self.length) // self.length

    def epoch(self, step: int) -> int:
        """The epoch that the first row of the step's batch belongs to."""
        return step * self.batch // self.windows

    def rows(self, step: int, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of a step, int64 (B, T) each."""
        return _cut(self.tokens, self.starts(step, rank, world), self.length)

    def starts(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """Start positions of a step's windows, (B,)."""
        return self._starts(step * self.batch + _share(self.batch, rank, world))

    def _starts(self, numbers_B: np.ndarray) -> np.ndarray:
        if self.seed is None:
            return numbers_B % self.windows * self.length
        starts_B = np.empty_like(numbers_B)
        epochs_B = numbers_B // self.windows
        room = min(self.length, len(self.tokens) - self.windows * self.length)
        for epoch in np.unique(epochs_B).tolist():
            here = epochs_B == epoch
            places = permuted(numbers_B[here] % self.windows, self.windows, key("order", self.seed, epoch))
            starts_B[here] = places * self.length + key("offset", self.seed, epoch) % room
        return starts_B


@final
@dataclass(frozen=True)
class Segments:
    """Consecutive segments for models with a memory (Dai et al. 2019): row b reads its own part of the tokens from
    beginning to end, `length` tokens per step, then starts over."""

    tokens: np.ndarray
    length: int
    batch: int

    def __post_init__(self) -> None:
        _positive(length=self.length, batch=self.batch)
        if self.steps < 1:
            raise UserError(
                f"{self.batch} rows of segments of {self.length} tokens need {self.batch * self.length + 1} tokens; "
                f"there are {len(self.tokens)}. Give more text, or a smaller --batch or --seq-len."
            )

    @property
    def steps(self) -> int:
        """Steps until every row has read its part."""
        return (len(self.tokens) - 1) // (self.batch * self.length)

    def rows(self, step: int, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of a step, int64 (B, T) each."""
        segment_B = _share(self.batch, rank, world) * self.steps + step % self.steps
        return _cut(self.tokens, segment_B * self.length, self.length)

    def fresh(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """(B,): True where a row starts its part of the text, so that its memory belongs to other text."""
        return np.full(len(_share(self.batch, rank, world)), step % self.steps == 0)


def require_validation(name: str, tokens: np.ndarray, seq_len: int) -> int:
    """How many windows the validation split of the corpus `name` has; one without any is refused."""
    windows = (len(tokens) - 1) // seq_len
    if windows < 1:
        raise UserError(
            f"{name}: {len(tokens)} held-out tokens are fewer than one sequence of {seq_len} and its last target. "
            f"Give more text, or a smaller --seq-len."
        )
    return windows


def mask_tokens(
    rows_BT: np.ndarray,
    *,
    vocab: int,
    mask_id: int,
    seed: int,
    step: int,
    share: float = 0.15,
    special: Iterable[int] = (),
    rank: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets for masked language modelling (Devlin et al. 2019, Sec. 3.1 and App. A.1).

    A fraction `share` of the tokens is predicted, at least one per row, since a row without any would have no loss. Of
    these 80 % are replaced by `mask_id`, 10 % by any other token, 10 % are unchanged. Elsewhere the target is −100.
    `special` tokens are neither chosen nor inserted. With `rank`, several processes mask exactly as a single one would.
    """
    if not 0 < share <= 1:
        raise UserError(f"share={share} given; must be above 0 and at most 1.")
    special_ids = np.array(sorted({*special, mask_id}), dtype=np.int64)
    ordinary = np.setdiff1d(np.arange(vocab), special_ids)
    if not ordinary.size:
        raise UserError(f"a vocabulary of {vocab} has no tokens besides the mask and the special ones.")
    places_BT = rank * rows_BT.size + np.arange(rows_BT.size).reshape(rows_BT.shape)
    luck_BT = np.where(np.isin(rows_BT, special_ids), 1.0, uniform(places_BT, key("chosen", seed, step)))
    least_B1 = luck_BT.min(axis=1, keepdims=True)
    chosen_BT = (luck_BT < share) | ((luck_BT == least_B1) & (luck_BT < 1))
    fate_BT = uniform(places_BT, key("fate", seed, step))
    other_BT = ordinary[(mixed(places_BT, key("other", seed, step)) % np.uint64(len(ordinary))).astype(np.int64)]
    shown_BT = np.where(fate_BT < MASKED, mask_id, np.where(fate_BT < MASKED + REPLACED, other_BT, rows_BT))
    inputs_BT = np.where(chosen_BT, shown_BT, rows_BT).astype(np.int64)
    return inputs_BT, np.where(chosen_BT, rows_BT, IGNORE).astype(np.int64)


def _share(batch: int, rank: int, world: int) -> np.ndarray:
    """The rows of the batch that belong to a rank."""
    if world < 1 or not 0 <= rank < world:
        raise UserError(f"rank {rank} of {world} given; ranks are numbered from 0.")
    if batch % world:
        raise UserError(f"a batch of {batch} rows cannot be shared evenly by {world} processes.")
    return np.arange(rank * batch // world, (rank + 1) * batch // world, dtype=np.int64)


def _cut(tokens: np.ndarray, starts_B: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    # Row by row, so that only these pages of a memory map are read.
    rows = np.stack([tokens[start : start + length + 1] for start in starts_B.tolist()]).astype(np.int64)
    return rows[:, :-1].copy(), rows[:, 1:].copy()


def _positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name}={number} given; it should be 1 or more.")


ROUNDS = 6


def key(*name: Any) -> int:
    """A 64-bit hash of a name, whose parts are plain data."""
    return int.from_bytes(hashlib.sha256(json.dumps(name).encode()).digest()[:8], "big")


def mixed(values: np.ndarray, key: int) -> np.ndarray:
    """64 random-looking bits for each value: the finaliser of SplitMix64 (Steele et al. 2014), twice."""
    bits: np.ndarray = values.astype(np.uint64) ^ np.uint64(key)
    for _ in range(2):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)  # wraps around, as intended
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
    return bits


def uniform(values: np.ndarray, key: int) -> np.ndarray:
    """A number in [0, 1) for each value."""
    numbers: np.ndarray = (mixed(values, key) >> np.uint64(11)) * 2.0**-53
    return numbers


def permuted(places: np.ndarray, size: int, key: int) -> np.ndarray:
    """The images of indices under a permutation of 0 … size − 1, which is never stored.

    A Feistel network (Luby and Rackoff 1988) permutes the numbers of 2h bits, of which there are at least `size`;
    results beyond `size` are permuted again until they are below, which gives a permutation of the rest.
    """
    half = max(1, -(-(size - 1).bit_length() // 2))
    low, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = mixed(np.arange(ROUNDS), key).tolist()
    moved = places.astype(np.uint64)
    outside = np.ones(moved.shape, dtype=bool)
    while outside.any():
        left, right = moved[outside] >> shift, moved[outside] & low
        for round_key in keys:
            left, right = right, left ^ (mixed(right, round_key) & low)
        moved[outside] = left << shift | right
        outside = moved >= np.uint64(size)
    return moved.astype(np.int64)


MARKERS = 3  # boundary tokens per row
SHORTEST = 8  # tokens per row


@dataclass(frozen=True)
class PairRows:
    """The texts of some rows without their boundaries, where each row's B begins, and whether it follows A."""

    texts_BN: np.ndarray
    second_B: np.ndarray
    follows_B: np.ndarray


@final
@dataclass(frozen=True)
class Pairs:
    """A starts where `Windows` would start a window; its fraction of the row is drawn between one and three
    quarters."""

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
        _ = self._windows  # which checks that there is enough text for a batch

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
        # Elsewhere: this many tokens after the true B, wrapping around at the end of the corpus.
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
