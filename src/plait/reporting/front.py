"""A search's front as a picture: the first objective against latency, or against the second. An SVG document that needs
nothing else; what is pointed at says its numbers."""

from __future__ import annotations

import re
from typing import Any

from plait.core.errors import UserError
from plait.device.quantities import in_rows, on_device, quantity
from plait.reporting.charts.axes import PAGE
from plait.reporting.charts.page import Mark, scatter, swatch
from plait.reporting.numbers import PREFIXES
from plait.reporting.style import STYLE
from plait.reporting.svg import Drawing

WIDTH, HEIGHT, TOP, FOOT = 720.0, 620.0, 46.0, 42.0
HOLDS, FLAGGED = 0, 1  # series
#: A page's colours on light ground: not every program that shows pictures knows CSS variables.
PALETTE = dict(re.findall(r"--(\w+): ([^;]+);", STYLE.partition("@media")[0]))


def front_picture(found: dict[str, Any]) -> str:
    """`found` is the document of `plait search --json`."""
    y_name, x_name = _axes(found)
    shown = [*found["front"], *found["over_limit"]]
    scales = {name: axis_scale(name, [value_of(row, name) for row in shown]) for name in (y_name, x_name)}
    (x_unit, x_suffix), (y_unit, y_suffix) = scales[x_name], scales[y_name]
    marks = [
        Mark(
            x=value_of(row, x_name) / x_unit,
            y=value_of(row, y_name) / y_unit,
            series=FLAGGED if row["within"] is False else HOLDS,
            hint=hint_of(row, found),
            measured=row["measurement"] is not None or x_name not in on_device(),
            span=_span(row, x_name),
        )
        for row in shown
    ]
    limit = found["limits"].get(x_name)
    if limit is not None:
        limit *= quantity(x_name).scale if x_name in on_device() else 1 / x_unit
    ends = [end for mark in marks for end in (mark.x, *(mark.span or ()))]
    title = f"{found['space']} by {found['method']}: {len(found['front'])} of {found['on_front']} models on the front"
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


def _axes(found: dict[str, Any]) -> tuple[str, str]:
    """What goes up, and what to the right."""
    names = [objective.rpartition(":")[2] for objective in found["objectives"]]
    if len(names) < 2:
        raise UserError(f"a picture has two axes, and this search had one objective, {names[0]}.")
    return names[0], "latency" if "latency" in names[1:] else names[1]


def value_of(row: dict[str, Any], name: str) -> float:
    """Of a quantity of the device what was measured, else what was predicted."""
    if name not in on_device():
        return float(row[name])
    entry = row[quantity(name).column]
    return float(entry["predicted"] if entry["measured"] is None else entry["measured"])


def _span(row: dict[str, Any], name: str) -> tuple[float, float] | None:
    """How far the value may reach: by its repeats where it was measured, else by the prediction."""
    if name not in on_device():
        return None
    entry = row[quantity(name).column]
    interval = entry["interval"] if entry["measured"] is None else entry.get("measured_interval")
    return (interval[0], interval[1]) if interval else None


def axis_scale(name: str, values: list[float]) -> tuple[float, str]:
    """By what to divide so that an axis has short numbers, and the unit then."""
    if name in on_device():
        return 1.0, f" {quantity(name).unit}"
    largest = max(map(abs, values))
    return next(((size, f" {prefix}") for size, prefix in PREFIXES if largest >= size), (1.0, ""))


def axis_start(values: list[float]) -> float:
    """Where an axis begins: at 0, unless all values are far from it and near each other, as losses are."""
    least, most = min(values), max(values)
    return 0.0 if least < most / 2 or least == most else max(0.0, least - 0.25 * (most - least))


def hint_of(row: dict[str, Any], found: dict[str, Any]) -> str:
    lines = [row["spec"]]
    for name in (objective.rpartition(":")[2] for objective in found["objectives"]):
        if name not in on_device():
            step, suffix = axis_scale(name, [row[name]])
            lines.append(f"{name.replace('_', ' ')}: {row[name] / step:.3g}{suffix}")
    for name, each in in_rows([row]).items():
        entry, unit, said = row[each.column], each.unit, []
        if entry["measured"] is not None:
            ends = entry.get("measured_interval")
            reach = f" ({ends[0]:.3g} to {ends[1]:.3g})" if ends else ""
            said.append(f"{entry['measured']:.3g} {unit} measured{reach}")
        if entry["predicted"] is not None:
            half = entry["interval"][1] - entry["predicted"]
            said.append(f"{entry['predicted']:.3g} ± {half:.2g} {unit} predicted")
        if said:
            lines.append(f"{name}: {', '.join(said)}{', noisy' if entry.get('noisy') else ''}")
    return "\n".join([*lines, *(f"above a limit: {each}" for each in row["exceeded"])])


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
