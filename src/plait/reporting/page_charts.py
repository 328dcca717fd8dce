"""Charts of a page: marks over two axes, and curves, in the page's colours (`plait.reporting.page`), light and dark.
Marks with a hint show it as a tooltip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from plait.reporting.axes import MARKS, PAGE, Axis, draw_axes
from plait.reporting.svg import Drawing, Scale


def colour(series: int | None) -> str:
    """The colour of a series; grey for None, which means no series."""
    return "var(--none)" if series is None else PAGE.colour(series)


def shape(series: int | None) -> str:
    return "circle" if series is None else MARKS[series % len(MARKS)]


@dataclass(frozen=True)
class Mark:
    """One point of a scatter chart. `span` is the interval of its x; one that is not `measured` is hollow. `key` links
    it to other parts of the page, `name` is shown, `group` is its legend entry."""

    x: float
    y: float
    series: int | None = None
    hint: str = ""
    measured: bool = True
    chosen: bool = False
    span: tuple[float, float] | None = None
    key: str = ""
    name: str = ""
    group: str = ""


@dataclass(frozen=True)
class Line:
    """`dots`: every point has a mark. `ends`: the interval of a point, by its x. `faint`: thin, behind the others."""

    name: str
    points: Sequence[tuple[float, float]]
    series: int | None = None
    dots: bool = False
    key: str = ""
    ends: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    faint: bool = False


def scatter(
    marks: Sequence[Mark], *, title: str, x_label: str, y_label: str, limit: float | None = None, limit_label: str = "",
    x_from: float = 0, y_from: float = 0,
) -> Element:  # fmt: skip
    """Marks over two axes; the region beyond the limit is shaded."""
    drawing = Drawing(460, 340, title, background="")
    left, right, top, bottom = 52.0, 446.0, 16.0, 292.0
    reach = [mark.x for mark in marks] + [mark.span[1] for mark in marks if mark.span]
    # A limit far beyond all marks would squeeze them into a corner, so it is stated as text and not drawn.
    near = limit is not None and limit <= 2.5 * max(reach, default=limit)
    x_most = max([*reach, *([limit] if near and limit else [])], default=1.0)
    y_most = max([mark.y for mark in marks], default=1.0)
    x_of = Scale(x_from, x_most + 0.06 * (x_most - x_from), left, right)
    y_of = Scale(y_from, y_most + 0.12 * (y_most - y_from), bottom, top)
    draw_axes(drawing, x_of, y_of, x_label, y_label, PAGE)
    if limit is not None and near:
        drawing.rect(x_of(limit), top, right - x_of(limit), bottom - top, "var(--beyond)")
        drawing.line(x_of(limit), top, x_of(limit), bottom, PAGE.limit, dashed=True)
        drawing.text(x_of(limit) - 6, top + 10, limit_label, size=11, anchor="end", colour=PAGE.limit)
    elif limit is not None:
        drawing.text(right, top + 10, f"{limit_label}, far beyond →", size=11, anchor="end", colour=PAGE.limit)
    # The chosen mark is drawn last, so that nothing covers it.
    for mark in sorted(marks, key=lambda m: (m.chosen, m.measured, m.series is not None)):
        _draw_mark(drawing, mark, x_of(mark.x), y_of(mark.y), [x_of(end) for end in mark.span or ()])
    return drawing.inline("chart")


def _draw_mark(drawing: Drawing, mark: Mark, x: float, y: float, span: Sequence[float]) -> None:
    if span:
        drawing.line(span[0], y, span[1], y, colour(mark.series))
    if mark.chosen:
        drawing.mark("circle", x, y, 12, "none", stroke=PAGE.ink)
    named = mark.series is not None
    fill = colour(mark.series) if mark.measured else PAGE.paper
    stroke = PAGE.paper if mark.measured else colour(mark.series)
    drawing.mark(shape(mark.series), x, y, 5.5 if named else 3.5, fill, stroke=stroke, hint=mark.hint)


def curves(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, floor: float | None = None, floor_label: str = "",
    log: bool = False, unit: str = "step", until: float | None = None, until_label: str = "",
) -> Element:  # fmt: skip
    """Curves over a linear or logarithmic x axis. `floor` draws a horizontal line at a bound such as the true entropy,
    `until` a vertical one, such as where training ended."""
    drawing = Drawing(720, 320, title, background="")
    left, right, top, bottom = 52.0, 706.0, 16.0, 272.0
    finite = [[(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y)] for line in lines]
    xs = [x for some in finite for x, _ in some] or [1.0]
    ys = [y for some in finite for _, y in some] + ([floor] if floor is not None else []) or [0.0, 1.0]
    ys += [end for line in lines for ends in line.ends.values() for end in ends]
    room = 0.06 * (max(ys) - min(ys) or 1.0)
    x_of = Scale(min(xs) if log else 0, max(xs), left, right, log=log)
    low = min(ys) - room
    y_of = Scale(low if min(ys) < 0 else max(0.0, low), max(ys) + room, bottom, top)
    ticks = Axis(log=True).tick_values(x_of, xs) if log else None
    draw_axes(drawing, x_of, y_of, x_label, y_label, PAGE, x_ticks=ticks)
    if until is not None:
        drawing.line(x_of(until), top, x_of(until), bottom, PAGE.pale, dashed=True)
        drawing.text(x_of(until) - 6, top + 10, until_label, size=11, anchor="end", colour=PAGE.pale)
    if floor is not None:
        drawing.line(left, y_of(floor), right, y_of(floor), PAGE.limit, dashed=True, width=1.5)
        drawing.text(right, y_of(floor) - 6, floor_label, size=11, anchor="end", colour=PAGE.limit)
    for line, some in zip(lines, finite, strict=True):
        drawing.path([(x_of(x), y_of(y)) for x, y in some], colour(line.series), width=1 if line.faint else 2)
        for x, y in some if line.dots else ():
            if ends := line.ends.get(x):
                drawing.line(x_of(x), y_of(ends[0]), x_of(x), y_of(ends[1]), colour(line.series))
            hint = f"{line.name}: {y:.3f}\n{unit} {x:,.0f}"
            drawing.mark(shape(line.series), x_of(x), y_of(y), 5, colour(line.series), stroke=PAGE.paper, hint=hint)
    return drawing.inline("chart")


def swatch(series: int | None, *, hollow: bool = False) -> Element:
    """The mark of a series, for a legend."""
    drawing = Drawing(16, 16, "", background="")
    fill, stroke = (PAGE.paper, colour(series)) if hollow else (colour(series), "none")
    drawing.mark(shape(series), 8, 8, 5 if series is not None else 3.5, fill, stroke=stroke)
    return drawing.inline("swatch", hidden=True)
