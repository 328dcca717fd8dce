"""The view of an evaluation: accuracy over the length for questions about long texts, a grid of depths and lengths for
needles, gate and attention maps, and curves over lengths and positions for losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from plait.core.units import percent
from plait.records.record import Record, flat
from plait.reporting.axes import Axis
from plait.reporting.charts import Panel, Series, figure
from plait.reporting.heat_maps import Matrix, heat_map, matrices
from plait.reporting.page import Child, card, folded, grid, note, section, sentence, table, tag, tiles
from plait.reporting.plots import line_legend, panel_plot
from plait.reporting.summaries import mapping, number, number_text, pattern_of, sequence, spec_of, whole_text
from plait.reporting.svg import Drawing, shades
from plait.reporting.view_model import curve_points
from plait.reporting.view_probe import Score, heat_grid
from plait.reporting.views import Context, View, field_table, svg_element

MOST_MAPS = 12
MOST_LINES = 8
SIDE = 260.0
SHADE_POWER = 0.5  # exponent for shades of attention weights: a head that attends to 100 tokens gives each 0.01
TITLES = {
    "perplexity": "Perplexity",
    "per-token": "Loss by position",
    "extrapolation": "Length extrapolation",
    "needle": "Needle in a haystack",
    "ruler": "RULER",
    "phonebook": "Phone-book recall",
    "maps": "Attention and forget gates",
}
#: Labels of result fields, for titles and axes; others are shown by name.
LABELS = {
    "lengths": "sequence length, tokens", "positions": "position in the sequence, tokens",
    "octaves": "position, from half of it up to it, tokens", "octave_loss": "loss, nats per token (↓ better)",
    "loss_at": "loss, nats per token (↓ better)", "smooth_101": "mean of 101 positions",
    "smooth_1001": "mean of 1001 positions", "trained_length": "trained length, tokens",
    "loss": "loss, nats per token", "depths": "depth in the context", "slope": "slope, nats per doubling",
    "perplexity": "perplexity (↓ better)",
}  # fmt: skip
NOT_DRAWN = ("maps", "interval", "left_out")


def eval_view(record: Record, context: Context) -> View:
    result, config, spec = record.result, record.config, spec_of(record)
    name = str(config.get("evaluation", "evaluation"))
    plain = {key: value for key, value in flat(result).items() if not isinstance(value, (list, dict))}
    maps = [mapping(head_map) for head_map in sequence(result.get("maps"))][:MOST_MAPS]
    tasks = {task: mapping(task_result) for task, task_result in mapping(result.get("tasks")).items()}
    grids = {mode: mapping(needle) for mode, needle in result.items() if sequence(mapping(needle).get("exact"))}
    parts: list[Child] = []
    figures: dict[str, Callable[[], str]] = {}
    rows: Sequence[Mapping[str, Any]] = [plain]
    if maps:
        parts.append(maps_section(maps))
        figures["maps"] = lambda: _maps_figure(maps)
        rows = [
            {key: head_map.get(key) for key in ("layer", "head", "sharp", "distance", "memory")} for head_map in maps
        ]
    elif tasks:
        parts += [_task_tiles(result), *_task_parts(result, tasks)]
        figures["accuracy"] = lambda: _task_figure(result, tasks, TITLES.get(name, name))
        rows = [
            {"task": task, **{key: point.get(key) for key in ("length", "score", "chance")}}
            for task, task_result in tasks.items()
            for point in _task_points(task_result)
        ]
    elif grids:
        parts += [section(f"Needles, {mode}", *_needle_parts(mode, needle, result)) for mode, needle in grids.items()]
        for mode, needle in grids.items():
            figures[f"needle-{mode}"] = lambda mode=mode, needle=needle: _needle_figure(mode, needle)  # type: ignore[misc]
    else:
        numbers = [(_label(key), number_text(value), "") for key, value in plain.items() if number(value) is not None]
        curves = curves_of(result)
        parts += [tiles(numbers[:6])] if numbers else []
        parts += [_curve_section(over, lines) for over, lines in curves.items()]
        if curves:
            figures["curves"] = lambda: _curves_figure(curves, TITLES.get(name, name))
    verdict = result.get("verdict")
    if isinstance(verdict, str):
        parts.insert(0, note(sentence(verdict)))
    settings = flat(mapping(config.get("settings")))
    if settings:
        parts.append(folded("Settings", field_table(settings, "settings")))
    if plain and not maps:
        parts.append(folded("All numbers", field_table(plain, "result")))
    split = mapping(config.get("data")).get("split")
    lead = f"Evaluated on the {split} split." if split else "Evaluated on generated texts."
    seq = int(number(config.get("trained_length")) or 1024)
    return View(f"{TITLES.get(name, name)}: {pattern_of(spec)}", lead, parts, figures, rows, spec=spec, seq=seq)


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


# ---- losses over lengths and positions


Points = list[tuple[float, float]]


def curves_of(result: Mapping[str, Any]) -> dict[str, dict[str, Points]]:
    """Curves of a result: lists of equal length, plotted over the one that increases, and lists of pairs, over steps.
    Keyed by the x variable, then by name."""
    curves: dict[str, dict[str, Points]] = {}
    lists: dict[int, dict[str, list[float]]] = {}
    for name, value in flat(result).items():
        values = sequence(value)
        if len(values) < 3 or name in NOT_DRAWN:
            continue
        numbers = [number(entry) for entry in values]
        plain = [entry for entry in numbers if entry is not None]
        if len(plain) == len(values):
            lists.setdefault(len(values), {})[name] = plain
        elif pairs := curve_points(values):
            curves.setdefault("optimizer steps", {})[_label(name)] = pairs
    for same in lists.values():
        over = next((name for name, x in same.items() if all(a < b for a, b in pairwise(x))), None)
        if over is None:
            continue
        x = same.pop(over)
        shown = {name: y for name, y in same.items() if not _is_wider_than(name, x)}
        for name, y in list(shown.items())[:MOST_LINES]:
            curves.setdefault(_label(over), {})[_label(name)] = curve_points(
                [list(pair) for pair in zip(x, y, strict=True)]
            )
    return curves


def _is_wider_than(name: str, x: Sequence[float]) -> bool:
    """Whether it is a mean over a window of more than a third of the curve, which is nearly constant."""
    return name.startswith("smooth_") and 3 * int(name.rpartition("_")[2]) > x[-1]


def _is_geometric(lines: Mapping[str, Points]) -> bool:
    """Whether every x is at least 1.5 times the one before, as lengths that double are."""
    return all(a[0] > 0 and b[0] >= 1.5 * a[0] for points in lines.values() for a, b in pairwise(points))


def _curve_panel(over: str, lines: Mapping[str, Points]) -> Panel:
    smoothed, log, label = any(map(_is_mean, lines)), _is_geometric(lines), next(iter(lines))
    series = [
        Series.of(title, points, marks=len(points) <= 60, thin=smoothed and not _is_mean(title))
        for title, points in lines.items()
    ]
    x = Axis(over, log=log, low=None if log else 0.0)
    return Panel(series, x, Axis(label), f"{label} over {over}", unit=over.partition(",")[0])


def _is_mean(title: str) -> bool:
    return title.startswith("mean of")


def _curve_section(over: str, lines: Mapping[str, Points]) -> Element:
    panel = _curve_panel(over, lines)
    names = [line_legend(panel)] if len(lines) > 1 else []
    heading = f"{panel.y.label.partition(',')[0].partition(' (')[0]} by {over.partition(',')[0]}"
    return section(sentence(heading)[:-1], card(panel_plot(panel), *names))


def _curves_figure(curves: Mapping[str, Mapping[str, Points]], title: str) -> str:
    panels = [replace(_curve_panel(over, lines), title="") for over, lines in curves.items()]
    return figure(panels, title=title)


# ---- questions about long texts


def _task_points(task_result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    points = (mapping(point) for point in sequence(task_result.get("points")))
    return [point for point in points if number(point.get("length")) and number(point.get("score")) is not None]


def _interval(point: Mapping[str, Any]) -> tuple[float, float] | None:
    ends = [number(end) for end in sequence(point.get("interval"))]
    return (ends[0], ends[1]) if len(ends) == 2 and ends[0] is not None and ends[1] is not None else None


def _reached(length: object, points: Sequence[Mapping[str, Any]]) -> str:
    """0: not even the shortest length."""
    below = f"< {whole_text(points[0].get('length'))}" if points else "0"
    return f"{whole_text(length) if length else below} tokens"


def _task_tiles(result: Mapping[str, Any]) -> Element:
    mean = mapping(result.get("mean"))
    points = _task_points(mean)
    threshold = number_text(result.get("threshold"), 3)
    longest = points[-1] if points else {}
    return tiles([
        ("effective length", _reached(mean.get("effective_length"), points),
         f"longest length up to which every mean accuracy is at least {threshold}"),
        ("certain length", _reached(mean.get("certain_length"), points), "for the intervals' lower ends"),
        ("trained length", f"{whole_text(result.get('trained_length'))} tokens", ""),
        *([("mean accuracy", f"{float(longest['score']):.3f}", f"at {whole_text(longest.get('length'))} tokens")]
          if longest else []),
    ])  # fmt: skip


def _task_parts(result: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> list[Child]:
    mean = mapping(result.get("mean"))
    scored = {task: task_result for task, task_result in tasks.items() if _task_points(task_result)}
    if not scored:
        return [note("No task fits into these lengths.")]
    what = "mean of the tasks" if len(scored) > 1 else next(iter(scored))
    lines = [_accuracy_series(what, mean), _chance_series(mean)]
    words = "Fraction of answers that greedy decoding writes, with 95 % intervals over questions."
    panel = Panel(
        lines, Axis(LABELS["lengths"], log=True), Axis("accuracy (↑ better)"), "Accuracy over the length",
        marker=_trained_within(result, mean), marker_label="trained length", floor=number(result.get("threshold")),
        floor_label="threshold of an effective length", unit="tokens",
    )  # fmt: skip
    drawn = card(panel_plot(panel), line_legend(panel))
    sections: list[Child] = [section("Accuracy by sequence length", note(words), drawn)]
    if len(scored) > 1:
        lengths = sorted(
            {int(point["length"]) for task_result in scored.values() for point in _task_points(task_result)}
        )
        scores = {
            task: {f"{int(p['length']):,}": _score(p) for p in _task_points(task_result)}
            for task, task_result in scored.items()
        }
        picture = heat_grid(scores, [f"{length:,}" for length in lengths])
        short = ", ".join(
            f"{task} ({whole_text(task_result.get('shortest'))})"
            for task, task_result in tasks.items()
            if task not in scored
        )
        sections.append(
            section(
                "By task",
                note("Accuracy; below it the 95 % interval. Columns: tokens of the text."),
                card(tag("div", picture, class_="scroll wide")),
                *([note(f"Skipped, because a question needs more tokens: {short}.")] if short else []),
            )
        )
    return sections


def _score(point: Mapping[str, Any]) -> Score:
    return Score(float(point["score"]), _interval(point), len(sequence(point.get("scores"))) or 1, {}, "questions")


def _accuracy_series(name: str, task_result: Mapping[str, Any]) -> Series:
    points = [(float(point["length"]), float(point["score"])) for point in _task_points(task_result)]
    ends = [_interval(point) or (float(point["score"]),) * 2 for point in _task_points(task_result)]
    return Series.of(name, points, low=[low for low, _ in ends], high=[high for _, high in ends])


def _chance_series(task_result: Mapping[str, Any]) -> Series:
    points = [(float(point["length"]), number(point.get("chance"))) for point in _task_points(task_result)]
    return Series.of("chance", [(length, chance) for length, chance in points if chance is not None], number=7)


def _trained_within(result: Mapping[str, Any], mean: Mapping[str, Any]) -> float | None:
    """The trained length, if it is within the chart."""
    trained, lengths = number(result.get("trained_length")), [float(point["length"]) for point in _task_points(mean)]
    return trained if trained and lengths and lengths[0] <= trained <= lengths[-1] else None


def _task_figure(result: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]], title: str) -> str:
    mean = {"mean": mapping(result.get("mean"))} if len(tasks) > 1 else {}
    shown = mean | dict(list(tasks.items())[: MOST_LINES - 1])
    series = [_accuracy_series(name, scored) for name, scored in shown.items() if _task_points(scored)]
    axes = Axis(LABELS["lengths"], log=True), Axis("accuracy (↑ better)", low=0.0, high=1.0)
    return figure([Panel(series, *axes)], title=title, below="bars are 95 % intervals over questions")


# ---- needles


def _needle_parts(mode: str, needle: Mapping[str, Any], result: Mapping[str, Any]) -> list[Child]:
    words = "How often greedy decoding writes the answer. Right: longer texts. Down: deeper needles."
    numbers = [
        ("exact match", number_text(needle.get("score"), 3), "the mean over depths and lengths"),
        ("log-likelihood of the answer", number_text(needle.get("mean_log_likelihood")), "nats per token"),
        ("trained length", f"{whole_text(result.get('trained_length'))} tokens", ""),
    ]
    picture = tag("div", svg_element(_needle_figure(mode, needle)), class_="drawing wide")
    return [tiles(numbers), note(words), card(picture)]


def _needle_figure(mode: str, needle: Mapping[str, Any]) -> str:
    exact = _matrix(needle["exact"])
    if exact is None:
        raise ValueError("the grid of a needle is not a table of numbers")
    return heat_map(
        exact, title=f"Needle, {mode}: fraction of exact answers", x_label="text length, tokens", y_label="depth",
        x_ticks=[whole_text(length) for length in sequence(needle.get("lengths"))],
        y_ticks=[percent(float(depth)) for depth in sequence(needle.get("depths"))],
    )  # fmt: skip


# ---- maps


def maps_section(maps: Sequence[Mapping[str, Any]]) -> Element:
    cards = [card(tag("div", *_map_images(head_map), class_="maps"), title=_place(head_map)) for head_map in maps]
    rows: list[list[Child]] = [
        [
            _place(head_map),
            percent(number(head_map.get("sharp")) or 0),
            number_text(head_map.get("distance"), 3),
            number_text(head_map.get("memory"), 3) or "–",
        ]
        for head_map in maps
    ]
    columns = ("head", ">rows with A above 0.5", ">mean distance, tokens", ">tokens left by F")
    words = (
        "A: attention weights of a head, queries down, keys across. F: what its forget gates leave. Darker "
        "is more, from 0 to 1; the shade grows with the square root, to make small weights visible."
    )
    return section("Gates and attention", note(words), grid(*cards), table(columns, rows, name="heads"))


def _place(head_map: Mapping[str, Any]) -> str:
    return f"layer {head_map.get('layer')}, head {head_map.get('head')}"


def _matrix(values: object) -> np.ndarray | None:
    rows = [[number(value) or 0.0 for value in sequence(row)] for row in sequence(values)]
    return np.array(rows) if rows and rows[0] and len({len(row) for row in rows}) == 1 else None


def _map_images(head_map: Mapping[str, Any]) -> list[Element]:
    images = []
    for name, values in (("F", head_map.get("forget")), ("A", head_map.get("attention"))):
        matrix = _matrix(values)
        if matrix is None:
            continue
        drawing = Drawing(SIDE, SIDE, f"{name} of {_place(head_map)}", background="")
        drawing.bitmap(0, 0, SIDE, SIDE, shades(matrix**SHADE_POWER))
        words = "F, forget gates" if name == "F" else "A, attention"
        images.append(tag("div", tag("span", words), drawing.inline("chart")))
    return images


def _maps_figure(maps: Sequence[Mapping[str, Any]]) -> str:
    panels = []
    for head_map in maps:
        for name, values in (("F", head_map.get("forget")), ("A", head_map.get("attention"))):
            if (matrix := _matrix(values)) is not None:
                panels.append(Matrix(f"{name}, {_place(head_map)}", matrix))
    return matrices(panels, title="Gates and attention", x_label="key", y_label="query", columns=4, power=SHADE_POWER)
