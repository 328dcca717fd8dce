"""The view of an evaluation: gate and attention maps where it has them, curves where it has lists of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from plait.records.record import Record, flat
from plait.reporting.charts import Matrix, matrices
from plait.reporting.page import Child, card, grid, note, section, sentence, table, tag, tiles
from plait.reporting.page_charts import Line
from plait.reporting.plots import curve_plot, line_legend
from plait.reporting.studies import loss_figure
from plait.reporting.summaries import mapping, number, number_text, pattern_of, sequence, spec_of
from plait.reporting.svg import Drawing, shades
from plait.reporting.view_train import curve_points
from plait.reporting.views import Context, View, field_table

MOST_MAPS = 12
MOST_LINES = 8
SIDE = 260.0
#: What fields of results mean, for titles and axes; others are shown as they are called.
LABELS = {
    "lengths": "sequence length, tokens", "positions": "position in the sequence, tokens",
    "octaves": "position, from half of it up to it, tokens", "octave_loss": "loss, nats per token",
    "loss_at": "loss, nats per token", "smooth_101": "mean of 101 positions", "smooth_1001": "mean of 1001 positions",
    "trained_length": "trained length, tokens", "loss": "loss, nats per token", "depths": "depth in the context",
    "slope": "slope over the position",
}  # fmt: skip


def eval_view(record: Record, context: Context) -> View:
    result, config, spec = record.result, record.config, spec_of(record)
    name = str(config.get("evaluation", "evaluation"))
    maps = [mapping(one) for one in sequence(result.get("maps"))][:MOST_MAPS]
    curves = curves_of(result)
    plain = {key: value for key, value in flat(result).items() if not isinstance(value, (list, dict))}
    numbers = [(_label(key), number_text(value), "") for key, value in plain.items() if number(value) is not None][:6]
    parts: list[Child] = [tiles(numbers)] if numbers else []
    figures: dict[str, Callable[[], str]] = {}
    if maps:
        parts.append(maps_section(maps))
        figures["maps"] = lambda: _maps_figure(maps)
    for over, lines in curves.items():
        drawn = [Line(title, points, n, dots=len(points) <= 60) for n, (title, points) in enumerate(lines.items())]
        title = ", ".join(lines) if len(lines) < 4 else f"{len(lines)} curves"
        plot = curve_plot(drawn, title=title, x_label=over, y_label=next(iter(lines)))
        names = [line_legend(drawn)] if len(drawn) > 1 else []
        parts.append(section(sentence(f"{next(iter(lines)).partition(',')[0]} by {over.partition(',')[0]}")[:-1],
                             card(plot, *names)))  # fmt: skip
    if curves:
        every = {f"{title} over {over}": points for over, lines in curves.items() for title, points in lines.items()}
        figures["curves"] = lambda: loss_figure(every, title=name)
    settings = flat(mapping(config.get("settings")))
    if settings:
        parts.append(section("Settings", field_table(settings, "settings")))
    if plain and not maps:
        parts.append(section("All numbers", field_table(plain, "result")))
    lead = f"Evaluated by {name}."
    seq = int(number(config.get("trained_length")) or 1024)
    heads = [{key: one.get(key) for key in ("layer", "head", "sharp", "distance", "memory")} for one in maps]
    rows = heads or [plain]
    return View(f"{name} of {pattern_of(spec)}", lead, parts, figures, rows, spec=spec, seq=seq)


Points = list[tuple[float, float]]


def curves_of(result: Mapping[str, Any]) -> dict[str, dict[str, Points]]:
    """Fields that are lists of as many numbers, over the one among them that grows, else over their places; and lists
    of pairs. By what they are over, then by name."""
    found: dict[str, dict[str, Points]] = {}
    lists: dict[int, dict[str, list[float]]] = {}
    for name, value in flat(result).items():
        values = sequence(value)
        if len(values) < 3 or name == "maps":
            continue
        numbers = [number(each) for each in values]
        plain = [each for each in numbers if each is not None]
        if len(plain) == len(values):
            lists.setdefault(len(values), {})[_label(name)] = plain
        elif pairs := curve_points(values):
            found.setdefault("steps", {})[_label(name)] = pairs
    for same in lists.values():
        over = next((name for name, x in same.items() if all(a < b for a, b in pairwise(x))), None)
        x = same.pop(over) if over is not None and len(same) > 1 else None
        for name, y in list(same.items())[:MOST_LINES]:
            points = curve_points([list(pair) for pair in (zip(x, y, strict=True) if x else enumerate(y))])
            found.setdefault(over if x and over else "place", {})[name] = points
    return found


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


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
        drawing = Drawing(SIDE, SIDE, f"{name} of {_place(one)}", background="")
        drawing.bitmap(0, 0, SIDE, SIDE, shades(matrix))
        words = "F, forget gates" if name == "F" else "A, attention"
        made.append(tag("div", tag("span", words), drawing.inline("chart")))
    return made


def _maps_figure(maps: Sequence[Mapping[str, Any]]) -> str:
    panels = []
    for one in maps:
        for name, values in (("F", one.get("forget")), ("A", one.get("attention"))):
            if (matrix := _matrix(values)) is not None:
                panels.append(Matrix(f"{name}, {_place(one)}", matrix))
    return matrices(panels, title="Gates and attention", x_label="key", y_label="query", columns=4)
