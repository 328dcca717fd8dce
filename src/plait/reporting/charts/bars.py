"""One bar per row from 0 to 1, its interval as a whisker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from plait.reporting.charts.axes import PAGE
from plait.reporting.charts.page import colour
from plait.reporting.svg import Drawing, Scale, cut, label

TRACK = "var(--track)"
WIDE_CHARACTER = 8.2  # pixels of a bold letter at 12; names are mostly wide ones (m, a, ×)


@dataclass(frozen=True)
class Bar:
    """A share of 1 with its interval, if it has one."""

    name: str
    value: float
    interval: tuple[float, float] | None
    series: int | None = None
    hint: str = ""
    chosen: bool = False


def bars(rows: Sequence[Bar], *, title: str) -> Element:
    """With the value behind each bar."""
    wide = max((WIDE_CHARACTER * len(row.name) for row in rows), default=0.0)
    left, right, row_height = min(180.0, 16 + wide), 346.0, 25.0
    drawing = Drawing(390, 34 + row_height * len(rows), title, background="")
    most = int((left - 12) / WIDE_CHARACTER)
    x_of = Scale(0, 1, left, right)
    for value in (0.0, 0.5, 1.0):
        drawing.line(x_of(value), 4, x_of(value), drawing.height - 24, PAGE.grid)
        drawing.text(x_of(value), drawing.height - 8, label(value), size=11, anchor="middle", colour=PAGE.pale)
    for number, row in enumerate(rows):
        y = 6 + row_height * number
        middle = y + row_height / 2 - 2
        drawing.text(left - 8, middle + 4, cut(row.name, most), anchor="end", bold=row.chosen, colour=PAGE.ink)
        drawing.rect(left, y + 3, right - left, row_height - 10, TRACK)
        ends = " ({:.2f} to {:.2f})".format(*row.interval) if row.interval else ""
        hint = row.hint or f"{row.name}: {row.value:.2f}{ends}"
        drawing.rect(left, y + 3, max(1.0, x_of(row.value) - left), row_height - 10, colour(row.series), hint=hint)
        if row.interval:
            drawing.line(x_of(row.interval[0]), middle, x_of(row.interval[1]), middle, PAGE.ink, width=1.5)
        for end in row.interval or ():
            drawing.line(x_of(end), middle - 4, x_of(end), middle + 4, PAGE.ink, width=1.5)
        drawing.text(right + 8, middle + 4, f"{row.value:.2f}", bold=row.chosen, colour=PAGE.ink)
    return drawing.inline("chart")
