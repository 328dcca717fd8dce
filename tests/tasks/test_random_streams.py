"""Random streams by name: the numbers are pinned, since stored results were made with them."""

from __future__ import annotations

import hashlib

from plait.model.language_model import seed_of
from plait.tasks.task import stream


def test_a_name_decides_the_numbers() -> None:
    assert stream("task", 3).integers(2**60) == stream("task", 3).integers(2**60)
    assert stream("task", 3).integers(2**60) != stream("task", 4).integers(2**60)
    assert stream({"a": 1, "b": 2}).integers(2**60) == stream({"b": 2, "a": 1}).integers(2**60)


def test_seeds_are_the_first_bits_of_the_names_hash() -> None:
    bits = "".join(f"{byte:08b}" for byte in reversed(hashlib.sha256(b"7/embed").digest()[:8]))
    assert seed_of("7/embed") == int(bits[:63], 2)
    assert seed_of("7/embed", size=7) == int(bits[8:], 2)
