"""The view of an evaluation: gate and attention maps where it has them, curves where it has lists of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from plait.records.record import Record, flat
from plait.reporting.charts import Matrix, matrices
from plait.reporting.page import Child, card, grid, note, section, table, tag, tiles
from plait.reporting.page_charts import Line
from plait.reporting.plots import curve_plot
from plait.reporting.studies import loss_figure
from plait.reporting.summaries import mapping, number, number_text, pattern_of, sequence, spec_of
from plait.reporting.svg import Drawing, shades
from plait.reporting.view_train import curve_points
from plait.reporting.views import Context, View, field_table

MOST_MAPS = 12
SIDE = 260.0


def eval_view(record: Record, context: Context) -> View:
    result, config, spec = record.result, record.config, spec_of(record)
    name = str(config.get("evaluation", "evaluation"))
    maps = [mapping(one) for one in sequence(result.get("maps"))][:MOST_MAPS]
    curves = curves_of(result)
    plain = {key: value for key, value in flat(result).items() if not isinstance(value, (list, dict))}
    numbers = [(key, number_text(value), "") for key, value in plain.items() if number(value) is not None][:6]
    parts: list[Child] = [tiles(numbers)] if numbers else []
    figures: dict[str, Callable[[], str]] = {}
    if maps:
        parts.append(maps_section(maps))
        figures["maps"] = lambda: _maps_figure(maps)
    for title, points in curves.items():
        plot = curve_plot([Line(title, points, 0, dots=len(points) <= 60)], title=title, x_label="", y_label=title)
        parts.append(section(title.replace("_", " "), card(plot)))
    if curves:
        figures["curves"] = lambda: loss_figure(curves, title=name)
    settings = flat(mapping(config.get("settings")))
    if settings:
        parts.append(section("Settings", field_table(settings, "settings")))
    if plain and not maps:
        parts.append(section("All numbers", field_table(plain, "result")))
    lead = f"Evaluated by {name}."
    seq = int(number(config.get("trained_length")) or 1024)
    return View(f"{name} of {pattern_of(spec)}", lead, parts, figures, [plain], spec=spec, seq=seq)


def curves_of(result: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Fields that are lists of numbers, over their places, or of pairs."""
    found = {}
    for name, value in flat(result).items():
        values = sequence(value)
        if len(values) < 3 or name.startswith("maps"):
            continue
        pairs = curve_points(values)
        if not pairs and all(number(each) is not None for each in values):
            pairs = curve_points([[place, each] for place, each in enumerate(values)])
        if len(pairs) >= 3:
            found[name] = pairs
    return dict(list(found.items())[:6])


def maps_section(maps: Sequence[Mapping[str, Any]]) -> Element:
    cards = [card(tag("div", *_pictures(one), class_="maps"), title=_place(one)) for one in maps]
    rows: list[list[Child]] = [
        [
            _place(one),
            f"{number(one.get('sharp')) or 0:.0%}",
            number_text(one.get("distance"), 3),
            number_text(one.get("memory"), 3) or "–",
        ]
        for one in maps
    ]
    columns = ("head", ">rows with A above 0.5", ">mean distance, tokens", ">tokens left by F")
    words = "A: which tokens a head looks at, queries down, keys across. F: what its forget gates leave in sight."
    return section("Gates and attention", note(words), grid(*cards), table(columns, rows, name="heads"))


def _place(one: Mapping[str, Any]) -> str:
    return f"layer {one.get('layer')}, head {one.get('head')}"


def _matrix(values: object) -> np.ndarray | None:
    rows = [[number(value) or 0.0 for value in sequence(row)] for row in sequence(values)]
    return np.array(rows) if rows and rows[0] and len({len(row) for row in rows}) == 1 else None


def _pictures(one: Mapping[str, Any]) -> list[Element]:
    made = []
    for name, values in (("F", one.get("forget")), ("A", one.get("attention"))):
        matrix = _matrix(values)
        if matrix is None:
            continue
        drawing = Drawing(SIDE, SIDE + 22, f"{name} of {_place(one)}", background="")
        drawing.text(0, 14, "F, forget gates" if name == "F" else "A, attention", colour="var(--pale)")
        drawing.bitmap(0, 22, SIDE, SIDE, shades(matrix))
        made.append(drawing.inline("chart"))
    return made


def _maps_figure(maps: Sequence[Mapping[str, Any]]) -> str:
    panels = []
    for one in maps:
        for name, values in (("F", one.get("forget")), ("A", one.get("attention"))):
            if (matrix := _matrix(values)) is not None:
                panels.append(Matrix(f"{name}, {_place(one)}", matrix))
    return matrices(panels, title="Gates and attention", x_label="key", y_label="query", columns=4)
