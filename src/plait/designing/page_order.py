"""The page of a design: what each candidate is called and coloured, in all of its sections."""

from __future__ import annotations

from typing import Any


def colours(d: dict[str, Any]) -> dict[str, int]:
    """The number of every pattern's colour, the best in the race first."""
    return {row["name"]: number for number, row in enumerate(d["race"]["architectures"])}


def keys(d: dict[str, Any]) -> dict[str, str]:
    """What links a pattern in one section with it in the others: the spec that was measured."""
    return {row["pattern"]: row["spec"] for row in d["candidates"]}
