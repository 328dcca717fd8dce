"""What all charts share: colour themes (for SVG files and for HTML pages), axes with round ticks, and legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from plait.reporting import svg
from plait.reporting.svg import CHARACTER, SHAPES, Drawing, Scale, cut, labels

MARKS = ("circle", *SHAPES)
LEGEND_ROW = 20.0
LONGEST_NAME = 60  # characters in a legend
RADIUS = 4.5  # of a mark


@dataclass(frozen=True)
class Theme:
    """Colours of a chart; `series` are those of its series, in order."""

    ink: str
    pale: str
    grid: str
    paper: str
    limit: str
    shade: str  # background of extrapolated regions
    series: Sequence[str]

    def colour(self, number: int) -> str:
        """The colour of series `number`; grey for -1, which means no series."""
        return self.pale if number < 0 else self.series[number % len(self.series)]


#: For files: not every image viewer supports CSS variables.
FILE = Theme(svg.INK, svg.PALE, svg.GRID, "#ffffff", "#b3261e", "#f3f4f6", svg.COLOURS)
#: For pages: their CSS variables (`plait.reporting.page`), so that one drawing serves light and dark themes.
PAGE = Theme("var(--ink)", "var(--pale)", "var(--grid)", "var(--card)", "var(--limit)", "var(--track)",
             tuple(f"var(--s{number})" for number in range(8)))  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """`low` and `high` extend the range of the values; `ticks` replace the automatic ones."""

    label: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None

    def keeps(self, value: float) -> bool:
        """Whether the value can be drawn: finite, and above 0 on a logarithmic axis."""
        return math.isfinite(value) and (value > 0 or not self.log)

    def scale(self, values: Sequence[float], first: float, last: float, room: float = 0.05) -> Scale:
        """The scale from the range of these values, plus a margin, to the pixels `first` to `last`."""
        ends = [*values, *(end for end in (self.low, self.high) if end is not None)] or [1.0]
        low, high = min(ends), max(ends)
        if self.log:
            beside = (high / low) ** room
            low, high = low / beside, high * beside
        else:
            beside = room * (high - low)
            low, high = low - beside * (low != self.low), high + beside * (high != self.high)
        return Scale(low, high, first, last, log=self.log)

    def tick_values(self, scale: Scale, values: Sequence[float]) -> list[float]:
        """The numbers to write along the axis."""
        if self.ticks is not None:
            return _legible_ticks([tick for tick in self.ticks if scale.low <= tick <= scale.high], scale)
        if not self.log:
            apart = 56 if scale.first < scale.last else 44  # pixels
            about = max(3, int(abs(scale.last - scale.first) / apart))
            ticks = svg.round_numbers(scale.low, scale.high, about)
            return ticks if len(ticks) > 2 else svg.round_numbers(scale.low, scale.high, 2 * about)
        doubled = values and all(value > 0 and math.log2(value).is_integer() for value in values)
        ticks = scale.ticks() if doubled else svg.decades(scale.low, scale.high)
        return _legible_ticks(ticks or [scale.low, scale.high], scale)


def _legible_ticks(ticks: Sequence[float], scale: Scale) -> list[float]:
    """The ticks whose labels do not overlap, thinned from the largest down."""
    least = 40.0 if scale.first < scale.last else 18.0  # lines of text need less height than width
    kept: list[float] = []
    for tick in sorted(ticks, reverse=True):
        if not kept or abs(scale(kept[-1]) - scale(tick)) >= least:
            kept.append(tick)
    return kept[::-1]


def draw_axes(
    drawing: Drawing, x_of: Scale, y_of: Scale, x_label: str, y_label: str, theme: Theme,
    x_ticks: Sequence[float] | None = None, y_ticks: Sequence[float] | None = None,
) -> None:  # fmt: skip
    """Draw grid lines, tick labels and axis labels around the area that the scales span."""
    left, right, bottom, top = x_of.first, x_of.last, y_of.first, y_of.last
    widest = 0
    across, up = (scale.ticks() if ticks is None else ticks for scale, ticks in ((x_of, x_ticks), (y_of, y_ticks)))
    for value, words in zip(up, labels(up), strict=True):
        drawing.line(left, y_of(value), right, y_of(value), theme.grid)
        drawing.text(left - 8, y_of(value) + 4, words, size=11, anchor="end", colour=theme.pale)
        widest = max(widest, len(words))
    for value, words in zip(across, labels(across), strict=True):
        drawing.line(x_of(value), bottom, x_of(value), bottom + 5, theme.pale)
        drawing.text(x_of(value), bottom + 18, words, size=11, anchor="middle", colour=theme.pale)
    drawing.line(left, bottom, right, bottom, theme.pale)
    drawing.text((left + right) / 2, bottom + 38, x_label, anchor="middle", colour=theme.ink)
    beside = max(left - 40, 12) if widest <= 3 else max(left - 20 - 6.2 * widest, 12)
    drawing.text(beside, (top + bottom) / 2, y_label, anchor="middle", turned=True, colour=theme.ink)


@dataclass(frozen=True)
class Entry:
    """One entry of a legend: name, number of its series, an optional note, and how its symbol is drawn."""

    name: str
    number: int
    note: str = ""
    line: bool = True
    mark: bool = True
    faint: bool = False


def legend_rows(entries: Sequence[Entry], width: float) -> list[list[tuple[float, Entry]]]:
    """The entries as rows of (x offset, entry) that fit the width; an entry with a note has a row of its own, one
    without a name is left out."""
    rows: list[list[tuple[float, Entry]]] = []
    at = math.inf
    for entry in entries:
        if not entry.name:
            continue
        needed = 52 + CHARACTER * len(cut(entry.name, LONGEST_NAME))
        if at + needed > width or entry.note:
            rows.append([])
            at = 0.0
        rows[-1].append((at, entry))
        at = math.inf if entry.note else at + needed
    return rows


def draw_legend(
    drawing: Drawing, rows: Sequence[Sequence[tuple[float, Entry]]], left: float, right: float, top: float, theme: Theme
) -> None:
    for number, row in enumerate(rows):
        y = top + LEGEND_ROW * number
        for offset, entry in row:
            x, colour = left + offset, theme.colour(entry.number)
            if entry.line:
                drawing.line(x, y, x + 26, y, colour, width=2)
            if entry.mark:
                draw_mark(drawing, entry.number, x + 13, y, theme, faint=entry.faint)
            drawing.text(x + 34, y + 4, cut(entry.name, LONGEST_NAME), colour=theme.ink)
            if entry.note:
                drawing.text(right, y + 4, entry.note, anchor="end", colour=theme.pale)


def draw_mark(
    drawing: Drawing, number: int, x: float, y: float, theme: Theme, *, hint: str = "", faint: bool = False
) -> None:
    """Draw the mark of a series, hollow and small if `faint`."""
    fill, stroke = (theme.paper, theme.colour(number)) if faint else (theme.colour(number), theme.paper)
    shape = MARKS[max(0, number) % len(MARKS)]
    drawing.mark(shape, x, y, 0.75 * RADIUS if faint else RADIUS, fill, stroke=stroke, hint=hint)


def colour(series: int | None) -> str:
    """The colour of a series; grey for None, which means no series."""
    return "var(--none)" if series is None else PAGE.colour(series)


def shape(series: int | None) -> str:
    return "circle" if series is None else MARKS[series % len(MARKS)]


def swatch(series: int | None, *, hollow: bool = False) -> Element:
    """The mark of a series, for a legend."""
    drawing = Drawing(16, 16, "", background="")
    fill, stroke = (PAGE.paper, colour(series)) if hollow else (colour(series), "none")
    drawing.mark(shape(series), 8, 8, 5 if series is not None else 3.5, fill, stroke=stroke)
    return drawing.inline("swatch", hidden=True)
