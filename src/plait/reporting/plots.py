"""Charts of a page: marks over two axes, and the panels of figures (`plait.reporting.charts`), in the page's colours
(`plait.reporting.page`), light and dark. Marks with a hint show it as a tooltip.

Interactive charts are the static drawing, together with the numbers from which the page's script (`web/`) redraws it to
fit its container, zoomed, with series hidden or the limit moved. Without the script, the static drawing remains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from plait.reporting.axes import PAGE, colour, draw_axes, shape, swatch
from plait.reporting.charts import (
    SEVERAL,
    WIDE,
    Panel,
    Series,
    dotted,
    hint_of,
    inline_panel,
    kept_places,
    number_of,
    series_numbers,
)
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


def line_legend(panel: Panel) -> Element:
    """The legend of a chart that is alone on its page."""
    numbers = series_numbers([panel])
    return legend([(swatch(number_of(series, numbers)), series.name) for series in panel.series])


def panel_plot(panel: Panel, numbers: Mapping[str, int] | None = None) -> Element:
    """A panel of a figure as an interactive chart. `numbers` are the series numbers of a legend that it shares with
    others, which links its series by their names; without them it is as wide as the page."""
    shared, size = numbers is not None, WIDE if numbers is None else SEVERAL
    numbers = series_numbers([panel]) if numbers is None else numbers
    series_data = []
    for series in panel.series:
        name, number = series.like or series.name, number_of(series, numbers)
        key = series.key or (name if shared else None)
        series_data.append(
            {
                "name": name,
                "number": number if number >= 0 else None,
                "hollow": series.faint,
                "joined": series.joined != "none",
                "bare": not dotted(series),
                "faint": series.thin or None,
                "key": key,
                "points": [_point_in(panel, series, name, key, i) for i in kept_places(series, panel)],
            }
        )
    lines = (("y", panel.floor, panel.floor_label), ("x", panel.marker, panel.marker_label))
    data = {
        "title": panel.title,
        "height": LOW,
        "x": {"label": panel.x.label, "log": panel.x.log, **({} if panel.x.low is None else {"from": panel.x.low})},
        "y": {"label": panel.y.label, "log": panel.y.log},
        "series": series_data,
        "lines": [{"axis": axis, "at": at, "label": label} for axis, at, label in lines if at is not None],
        "known_to": panel.known_to,
    }
    return plot(inline_panel(panel, numbers, size), data)


def _point_in(panel: Panel, series: Series, name: str, key: str | None, i: int) -> dict[str, object]:
    x, y, hint = _digits(series.x[i]), _digits(series.y[i]), hint_of(series, i, panel)
    point: dict[str, object] = {"x": x, "y": y, "key": key, "name": name, "hint": hint}
    ends = series.interval(i)
    if ends is not None and panel.y.keeps(ends[0]):
        point["ends"] = [_digits(end) for end in ends]
    return point
