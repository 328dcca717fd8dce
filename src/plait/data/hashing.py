"""Random numbers that are functions of their place: no state, so any of them can be computed at any time, anywhere."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

ROUNDS = 6


def key(*name: Any) -> int:
    """64 bits that stand for a name; its parts are plain data."""
    return int.from_bytes(hashlib.sha256(json.dumps(name).encode()).digest()[:8], "big")


def mixed(values: np.ndarray, key: int) -> np.ndarray:
    """64 random-looking bits for each value: the finaliser of SplitMix64 (Steele et al. 2014), twice."""
    bits: np.ndarray = values.astype(np.uint64) ^ np.uint64(key)
    for _ in range(2):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)  # wraps around, as it should
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
    return bits


def uniform(values: np.ndarray, key: int) -> np.ndarray:
    """A number in [0, 1) for each value."""
    found: np.ndarray = (mixed(values, key) >> np.uint64(11)) * 2.0**-53
    return found


def permuted(places: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a permutation of 0 … size − 1 takes each of the places; none of it is ever held in memory.

    A Feistel network (Luby and Rackoff 1988) permutes the numbers of 2h bits, of which there are at least `size`;
    what lands beyond `size` is sent through again until it does not, which leaves a permutation of the rest.
    """
    half = max(1, -(-(size - 1).bit_length() // 2))
    low, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = mixed(np.arange(ROUNDS), key).tolist()
    found = places.astype(np.uint64)
    outside = np.ones(found.shape, dtype=bool)
    while outside.any():
        left, right = found[outside] >> shift, found[outside] & low
        for round_key in keys:
            left, right = right, left ^ (mixed(right, round_key) & low)
        found[outside] = left << shift | right
        outside = found >= np.uint64(size)
    return found.astype(np.int64)
