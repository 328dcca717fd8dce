"""Lengths of time as people write them."""

from __future__ import annotations

import re

from plait.core.errors import UserError


def parse_duration(text: str) -> float:
    """Seconds of 90s, 10m, 1h30m or a plain number of seconds."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip().lower())
    total = sum(float(n) * unit for n, unit in zip(parts.groups(), (3600, 60, 1), strict=True) if n) if parts else 0.0
    if total <= 0:
        raise UserError(f"'{text}' is not a duration; write it as 90s, 10m or 1h30m.")
    return total


def duration(seconds: float) -> str:
    """Two units at most: 45 s, 9 m 58 s, 3 h 20 m, 12 d 4 h."""
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{int(seconds // size):,} {unit} {int(seconds % size // part)} {smaller}"
    return f"{seconds:.0f} s"
