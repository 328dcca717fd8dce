"""A scatter of characters, for a terminal: sizes on a logarithmic axis across, losses upwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDE, HIGH = 68, 18

#: Where, and the character that stands there.
Mark = tuple[float, float, str]


def character_plot(marks: Sequence[Mark], x_label: str, y_label: str) -> str:
    """Later marks are drawn over earlier ones. What is not finite, or not above 0 across, is left out."""
    kept = [(math.log(x), y, mark) for x, y, mark in marks if x > 0 and math.isfinite(x) and math.isfinite(y)]
    if not kept:
        return "nothing to draw"
    across, up = [x for x, _, _ in kept], [y for _, y, _ in kept]
    left, low = min(across), min(up)
    wide, high = (max(across) - left) or 1.0, (max(up) - low) or 1.0
    rows = [[" "] * WIDE for _ in range(HIGH)]
    for x, y, mark in kept:
        column, row = round((x - left) / wide * (WIDE - 1)), round((y - low) / high * (HIGH - 1))
        rows[HIGH - 1 - row][column] = mark
    labels = {0: f"{max(up):.4g}", HIGH - 1: f"{low:.4g}"}
    lines = [f"{labels.get(place, ''):>8} │{''.join(row).rstrip()}" for place, row in enumerate(rows)]
    ends = f"{math.exp(left):.3g}", f"{math.exp(max(across)):.3g}"
    middle = f"{ends[0]}{x_label:^{WIDE - len(ends[0]) - len(ends[1])}}{ends[1]}"
    return "\n".join([f"{y_label:>8}", *lines, " " * 9 + "└" + "─" * WIDE, " " * 10 + middle])
