"""Pictures of results: curves of several runs, and grids of values. Each function returns an SVG document as text.

Compute, then draw: everything here takes plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.report.svg import CHARACTER, COLOURS, GRID, INK, PALE, Drawing, Scale, label, shade, shades

MOST_DOTS = 40  # a curve of more points is drawn without marking each


@dataclass(frozen=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """A matrix with entries in [0, 1], row 0 on top."""

    title: str
    values_RC: np.ndarray


def line_chart(
    curves: Sequence[Curve], *, title: str, x_label: str, y_label: str, log_x: bool = False, marker: float = 0,
    marker_label: str = "",
) -> str:  # fmt: skip
    """Curves over one axis; a dashed line with a label stands at x = `marker` unless that is 0. Points that are not
    finite are left out."""
    left, right, bottom = 70.0, 24.0, 56.0
    drawing_width = 760.0
    rows = _legend_rows([curve.name for curve in curves], drawing_width - left - right)
    top = 48.0 + 20 * len(rows)
    drawing = Drawing(drawing_width, top + 320 + bottom, title)
    points = [[(x, y) for x, y in zip(c.x, c.y, strict=True) if math.isfinite(x) and math.isfinite(y)] for c in curves]
    xs = [x for some in points for x, _ in some] or [1.0]
    ys = [y for some in points for _, y in some] or [0.0]
    room = 0.05 * (max(ys) - min(ys))
    x_of = Scale(min(xs), max(xs), left, drawing.width - right, log=log_x)
    y_of = Scale(min(ys) - room, max(ys) + room, drawing.height - bottom, top)
    _frame(drawing, x_of, y_of, title, x_label, y_label)
    if marker and x_of.low <= marker <= x_of.high:
        drawing.line(x_of(marker), top, x_of(marker), drawing.height - bottom, PALE, dashed=True)
        near_end = x_of(marker) > drawing.width * 0.7
        shift, anchor = (-6, "end") if near_end else (6, "start")
        drawing.text(x_of(marker) + shift, top + 12, marker_label, size=11, colour=PALE, anchor=anchor)
    for some, colour in zip(points, _cycled(len(curves)), strict=True):
        placed = [(x_of(x), y_of(y)) for x, y in some]
        drawing.path(placed, colour)
        if len(placed) <= MOST_DOTS:
            for x, y in placed:
                drawing.dot(x, y, colour)
    _legend(drawing, rows, left)
    return str(drawing)


def grid_chart(
    values_RC: np.ndarray, *, title: str, x_label: str, y_label: str, x_ticks: Sequence[str], y_ticks: Sequence[str],
    marker: float = -1, marker_label: str = "",
) -> str:  # fmt: skip
    """A cell for each value in [0, 1] with the value written in it. `marker` is the column, counted from 0 and with
    parts of a column, at whose left edge a dashed line stands; none where it is below 0."""
    rows, columns = values_RC.shape
    wide, high, left, top = 52.0, 28.0, 84.0, 64.0
    drawing = Drawing(left + wide * columns + 92, top + high * rows + 62, title)
    drawing.text(left, 26, title, size=15, bold=True)
    for r in range(rows):
        y = top + high * r
        drawing.text(left - 8, y + high / 2 + 4, y_ticks[r], anchor="end", colour=PALE)
        for c in range(columns):
            value = float(values_RC[r, c])
            hint = f"{x_label} {x_ticks[c]}, {y_label} {y_ticks[r]}: {value:.3g}"
            drawing.rect(left + wide * c, y, wide, high, shade(value), stroke="#ffffff", hint=hint)
            ink = "#ffffff" if value > 0.55 else INK
            drawing.text(left + wide * (c + 0.5), y + high / 2 + 4, _short(value), anchor="middle", colour=ink, size=11)
    for c in range(columns):
        drawing.text(left + wide * (c + 0.5), top + high * rows + 18, x_ticks[c], anchor="middle", colour=PALE)
    if 0 <= marker <= columns:
        x = left + wide * marker
        drawing.line(x, top - 10, x, top + high * rows, INK, dashed=True)
        drawing.text(x, top - 14, marker_label, size=11, colour=PALE, anchor="end" if marker > columns / 2 else "start")
    drawing.text(left + wide * columns / 2, drawing.height - 14, x_label, anchor="middle")
    drawing.text(22, top + high * rows / 2, y_label, anchor="middle", turned=True)
    _ramp(drawing, left + wide * columns + 24, top, high * rows)
    return str(drawing)


def matrices(panels: Sequence[Panel], *, title: str, x_label: str, y_label: str, columns: int) -> str:
    """Matrices with too many cells for labels side by side, as bitmaps with one ramp."""
    side, gap, left, top = 260.0, 46.0, 46.0, 72.0
    rows = math.ceil(len(panels) / columns)
    across = min(columns, len(panels))
    drawing = Drawing(left + across * (side + gap) + 46, top + rows * (side + gap), title)
    drawing.text(left, 26, title, size=15, bold=True)
    drawing.text(left, 44, f"down: {y_label} · across: {x_label}", size=11, colour=PALE)
    for number, panel in enumerate(panels):
        x, y = left + (number % columns) * (side + gap), top + (number // columns) * (side + gap)
        drawing.text(x, y - 6, panel.title, size=12)
        drawing.bitmap(x, y, side, side, shades(panel.values_RC))
        drawing.rect(x, y, side, side, "none", stroke=GRID)
    _ramp(drawing, left + across * (side + gap) - gap + 20, top, side)
    return str(drawing)


def _frame(drawing: Drawing, x_of: Scale, y_of: Scale, title: str, x_label: str, y_label: str) -> None:
    left, right, bottom, top = x_of.first, x_of.last, y_of.first, y_of.last
    drawing.text(left, 26, title, size=15, bold=True)
    for value in y_of.ticks():
        drawing.line(left, y_of(value), right, y_of(value), GRID)
        drawing.text(left - 8, y_of(value) + 4, label(value), anchor="end", colour=PALE)
    for value in x_of.ticks():
        drawing.line(x_of(value), bottom, x_of(value), bottom + 5, PALE)
        drawing.text(x_of(value), bottom + 19, label(value), anchor="middle", colour=PALE)
    drawing.line(left, bottom, right, bottom, PALE)
    drawing.text((left + right) / 2, drawing.height - 14, x_label, anchor="middle")
    drawing.text(20, (top + bottom) / 2, y_label, anchor="middle", turned=True)


def _legend_rows(names: Sequence[str], width: float) -> list[list[tuple[float, str, str]]]:
    """(offset, name, colour) of every entry, in rows that fit the width; no legend for a single nameless curve."""
    rows: list[list[tuple[float, str, str]]] = []
    at = math.inf
    for name, colour in zip(names, _cycled(len(names)), strict=True):
        if not name:
            continue
        needed = 40 + CHARACTER * len(name)
        if at + needed > width:
            rows.append([])
            at = 0.0
        rows[-1].append((at, name, colour))
        at += needed
    return rows


def _legend(drawing: Drawing, rows: list[list[tuple[float, str, str]]], left: float) -> None:
    for number, row in enumerate(rows):
        y = 46 + 20 * number
        for offset, name, colour in row:
            drawing.rect(left + offset, y - 4, 16, 3, colour)
            drawing.text(left + offset + 22, y + 2, name)


def _ramp(drawing: Drawing, x: float, y: float, height: float) -> None:
    """The bar that says which shade is which value."""
    drawing.bitmap(x, y, 12, height, shades(np.linspace(1, 0, 64)[:, None]))
    for value, at in ((1, y + 4), (0.5, y + height / 2 + 4), (0, y + height + 4)):
        drawing.text(x + 17, at, f"{value:g}", size=11, colour=PALE)


def _cycled(number: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(number)]


def _short(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.2f}".rstrip("0").rstrip(".")
