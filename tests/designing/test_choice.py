"""The rule, on scores made up for it."""

from __future__ import annotations

from typing import Any

import pytest

from plait.designing.advice import choose
from plait.probing.verdict import Comparison, Score


def compared(seeds: int = 3, **accuracy: float) -> Comparison:
    """Seeds differ by a hundredth either way, not alike for all."""
    scores = [
        Score(name, "t", "s", seed, value + ((seed + at) % 3 - 1) / 100, 1.0, 400)
        for at, (name, value) in enumerate(accuracy.items())
        for seed in range(seeds)
    ]
    return Comparison(list(accuracy), ["t"], scores)


def rows(**sizes: tuple[int, float]) -> dict[str, dict[str, Any]]:
    return {name: {"params": size, "latency_ms": {"measured": ms}} for name, (size, ms) in sizes.items()}


@pytest.mark.parametrize(
    ("accuracy", "sizes", "pick", "equals"),
    [
        # clearly better: size does not matter
        ({"a": 0.9, "b": 0.5}, {"a": (1, 9.0), "b": (5, 1.0)}, "a", {"a"}),
        # not to be told apart: the larger
        ({"a": 0.81, "b": 0.80, "c": 0.2}, {"a": (1, 1.0), "b": (2, 9.0), "c": (9, 1.0)}, "b", {"a", "b"}),
        # as good as equally large: the faster
        ({"a": 0.81, "b": 0.80}, {"a": (1000, 9.0), "b": (985, 8.0)}, "b", {"a", "b"}),
        ({"a": 0.81, "b": 0.80}, {"a": (1000, 9.0), "b": (975, 8.0)}, "a", {"a", "b"}),
        ({"a": 0.81, "b": 0.80}, {"a": (2, 9.0), "b": (2, 8.0)}, "b", {"a", "b"}),
        ({"a": 0.5}, {"a": (1, 1.0)}, "a", {"a"}),
    ],
)
def test_the_rule(accuracy: dict[str, float], sizes: dict[str, Any], pick: str, equals: set[str]) -> None:
    found = choose(rows(**sizes), compared(**accuracy), "params")
    assert found.pick == pick
    assert found.best == "a"
    assert set(found.equals) == equals


def test_one_seed_tells_nothing_apart() -> None:
    found = choose(rows(a=(1, 1.0), b=(5, 1.0)), compared(seeds=1, a=0.9, b=0.5), "params")
    assert (found.pick, found.best, set(found.equals)) == ("b", "a", {"a", "b"})
