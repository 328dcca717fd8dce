"""A search's Pareto front as a chart, over two axes or three; hovering over a mark shows its numbers.

In 2D: the first objective against latency, or against the second. In 3D, as in LiteTransformerSearch's Fig. 15
(Javaheripi et al. 2022, arXiv:2203.02094): a cube seen from a corner, next to the three pairs of axes. Each is a
self-contained SVG document.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from plait.core.errors import UserError
from plait.core.units import PREFIXES
from plait.device.quantities import in_rows, on_device, quantity
from plait.reporting.axes import PAGE, colour, swatch
from plait.reporting.page import STYLE
from plait.reporting.plots import Mark, scatter
from plait.reporting.svg import CHARACTER, Drawing, label

WIDTH, HEIGHT, TOP, FOOT = 720.0, 620.0, 46.0, 42.0
HOLDS, FLAGGED = 0, 1  # series
#: The page's colours of the light theme: not every image viewer supports CSS variables.
PALETTE = dict(re.findall(r"--(\w+): ([^;]+);", STYLE.partition("@media")[0]))


def front_chart(document: dict[str, Any]) -> str:
    """`document` is that of `plait search --json`."""
    y_name, x_name = _axes(document)
    shown = _shown(document)
    scales = {name: axis_scale(name, [value_of(row, name) for row in shown]) for name in (y_name, x_name)}
    (x_unit, x_suffix), (y_unit, y_suffix) = scales[x_name], scales[y_name]
    marks = [
        Mark(
            x=value_of(row, x_name) / x_unit,
            y=value_of(row, y_name) / y_unit,
            series=FLAGGED if row["within"] is False else HOLDS,
            hint=hint_of(row, document),
            measured=row["measurement"] is not None or x_name not in on_device(),
            span=_span(row, x_name),
        )
        for row in shown
    ]
    limit = document["limits"].get(x_name)
    if limit is not None:
        limit *= quantity(x_name).scale if x_name in on_device() else 1 / x_unit
    ends = [end for mark in marks for end in (mark.x, *(mark.span or ()))]
    title = _title(document)
    drawing = Drawing(WIDTH, HEIGHT, title, background=PAGE.paper)
    drawing.text(24, 30, title, size=15, bold=True, colour=PAGE.ink)
    chart = scatter(
        marks,
        title=title,
        x_label=f"{x_name.replace('_', ' ')},{x_suffix}" if x_suffix else x_name.replace("_", " "),
        y_label=f"{y_name.replace('_', ' ')},{y_suffix}" if y_suffix else y_name.replace("_", " "),
        limit=limit,
        limit_label=f"limit {limit:g}{x_suffix}" if limit is not None else "",
        x_from=axis_start([*ends, *([] if limit is None else [limit])]),
        y_from=axis_start([mark.y for mark in marks]),
    )
    drawing.place(chart, 10, TOP, WIDTH - 20, HEIGHT - TOP - FOOT)
    _legend(drawing, marks)
    return re.sub(r"var\(--(\w+)\)", lambda name: PALETTE.get(name[1], name[0]), str(drawing))


def _title(document: dict[str, Any]) -> str:
    shown = f"{len(document['front'])} of {document['on_front']} models on the front"
    return f"{document['space']} by {document['method']}: {shown}"


def _shown(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [*document["front"], *document["over_limit"]]
    if not rows:
        raise UserError("there is nothing to draw: the front is empty.")
    return rows


def _axes(document: dict[str, Any]) -> tuple[str, str]:
    """The quantities of the y axis and the x axis."""
    names = [objective.rpartition(":")[2] for objective in document["objectives"]]
    if len(names) < 2:
        raise UserError(f"a figure needs two objectives; this search had one, {names[0]}.")
    return names[0], "latency" if "latency" in names[1:] else names[1]


def value_of(row: dict[str, Any], name: str) -> float:
    """The measured value of a device quantity if there is one, else the predicted one."""
    if name not in on_device():
        return float(row[name])
    entry = row[quantity(name).column]
    return float(entry["predicted"] if entry["measured"] is None else entry["measured"])


def _span(row: dict[str, Any], name: str) -> tuple[float, float] | None:
    """The interval of the value: of its repeats if it was measured, else of the prediction."""
    if name not in on_device():
        return None
    entry = row[quantity(name).column]
    interval = entry["interval"] if entry["measured"] is None else entry.get("measured_interval")
    return (interval[0], interval[1]) if interval else None


def axis_scale(name: str, values: list[float]) -> tuple[float, str]:
    """The divisor that makes the axis's numbers short, and the unit that results."""
    if name in on_device():
        return 1.0, f" {quantity(name).unit}"
    largest = max(map(abs, values))
    return next(((size, f" {prefix}") for size, prefix in PREFIXES if largest >= size), (1.0, ""))


def axis_start(values: list[float]) -> float:
    """The start of an axis: 0, unless all values are close together and far from 0 (losses), or some are negative
    (minus the loss)."""
    least, most = min(values), max(values)
    if least < 0:
        return least - 0.25 * (most - least or -least)
    return 0.0 if least < most / 2 or least == most else max(0.0, least - 0.25 * (most - least))


def hint_of(row: dict[str, Any], document: dict[str, Any]) -> str:
    lines = [row["spec"]]
    for name in (objective.rpartition(":")[2] for objective in document["objectives"]):
        if name not in on_device():
            step, suffix = axis_scale(name, [row[name]])
            lines.append(f"{name.replace('_', ' ')}: {row[name] / step:.3g}{suffix}")
    for name, device_quantity in in_rows([row]).items():
        entry, unit, parts = row[device_quantity.column], device_quantity.unit, []
        if entry["measured"] is not None:
            ends = entry.get("measured_interval")
            reach = f" ({ends[0]:.3g} to {ends[1]:.3g})" if ends else ""
            parts.append(f"{entry['measured']:.3g} {unit} measured{reach}")
        if entry["predicted"] is not None:
            half = entry["interval"][1] - entry["predicted"]
            parts.append(f"{entry['predicted']:.3g} ± {half:.2g} {unit} predicted")
        if parts:
            lines.append(f"{name}: {', '.join(parts)}{', noisy' if entry.get('noisy') else ''}")
    return "\n".join([*lines, *(f"above a limit: {limit}" for limit in row["exceeded"])])


def _legend(drawing: Drawing, marks: list[Mark]) -> None:
    entries = [
        (HOLDS, False, "measured" if any(m.series == FLAGGED or not m.measured for m in marks) else ""),
        (HOLDS, True, "predicted only" if any(not m.measured for m in marks) else ""),
        (FLAGGED, False, "measured above a limit" if any(m.series == FLAGGED for m in marks) else ""),
    ]
    x = 62.0
    for series, hollow, words in entries:
        if words:
            drawing.place(swatch(series, hollow=hollow), x, HEIGHT - 28, 16, 16)
            drawing.text(x + 22, HEIGHT - 16, words, size=12.5, colour=PAGE.pale)
            x += 40 + 7.0 * len(words)


WIDTH, HEIGHT, TOP = 1080.0, 900.0, 50.0
PANEL = (WIDTH / 2, (HEIGHT - TOP) / 2)
EDGE = 150.0  # pixels of the cube's edges
COS, SIN = math.cos(math.pi / 6), math.sin(math.pi / 6)
ON_FRONT, BEHIND, PAIRED = 0, None, 1  # series


@dataclass(frozen=True)
class Model:
    """One point: its three values in the order of the axes. `paired`: part of a matched pair, drawn in its own
    colour."""

    values: tuple[float, float, float]
    hint: str = ""
    on_front: bool = True
    paired: bool = False


def cube_chart(models: Sequence[Model], axes: Sequence[str], title: str) -> str:
    """`axes` are the labels of the three values, with their units."""
    if len(axes) != 3 or not models:
        raise UserError(f"a 3-D figure has three axes; given: {', '.join(axes) or 'none'}.")
    drawing = Drawing(WIDTH, HEIGHT, title, background=PAGE.paper)
    drawing.text(24, 32, title, size=15, bold=True, colour=PAGE.ink)
    _cube(drawing, models, axes)
    for place, (x, y) in enumerate(((1, 0), (2, 0), (1, 2)), start=1):
        left, top = PANEL[0] * (place % 2), TOP + PANEL[1] * (place // 2)
        panel = scatter(
            [Mark(m.values[x], m.values[y], _series(m), m.hint) for m in models],
            title=f"{axes[y]} against {axes[x]}",
            x_label=axes[x],
            y_label=axes[y],
            x_from=axis_start([m.values[x] for m in models]),
            y_from=axis_start([m.values[y] for m in models]),
        )
        drawing.place(panel, left + 8, top, PANEL[0] - 16, PANEL[1])
    return re.sub(r"var\(--(\w+)\)", lambda name: PALETTE.get(name[1], name[0]), str(drawing))


def cube_drawing(models: Sequence[Model], axes: Sequence[str], title: str) -> Element:
    """The cube alone, as part of a page."""
    drawing = Drawing(PANEL[0], TOP + PANEL[1], title, background="")
    _cube(drawing, models, axes)
    return drawing.inline("chart")


def search_cube(document: dict[str, Any]) -> str:
    """The first three objectives of a search; `document` is that of `plait search --json`."""
    names = [objective.rpartition(":")[2] for objective in document["objectives"]][:3]
    if len(names) < 3:
        raise UserError(f"a 3-D figure needs three objectives; this search had {', '.join(names)}.")
    rows = _shown(document)
    scales = [axis_scale(name, [value_of(row, name) for row in rows]) for name in names]
    models = [
        Model(
            (_at(row, names, scales, 0), _at(row, names, scales, 1), _at(row, names, scales, 2)),
            hint_of(row, document),
            on_front=row["within"] is not False,
        )
        for row in rows
    ]
    axes = [
        f"{name.replace('_', ' ')}{f',{unit}' if unit else ''}" for name, (_, unit) in zip(names, scales, strict=True)
    ]
    title = _title(document)
    return cube_chart(models, axes, title)


def _at(row: dict[str, Any], names: Sequence[str], scales: Sequence[tuple[float, str]], axis: int) -> float:
    return value_of(row, names[axis]) / scales[axis][0]


def _series(model: Model) -> int | None:
    return PAIRED if model.paired else ON_FRONT if model.on_front else BEHIND


def _cube(drawing: Drawing, models: Sequence[Model], axes: Sequence[str]) -> None:
    """The first axis goes up, the second to the right and forward, the third to the left and forward."""
    ends = [(min(m.values[axis] for m in models), max(m.values[axis] for m in models)) for axis in range(3)]

    def share(model: Model, axis: int) -> float:
        low, high = ends[axis]
        return (model.values[axis] - low) / (high - low) if high > low else 0.5

    for corner in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        _edges(drawing, corner)
    for axis, at in enumerate(((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))):
        low, high = ends[axis]
        x, y = _seen(*at)
        words = f"{axes[axis]}: {label(_digits(low))} to {label(_digits(high))}"
        half = CHARACTER * len(words) / 2 + 4
        x = min(max(x, half), PANEL[0] - half)  # kept inside, however long it is
        drawing.text(x, y + (-10 if axis == 0 else 18), words, size=12, anchor="middle", colour=PAGE.pale)
    # From back to front, so that near marks cover far ones.
    for model in sorted(models, key=lambda m: share(m, 1) + share(m, 2)):
        up, right, left = (share(model, axis) for axis in range(3))
        x, y = _seen(up, right, left)
        foot = _seen(0.0, right, left)
        drawing.line(x, y, *foot, PAGE.grid)
        drawing.mark("circle", x, y, 5, colour(_series(model)), stroke=PAGE.paper, hint=model.hint)


def _edges(drawing: Drawing, corner: tuple[int, int, int]) -> None:
    """Draw the edges of one of the three rear faces (floor and two walls), which share the corner (0, 0, 0)."""
    axes = [axis for axis in range(3) if not corner[axis]]
    points = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]
    outline = []
    for first, second in points:
        place = [0.0, 0.0, 0.0]
        place[axes[0]], place[axes[1]] = float(first), float(second)
        outline.append(_seen(*place))
    for (x1, y1), (x2, y2) in itertools.pairwise(outline):
        drawing.line(x1, y1, x2, y2, PAGE.grid)


def _seen(up: float, right: float, left: float) -> tuple[float, float]:
    """The isometric projection of a point of the unit cube to pixels."""
    centre, floor = PANEL[0] / 2, TOP + PANEL[1] / 2 + 10
    return centre + EDGE * (right - left) * COS, floor + EDGE * ((right + left) * SIN - up)


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
