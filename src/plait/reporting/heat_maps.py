"""Heat maps from plain numbers, each an SVG document as text, with its colour bar.

`heat_map` shows the numbers in its cells; `matrices` have too many cells for that and are bitmaps, side by side.

Letters: R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.reporting.axes import FILE
from plait.reporting.svg import CHARACTER, DIVERGING, RAMP, Drawing, Ramp, cut, shade, shades

CELL, ROW = 52.0, 28.0  # pixels; a cell grows with the label below it
LONGEST_TICK = 28  # characters


@dataclass(frozen=True)
class Matrix:
    """Entries in [0, 1], row 0 on top."""

    title: str
    values_RC: np.ndarray


def heat_map(
    values_RC: np.ndarray, *, title: str, x_label: str, y_label: str, x_ticks: Sequence[str], y_ticks: Sequence[str],
    low: float = 0.0, marker: float = -1, marker_label: str = "",
) -> str:  # fmt: skip
    """A cell for each value with the value written in it. Values are between `low` (0 or -1) and 1; with -1 the
    colour map is diverging, with one hue per sign. `marker` is the position of a dashed vertical line, in columns from
    0 and possibly fractional; negative for none."""
    rows, columns = values_RC.shape
    ramp = DIVERGING if low < 0 else RAMP
    across, beside = ([cut(tick, LONGEST_TICK) for tick in ticks] for ticks in (x_ticks, y_ticks))
    wide = max(CELL, 14 + CHARACTER * max(map(len, across), default=0))
    left = max(84.0, 48 + CHARACTER * max(map(len, beside), default=0))
    top = 64.0
    words = 8.4 * len(title)  # the title of a narrow map may be wider than its cells
    drawing = Drawing(max(left + wide * columns + 92, 24 + words), top + ROW * rows + 62, title)
    drawing.text(min(left, max(12.0, drawing.width - words)), 26, title, size=15, bold=True)
    for r in range(rows):
        y = top + ROW * r
        drawing.text(left - 8, y + ROW / 2 + 4, beside[r], anchor="end", colour=FILE.pale)
        for c in range(columns):
            value = float(values_RC[r, c])
            at = (value - low) / (1 - low)
            hint = f"{x_label} {x_ticks[c]}, {y_label} {y_ticks[r]}: {value:.3g}".strip()
            drawing.rect(left + wide * c, y, wide, ROW, shade(at, ramp), stroke="#ffffff", hint=hint)
            dark = at > 0.55 if low >= 0 else abs(value) > 0.7
            ink = "#ffffff" if dark else FILE.ink
            place = left + wide * (c + 0.5), y + ROW / 2 + 4
            drawing.text(*place, _short(value), anchor="middle", colour=ink, size=11)
    for c in range(columns):
        drawing.text(left + wide * (c + 0.5), top + ROW * rows + 18, across[c], anchor="middle", colour=FILE.pale)
    if 0 <= marker <= columns:
        x = left + wide * marker
        drawing.line(x, top - 10, x, top + ROW * rows, FILE.ink, dashed=True)
        anchor = "end" if marker > columns / 2 else "start"
        drawing.text(x, top - 14, marker_label, size=11, colour=FILE.pale, anchor=anchor)
    drawing.text(left + wide * columns / 2, drawing.height - 14, x_label, anchor="middle")
    drawing.text(22, top + ROW * rows / 2, y_label, anchor="middle", turned=True)
    draw_ramp(drawing, left + wide * columns + 24, top, ROW * rows, low, ramp)
    return str(drawing)


def matrices(
    panels: Sequence[Matrix], *, title: str, x_label: str, y_label: str, columns: int, power: float = 1.0
) -> str:
    """Matrices as images side by side, with one colour bar. Shades follow value ** `power`: a power below 1 makes small
    values visible."""
    side, gap, left, top = 260.0, 46.0, 46.0, 72.0
    rows = math.ceil(len(panels) / columns)
    across = min(columns, len(panels))
    drawing = Drawing(left + across * (side + gap) + 46, top + rows * (side + gap), title)
    drawing.text(left, 26, title, size=15, bold=True)
    drawing.text(left, 44, f"down: {y_label} · across: {x_label}", size=11, colour=FILE.pale)
    for number, panel in enumerate(panels):
        x, y = left + (number % columns) * (side + gap), top + (number // columns) * (side + gap)
        drawing.text(x, y - 6, panel.title, size=12)
        drawing.bitmap(x, y, side, side, shades(panel.values_RC**power))
        drawing.rect(x, y, side, side, "none", stroke=FILE.grid)
    draw_ramp(drawing, left + across * (side + gap) - gap + 20, top, side, power=power)
    return str(drawing)


def draw_ramp(
    drawing: Drawing, x: float, y: float, height: float, low: float = 0.0, ramp: Ramp = RAMP, *, power: float = 1.0
) -> None:
    """Draw the colour bar of a heat map."""
    drawing.bitmap(x, y, 12, height, shades(np.linspace(1, 0, 64)[:, None], ramp))
    middle = (1 + low) / 2 if power == 1 else 0.5 ** (1 / power)
    for value, at in ((1, y + 4), (middle, y + height / 2 + 4), (low, y + height + 4)):
        drawing.text(x + 17, at, f"{value:g}", size=11, colour=FILE.pale)


def _short(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.2f}".rstrip("0").rstrip(".").replace("-", "−")
