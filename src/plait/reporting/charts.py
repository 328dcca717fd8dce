"""Charts from plain numbers, each an SVG document as text: series over two axes, and bars.

Series are curves, marks, step fronts and intervals, in one or several panels. Bars range from 0 to 1, with whiskers for
intervals. Heat maps: `plait.reporting.heat_maps`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

from plait.reporting.axes import (
    FILE,
    LEGEND_ROW,
    PAGE,
    Axis,
    Entry,
    Theme,
    colour,
    draw_axes,
    draw_legend,
    draw_mark,
    legend_rows,
)
from plait.reporting.svg import Drawing, Scale, cut, label

MOST_DOTS = 40  # curves with more points are drawn without marks
LEFT, RIGHT, BOTTOM = 72.0, 24.0, 56.0  # beside and below a panel
ALONE, SEVERAL = (664.0, 320.0), (330.0, 240.0)  # width and height of a panel, inside its axes
WIDE = (624.0, 250.0)  # of a page's only panel
TITLE_CHARACTER = 8.4


@dataclass(frozen=True)
class Series:
    """Points (x, y) with one name and one colour.

    joined   line, step (as a Pareto front: nothing is known to lie below it) or none
    low/high ends of an interval of each y
    hints    tooltip of each mark; default: its numbers
    note     a few words in the legend
    faint    hollow marks for secondary points, grey unless `like` a series
    like     the name of the series whose colour and mark it uses
    marks    whether the points of a line have marks; None: if there are few
    thin     a thin line, such as an unsmoothed one
    number   its colour and mark on a page whose legend decides them; None: by the order of the names
    key      on a page: links it to other parts
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    joined: str = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hints: Sequence[str] = ()
    note: str = ""
    faint: bool = False
    like: str = ""
    marks: bool | None = None
    thin: bool = False
    number: int | None = None
    key: str = ""

    @classmethod
    def of(cls, name: str, points: Sequence[tuple[float, float]], **options: Any) -> Series:
        return cls(name, [x for x, _ in points], [y for _, y in points], **options)

    def interval(self, i: int) -> tuple[float, float] | None:
        """Of one y, if it is known and has a width."""
        if not len(self.low) or not (math.isfinite(self.low[i]) and math.isfinite(self.high[i])):
            return None
        return (self.low[i], self.high[i]) if self.low[i] < self.high[i] else None


@dataclass(frozen=True)
class Panel:
    """Series over one pair of axes. `marker` is an x with a labelled dashed line, `floor` a y with one, such as an
    entropy; `known_to` the x beyond which lines are extrapolated, shaded. `powers` are (exponent, label) of dashed
    reference lines of power laws, for two logarithmic axes. With the `unit` of x tooltips are short."""

    series: Sequence[Series]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    title: str = ""
    marker: float | None = None
    marker_label: str = ""
    powers: Sequence[tuple[int, str]] = ()
    known_to: float | None = None
    floor: float | None = None
    floor_label: str = ""
    unit: str = ""


def xy_chart(
    series: Sequence[Series], *, title: str, x: Axis, y: Axis, below: str = "", marker: float | None = None,
    marker_label: str = "", powers: Sequence[tuple[int, str]] = (),
) -> str:  # fmt: skip
    """One panel."""
    panel = Panel(series, x, y, marker=marker, marker_label=marker_label, powers=powers)
    return figure([panel], title=title, below=below)


def figure(panels: Sequence[Panel], *, title: str, below: str = "", columns: int = 2) -> str:
    """Panels side by side under one title and one legend; `below` is a subtitle. Series of the same name have
    the same colour in all panels. Values that are not finite are left out."""
    wide, high = ALONE if len(panels) < 2 else SEVERAL
    across = max(1, min(columns, len(panels)))
    down = -(-len(panels) // across)
    width = across * (LEFT + wide + RIGHT)
    numbers = series_numbers(panels)
    rows = legend_rows(_entries(panels, numbers), width - LEFT - RIGHT)
    head = 48.0 + (18 if below else 0)
    top = head + LEGEND_ROW * len(rows)
    above = 26.0 if any(panel.title for panel in panels) else 0.0
    row_height = above + high + BOTTOM
    drawing = Drawing(width, top + down * row_height, title)
    drawing.text(LEFT, 26, cut(title, int((width - LEFT - 12) / TITLE_CHARACTER)), size=15, bold=True)
    if below:
        drawing.text(LEFT, 44, cut(below, int((width - LEFT - 12) / 5.9)), size=11, colour=FILE.pale)
    draw_legend(drawing, rows, LEFT, width - RIGHT, head, FILE)
    for place, panel in enumerate(panels):
        left = LEFT + (place % across) * (LEFT + wide + RIGHT)
        y = top + (place // across) * row_height + above
        if panel.title:
            drawing.text(left, y - 10, cut(panel.title, int(wide / 6.6)), bold=True, size=12)
        _draw(drawing, panel, numbers, (left, left + wide), (y + high, y))
    return str(drawing)


def inline_panel(panel: Panel, numbers: Mapping[str, int], size: tuple[float, float] = SEVERAL) -> Element:
    """One panel for a page, in the page's colours; `numbers` are the series numbers that the page's legend uses."""
    wide, high = size
    drawing = Drawing(LEFT + wide + RIGHT, high + BOTTOM + 14, panel.title, background="")
    _draw(drawing, panel, numbers, (LEFT, LEFT + wide), (high + 14, 14), PAGE)
    return drawing.inline("chart")


def front_steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a step line through points sorted by x: first horizontal, then vertical."""
    steps = list(points[:1])
    for (_, before), (x, y) in pairwise(points):
        steps += [(x, before), (x, y)]
    return steps


def series_numbers(panels: Sequence[Panel]) -> dict[str, int]:
    """A series number for each name, in order of first use; it decides colour and mark. Each series without a name gets
    a number of its own."""
    names = dict.fromkeys(s.like or s.name for panel in panels for s in panel.series if s.like or not s.faint)
    grey = {s.name: -1 for panel in panels for s in panel.series if s.faint and not s.like}
    return {name: number for number, name in enumerate(names)} | grey


def number_of(series: Series, numbers: Mapping[str, int]) -> int:
    """-1: none, which is grey."""
    return numbers[series.like or series.name] if series.number is None else series.number


def _entries(panels: Sequence[Panel], numbers: Mapping[str, int]) -> list[Entry]:
    named: dict[str, Series] = {}
    for panel in panels:
        for series in panel.series:
            named.setdefault(series.name, series)
    return [
        Entry(name, number_of(s, numbers), s.note, line=s.joined != "none", mark=dotted(s) or s.faint, faint=s.faint)
        for name, s in named.items()
    ]


def dotted(series: Series) -> bool:
    """Whether its points have marks."""
    few = len(series.x) <= MOST_DOTS if series.marks is None else series.marks
    return series.joined == "none" or few


def _draw(
    drawing: Drawing, panel: Panel, numbers: Mapping[str, int], across: tuple[float, float], down: tuple[float, float],
    theme: Theme = FILE,
) -> None:  # fmt: skip
    kept = [kept_places(series, panel) for series in panel.series]
    xs = [series.x[i] for series, places in zip(panel.series, kept, strict=True) for i in places]
    ys = [
        value
        for series, places in zip(panel.series, kept, strict=True)
        for i in places
        for value in (series.y[i], *(end[i] for end in (series.low, series.high) if len(end)))
        if panel.y.keeps(value)
    ]
    ys += [] if panel.floor is None else [panel.floor]
    x_of, y_of = panel.x.scale(xs, *across, room=0.03), panel.y.scale(ys, *down)
    if panel.known_to is not None and panel.known_to < x_of.high:
        left = max(x_of(panel.known_to), x_of.first)
        drawing.rect(left, y_of.last, x_of.last - left, y_of.first - y_of.last, theme.shade)
    draw_axes(drawing, x_of, y_of, panel.x.label, panel.y.label, theme,
              panel.x.tick_values(x_of, xs), panel.y.tick_values(y_of, ys))  # fmt: skip
    for power, words in panel.powers:
        _guide(drawing, x_of, y_of, power, words, theme)
    if panel.marker is not None and x_of.low <= panel.marker <= x_of.high:
        at_top = any(
            abs(x_of(series.x[i]) - x_of(panel.marker)) < 80 and y_of(series.y[i]) < y_of.last + 26
            for series, places in zip(panel.series, kept, strict=True)
            for i in places
        )
        _marker(drawing, x_of, y_of, panel.marker, panel.marker_label, theme, low=at_top)
    if panel.floor is not None:
        drawing.line(x_of.first, y_of(panel.floor), x_of.last, y_of(panel.floor), theme.limit, dashed=True, width=1.5)
        drawing.text(x_of.last, y_of(panel.floor) - 6, panel.floor_label, size=11, anchor="end", colour=theme.limit)
    # Faint series are drawn first, so that they cover nothing.
    for series, places in sorted(zip(panel.series, kept, strict=True), key=lambda pair: not pair[0].faint):
        _draw_series(drawing, panel, series, places, number_of(series, numbers), x_of, y_of, theme)


def kept_places(series: Series, panel: Panel) -> list[int]:
    """Of the points that the axes can show."""
    pairs = zip(series.x, series.y, strict=True)
    return [i for i, (x, y) in enumerate(pairs) if panel.x.keeps(x) and panel.y.keeps(y)]


def _draw_series(
    drawing: Drawing, panel: Panel, series: Series, places: Sequence[int], number: int, x_of: Scale, y_of: Scale,
    theme: Theme,
) -> None:  # fmt: skip
    placed = [(x_of(series.x[i]), y_of(series.y[i])) for i in places]
    if series.joined != "none":
        corners = front_steps(placed) if series.joined == "step" else placed
        drawing.path(corners, theme.colour(number), width=1 if series.thin else 2)
    if not dotted(series):
        return
    for (x, y), i in zip(placed, places, strict=True):
        if len(series.low) and math.isfinite(series.low[i]) and math.isfinite(series.high[i]):
            # An interval that reaches below zero ends at the edge of a logarithmic axis.
            low = series.low[i] if panel.y.keeps(series.low[i]) else y_of.low
            drawing.line(x, y_of(low), x, y_of(series.high[i]), theme.colour(number), width=1.5)
        draw_mark(drawing, number, x, y, theme, hint=hint_of(series, i, panel), faint=series.faint)


def hint_of(series: Series, i: int, panel: Panel) -> str:
    """The tooltip of a mark."""
    if len(series.hints):
        return series.hints[i]
    if panel.unit:
        ends = series.interval(i)
        reach = " ({:.3f} to {:.3f})".format(*ends) if ends else ""
        return f"{series.name}: {series.y[i]:.3f}{reach}\n{panel.unit} {series.x[i]:,.0f}"
    x, y = (f"{axis.label}: {value:.4g}" for axis, value in ((panel.x, series.x[i]), (panel.y, series.y[i])))
    return "\n".join(words for words in (series.name, x, y) if words)


def _marker(drawing: Drawing, x_of: Scale, y_of: Scale, at: float, words: str, theme: Theme, *, low: bool) -> None:
    """A dashed line with a label next to its upper or lower end."""
    drawing.line(x_of(at), y_of.last, x_of(at), y_of.first, theme.pale, dashed=True)
    near_end = x_of(at) > x_of.first + 0.7 * (x_of.last - x_of.first)
    shift, anchor = (-6, "end") if near_end else (6, "start")
    drawing.text(
        x_of(at) + shift, y_of.first - 8 if low else y_of.last + 12, words, size=11, colour=theme.pale, anchor=anchor
    )


def _guide(drawing: Drawing, x_of: Scale, y_of: Scale, power: int, words: str, theme: Theme) -> None:
    """A dashed line of this slope to the upper right corner, clipped to the frame."""
    x, y = x_of.high, y_of.high
    start = max(x_of.low, x * (y_of.low / y) ** (1 / power))
    drawing.line(x_of(start), y_of(y * (start / x) ** power), x_of(x), y_of(y), theme.pale, dashed=True)
    # Above the flatter line and below the steeper one: outside of the wedge in which most measurements lie.
    at = max(start, (x_of.low * x) ** 0.5)
    shift, anchor = (-7, "end") if power == 1 else (15, "start")
    place = x_of(at) - shift / 2, y_of(y * (at / x) ** power) + shift
    drawing.text(*place, words, size=11, colour=theme.pale, anchor=anchor)


TRACK = "var(--track)"
LETTERS = 13.0  # pixels; 11 are left of them on a phone
WIDE_CHARACTER = 8.8  # width of a bold letter in pixels; names have mostly wide ones (m, a, ×)


@dataclass(frozen=True)
class Bar:
    """One bar: a value between 0 and 1, with its interval if it has one."""

    name: str
    value: float
    interval: tuple[float, float] | None
    series: int | None = None
    hint: str = ""
    chosen: bool = False
    key: str = ""


def bars(rows: Sequence[Bar], *, title: str) -> Element:
    """Horizontal bars with the value written after each."""
    wide = max((WIDE_CHARACTER * len(row.name) for row in rows), default=0.0)
    left, right, row_height = min(180.0, 16 + wide), 340.0, 26.0
    drawing = Drawing(390, 34 + row_height * len(rows), title, background="")
    most = int((left - 12) / WIDE_CHARACTER)
    x_of = Scale(0, 1, left, right)
    for value in (0.0, 0.5, 1.0):
        drawing.line(x_of(value), 4, x_of(value), drawing.height - 24, PAGE.grid)
        drawing.text(x_of(value), drawing.height - 8, label(value), size=LETTERS, anchor="middle", colour=PAGE.pale)
    for number, row in enumerate(rows):
        y = 6 + row_height * number
        middle = y + row_height / 2 - 2
        drawing.text(
            left - 8, middle + 4, cut(row.name, most), size=LETTERS, anchor="end", bold=row.chosen, colour=PAGE.ink
        )
        drawing.rect(left, y + 3, right - left, row_height - 10, TRACK)
        ends = " ({:.2f} to {:.2f})".format(*row.interval) if row.interval else ""
        hint = row.hint or f"{row.name}: {row.value:.2f}{ends}"
        wide = max(1.0, x_of(row.value) - left)
        drawing.rect(left, y + 3, wide, row_height - 10, colour(row.series), hint=hint, key=row.key)
        if row.interval:
            drawing.line(x_of(row.interval[0]), middle, x_of(row.interval[1]), middle, PAGE.ink, width=1.5)
        for end in row.interval or ():
            drawing.line(x_of(end), middle - 4, x_of(end), middle + 4, PAGE.ink, width=1.5)
        drawing.text(right + 8, middle + 4, f"{row.value:.2f}", size=LETTERS, bold=row.chosen, colour=PAGE.ink)
    return drawing.inline("chart")
