"""Interactive charts: the static drawing, together with the numbers from which the page's script (`web/`) redraws it to
fit its container, zoomed, with series hidden or the limit moved. Without the script, the static drawing remains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from plait.reporting.charts import MOST_DOTS, Panel, Series, inline_panel
from plait.reporting.page import json_script, legend, tag
from plait.reporting.page_charts import Line, Mark, curves, scatter, swatch

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
    """Line charts; the arguments are those of `page_charts.curves`."""
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
