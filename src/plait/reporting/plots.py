"""Charts of a page: marks over two axes, and curves, in the page's colours (`plait.reporting.page`), light and dark.
Marks with a hint show it as a tooltip.

Interactive charts are the static drawing, together with the numbers from which the page's script (`web/`) redraws it to
fit its container, zoomed, with series hidden or the limit moved. Without the script, the static drawing remains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element

from plait.reporting.axes import PAGE, Axis, colour, draw_axes, shape, swatch
from plait.reporting.charts import MOST_DOTS, Panel, Series, inline_panel
from plait.reporting.page import json_script, legend, tag
from plait.reporting.svg import Drawing, Scale


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


HIGH, LOW = 340, 320  # pixels of height


@dataclass(frozen=True)
class Limit:
    """A limit on x, which the reader can move."""

    value: float
    name: str
    unit: str


def scatter_plot(
    marks: Sequence[Mark], *, title: str, x_label: str, y_label: str, limit: Limit | None = None, of: str = "",
    x_from: float = 0, y_from: float = 0, step: bool = True, select: bool = False,
) -> Element:  # fmt: skip
    """A scatter chart. `step` adds the line of the largest y up to each x; `of` is the caption, such as "12 of 300
    models"; `select` lets the reader select models to compare."""
    words = f"limit {limit.value:g} {limit.unit}" if limit else ""
    drawn = scatter(
        marks, title=title, x_label=x_label, y_label=y_label, limit=limit.value if limit else None, limit_label=words,
        x_from=x_from, y_from=y_from,
    )  # fmt: skip
    groups: dict[tuple[str, int | None, bool], list[Mark]] = {}
    for mark in marks:
        groups.setdefault((mark.group, mark.series, not mark.measured), []).append(mark)
    series = [
        {"name": name, "number": number, "hollow": hollow, "points": [_point_of(mark) for mark in some]}
        for (name, number, hollow), some in groups.items()
    ]
    data: dict[str, object] = {
        "title": title,
        "height": HIGH,
        "x": {"label": x_label, "from": x_from},
        "y": {"label": y_label, "from": y_from},
        "series": series,
        "step": step,
        "select": select,
        "of": of,
    }
    if limit:
        data["limit"] = {"value": limit.value, "name": limit.name, "unit": limit.unit}
    return plot(drawn, data)


def curve_plot(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, floor: float | None = None, floor_label: str = "",
    log: bool = False, unit: str = "step", until: float | None = None, until_label: str = "",
) -> Element:  # fmt: skip
    """Line charts; the arguments are those of `curves`."""
    drawn = curves(
        lines, title=title, x_label=x_label, y_label=y_label, floor=floor, floor_label=floor_label, log=log, unit=unit,
        until=until, until_label=until_label,
    )  # fmt: skip
    series = [
        {
            "name": line.name,
            "number": line.series,
            "joined": True,
            "bare": not line.dots,
            "faint": line.faint or None,
            "key": line.key or None,
            "points": [
                {
                    "x": _digits(x),
                    "y": _digits(y),
                    "key": line.key or None,
                    "name": line.name,
                    "hint": f"{line.name}: {y:.3f}{_interval_text(line.ends.get(x))}\n{unit} {x:,.0f}",
                    **({"ends": [_digits(end) for end in line.ends[x]]} if x in line.ends else {}),
                }
                for x, y in line.points
                if math.isfinite(x) and math.isfinite(y)
            ],
        }
        for line in lines
    ]
    values = (("y", floor, floor_label), ("x", until, until_label))
    data = {
        "title": title,
        "height": LOW,
        "x": {"label": x_label, "log": log, **({} if log else {"from": 0})},
        "y": {"label": y_label},
        "series": series,
        "lines": [{"axis": axis, "at": at, "label": label} for axis, at, label in values if at is not None],
    }
    return plot(drawn, data)


def _interval_text(ends: tuple[float, float] | None) -> str:
    return " ({:.3f} to {:.3f})".format(*ends) if ends else ""


def line_legend(lines: Sequence[Line]) -> Element:
    return legend([(swatch(line.series), line.name) for line in lines])


def plot(drawn: Element, data: Mapping[str, Any]) -> Element:
    return tag("figure", drawn, json_script(data), class_="plot")


def cube_plot(drawn: Element, points: Sequence[Mapping[str, Any]], axes: Sequence[str], *, title: str) -> Element:
    """Models over three axes, which the reader can rotate. `points` have their three values `v`, a `key`, a `hint`, the
    `number` and the name (`group`) of their series."""
    ends = [(min(p["v"][axis] for p in points), max(p["v"][axis] for p in points)) for axis in range(3)]
    held_axes = [
        {"label": label, "low": _digits(low), "high": _digits(high)}
        for label, (low, high) in zip(axes, ends, strict=True)
    ]
    data = {"title": title, "axes": held_axes, "points": [{**p, "v": [_digits(v) for v in p["v"]]} for p in points]}
    return tag("figure", drawn, json_script(data), class_="cube")


def _point_of(mark: Mark) -> dict[str, object]:
    fields = {
        "x": _digits(mark.x),
        "y": _digits(mark.y),
        "key": mark.key or None,
        "name": mark.name,
        "hint": mark.hint,
        "chosen": mark.chosen or None,
        "span": [_digits(end) for end in mark.span] if mark.span else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def panel_plot(panel: Panel, numbers: Mapping[str, int]) -> Element:
    """A panel of a figure as an interactive chart; `numbers` are the series numbers that the page's legend uses."""
    series_data = []
    for series in panel.series:
        name = series.like or series.name
        number = numbers[name]
        places = [i for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)) if _is_on_axes(panel, x, y)]
        series_data.append(
            {
                "name": name,
                "number": number if number >= 0 else None,
                "hollow": series.faint,
                "joined": series.joined != "none",
                "bare": series.joined != "none" and len(series.x) > MOST_DOTS,
                "key": name,
                "points": [_point_in(panel, series, name, i) for i in places],
            }
        )
    marker = [] if panel.marker is None else [{"axis": "x", "at": panel.marker, "label": panel.marker_label}]
    data = {
        "title": panel.title,
        "height": LOW,
        "x": {"label": panel.x.label, "log": panel.x.log},
        "y": {"label": panel.y.label, "log": panel.y.log},
        "series": series_data,
        "lines": marker,
        "known_to": panel.known_to,
    }
    return plot(inline_panel(panel, dict(numbers)), data)


def _is_on_axes(panel: Panel, x: float, y: float) -> bool:
    return panel.x.keeps(x) and panel.y.keeps(y)


def _point_in(panel: Panel, series: Series, name: str, i: int) -> dict[str, object]:
    x, y = series.x[i], series.y[i]
    text = f"{series.name}\n{panel.x.label}: {x:.4g}\n{panel.y.label}: {y:.4g}"
    hint = series.hints[i] if len(series.hints) else text
    point: dict[str, object] = {"x": _digits(x), "y": _digits(y), "key": name, "name": name, "hint": hint}
    if len(series.low) and panel.y.keeps(series.low[i]) and panel.y.keeps(series.high[i]):
        point["ends"] = [_digits(series.low[i]), _digits(series.high[i])]
    return point
