"""Curves as characters, for a terminal: a letter for each series, one picture for all of them."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence

from plait.reporting.axes import Axis
from plait.reporting.charts import Series
from plait.reporting.svg import Scale, label

SEVERAL = "*"  # where curves of several series are


def line_chart(series: Sequence[Series], *, x: Axis, y: Axis, width: int = 72, height: int = 14) -> str:
    """Curves in the space of so many characters, and who has which letter below them. What is not finite is left out;
    empty where nothing is left."""
    kept = [[(a, b) for a, b in zip(s.x, s.y, strict=True) if x.keeps(a) and y.keeps(b)] for s in series]
    points = [point for some in kept for point in some]
    if not points:
        return ""
    x_of = x.scale([a for a, _ in points], 0, width - 1, room=0)
    y_of = y.scale([b for _, b in points], height - 1, 0, room=0)
    cells = [[" "] * width for _ in range(height)]
    for letter, some in zip(_letters(), kept, strict=False):
        for column, row in _places(sorted(some), x_of, y_of):
            cells[row][column] = letter if cells[row][column] in (" ", letter) else SEVERAL
    marks = {row: _value(y_of, row) for row in (0, (height - 1) // 2, height - 1)}
    wide = max(len(mark) for mark in marks.values())
    lines = [f"{marks.get(row, ''):>{wide}} │{''.join(line)}".rstrip() for row, line in enumerate(cells)]
    first, last = (label(float(f"{end:.3g}")) for end in (x_of.low, x_of.high))
    ends = f"{first}{x.label:^{max(0, width - len(first) - len(last))}}{last}"
    names = "   ".join(f"{letter} {s.name}" for letter, s in zip(_letters(), series, strict=False))
    shared = f"   {SEVERAL} several" if any(SEVERAL in line for line in cells) else ""
    margin = " " * wide
    return "\n".join([y.label, *lines, f"{margin} └{'─' * width}", f"{margin}  {ends}", f"{margin}  {names}{shared}"])


def _letters() -> str:
    return string.ascii_lowercase + string.ascii_uppercase


def _places(points: Sequence[tuple[float, float]], x_of: Scale, y_of: Scale) -> list[tuple[int, int]]:
    """(column, row) of a curve: one place in each column from its first point to its last."""
    placed = [(x_of(a), y_of(b)) for a, b in points]
    found = [(round(column), round(row)) for column, row in placed[:1]]
    for (from_x, from_y), (to_x, to_y) in itertools.pairwise(placed):
        for column in range(round(from_x) + 1, round(to_x) + 1):
            share = (column - from_x) / (to_x - from_x) if to_x > from_x else 1.0
            found.append((column, round(from_y + min(1.0, max(0.0, share)) * (to_y - from_y))))
    return found


def _value(scale: Scale, place: int) -> str:
    share = (place - scale.first) / (scale.last - scale.first) if scale.last != scale.first else 0.0
    value = scale.low * (scale.high / scale.low) ** share if scale.log else scale.low + share * (scale.high - scale.low)
    return f"{value:.3g}"
