"""The view of a search: its Pareto front in 2D and 3D, models to select and compare, and, for a search that trained a
supernet, the choices of every layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from plait.core.units import PREFIXES, percent, short
from plait.device.quantities import on_device, quantity
from plait.records.record import Record
from plait.reporting.axes import Axis, swatch
from plait.reporting.charts import Panel, Series, figure
from plait.reporting.front import Model, axis_start, cube_chart, cube_drawing
from plait.reporting.models import ModelSheet
from plait.reporting.page import Child, card, code, folded, grid, json_script, legend, note, section, table, tag, tiles
from plait.reporting.plots import Mark, cube_plot, scatter_plot
from plait.reporting.studies import LayerChoices, mixture_chart
from plait.reporting.summaries import (
    constraints_of,
    mapping,
    number,
    number_text,
    pattern_of,
    sequence,
    time_text,
    whole_text,
)
from plait.reporting.views import Context, View, svg_element

MOST_MODELS = 250  # models of a front that are drawn and listed
FIRST = 12  # rows that a table shows at first
MOST_GROUPS = 7  # compositions with a colour of their own
OTHERS = "other mixers"
WORDS = {"flops": "FLOPs", "kv_cache": "KV cache", "decoder_params": "parameters in the layers"}
BYTES = ("kv_cache", "fixed_state")  # the exact objectives that are in bytes


@dataclass(frozen=True)
class Quantified:
    """An objective: its name, whether more of it is better, and how its numbers are written."""

    name: str
    maximise: bool
    scale: float
    unit: str

    @property
    def words(self) -> str:
        return WORDS.get(self.name, self.name.replace("_", " "))

    @property
    def label(self) -> str:
        return f"{self.words}, {self.unit}" if self.unit else self.words

    @property
    def axis(self) -> str:
        """The axis label, including which direction is better."""
        return f"{self.label} ({'↑' if self.maximise else '↓'} better)"

    def of(self, row: Mapping[str, Any]) -> float:
        return self.scale * float(row[self.name])

    def best_text(self, rows: Sequence[Mapping[str, Any]]) -> str:
        best = (max if self.maximise else min)(float(row[self.name]) for row in rows)
        return quantity(self.name).shown(best) if self.name in on_device() else short(best, "B" * (self.name in BYTES))

    def text(self, row: Mapping[str, Any]) -> str:
        return f"{self.of(row):.4g} {self.unit}".strip()


def objectives_of(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Quantified]:
    """The objectives for which all rows have a number."""
    quantities = []
    for objective in sequence(result.get("objectives")):
        name = str(mapping(objective).get("objective", objective)).rpartition(":")[2]
        values = [number(row.get(name)) for row in rows]
        if not values or any(value is None for value in values):
            continue
        if name in on_device():
            scale, unit = quantity(name).scale, quantity(name).unit
        else:
            largest = max(abs(value) for value in values if value is not None)
            scale, unit = next(((1 / size, prefix) for size, prefix in PREFIXES if largest >= size), (1.0, ""))
            unit += "B" * (name in BYTES)
        quantities.append(Quantified(name, bool(mapping(objective).get("maximise")), scale, unit))
    return quantities


def mixers_of(spec: str) -> tuple[str, ...]:
    """The distinct mixers of a spec."""
    bare = re.sub(r"\[[^\]]*\]|\)\s*x\d+", " ", pattern_of(spec))
    return tuple(dict.fromkeys(re.findall(r"[A-Za-z_][\w.-]*", bare)))


def search_view(record: Record, context: Context) -> View:
    result = record.result
    every = [row for row in sequence(result.get("front")) if isinstance(mapping(row).get("spec"), str)]
    rows = every[:: max(1, -(-len(every) // MOST_MODELS))]
    title = f"{result.get('space')}, searched by {result.get('method')}"
    lead = (
        f"{len(every):,} models on the Pareto front of {whole_text(result.get('evaluated'))} that were compared, "
        f"{whole_text(result.get('proposed'))} that were proposed."
    )
    if len(rows) < len(every):
        lead += f" {len(rows):,} of them, evenly sampled, are shown here; the CSV has all."
    if others := constraints_of(record):
        lead += f" Constraints: {', '.join(others)}."
    seq = int(number(mapping(result.get("setting")).get("seq")) or 1024)
    asked = objectives_of(result, rows)
    if names := [objective.words for objective in asked if objective.name in on_device()]:
        lead += (
            f" Predicted from a profile of the machine: {', '.join(names)}. `plait front show {record.key[:10]}` has "
            "what was measured."
        )
    groups = _groups(rows)
    parts: list[Child] = [_tiles(record, asked, every), *_fronts(rows, asked, groups), *_choices(result)]
    figures: dict[str, Callable[[], str]] = {}
    if len(asked) > 1:
        figures["front"] = lambda: _figure(rows, asked, groups, title)
    if len(asked) > 2:
        figures["cube"] = lambda: cube_chart(_models(rows, asked), [objective.label for objective in asked[:3]], title)
    if (drawn := _mixture(result)) is not None:
        figures["layers"] = drawn
    sheets = [
        ModelSheet(row["spec"], " + ".join(mixers_of(row["spec"]))[:80], row["spec"], _facts(row, asked), seq)
        for row in rows
    ]
    return View(title, lead, parts, figures, [_flat(row) for row in every], sheets, seq=seq)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not isinstance(value, (list, dict))}


def _facts(row: Mapping[str, Any], asked: Sequence[Quantified]) -> list[tuple[str, str]]:
    return [(objective.words, objective.text(row)) for objective in asked]


def _tiles(record: Record, asked: Sequence[Quantified], rows: Sequence[Mapping[str, Any]]) -> Element:
    result = record.result
    limits = mapping(result.get("limits"))
    held_to = ", ".join(
        f"{name} {quantity(name).text(value) if name in on_device() else value}" for name, value in limits.items()
    )
    best = [
        (f"{'most' if objective.maximise else 'least'} {objective.words}",
         objective.best_text(rows), "on the front")
        for objective in asked[:3]
    ]  # fmt: skip
    cost = mapping(result.get("cost"))
    seconds = cost.get("search_seconds", cost.get("seconds"))
    return tiles([
        ("on the front", f"{len(rows):,}", f"of {whole_text(result.get('evaluated'))} compared"),
        *best,
        ("limits", str(len(limits) or "none"), held_to),
        ("time to search", time_text(seconds) or "?", f"profiling {time_text(cost.get('profile_seconds')) or 'none'}"),
    ])  # fmt: skip


def _groups(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Spec → the mixers that distinguish it, for the most common compositions."""
    sets = {row["spec"]: mixers_of(row["spec"]) for row in rows}
    everywhere = set.intersection(*(set(names) for names in sets.values())) if sets else set()
    if any(everywhere.issuperset(names) for names in sets.values()):
        everywhere = set()  # without what all have, nothing would be left to call these by
    named = {spec: " + ".join(sorted(set(names) - everywhere)) for spec, names in sets.items()}
    common = [name for name, _ in Counter(named.values()).most_common(MOST_GROUPS)]
    return {spec: name if name in common else OTHERS for spec, name in named.items()}


def _numbers(groups: Mapping[str, str]) -> dict[str, int | None]:
    names = [name for name, _ in Counter(groups.values()).most_common() if name != OTHERS]
    return {**{name: number for number, name in enumerate(names)}, OTHERS: None}


def _hint(row: Mapping[str, Any], asked: Sequence[Quantified]) -> str:
    return "\n".join([row["spec"], *(f"{objective.words}: {objective.text(row)}" for objective in asked)])


def _fronts(rows: Sequence[Mapping[str, Any]], asked: Sequence[Quantified], groups: Mapping[str, str]) -> list[Child]:
    if not rows:
        return [note("The front is empty.")]
    numbers = _numbers(groups)
    drawn: list[Child] = []
    for other in asked[1:4]:
        up, across = (asked[0], other)
        marks = [
            Mark(across.of(row), up.of(row), numbers[groups[row["spec"]]], _hint(row, asked), key=row["spec"],
                 name=groups[row["spec"]], group=groups[row["spec"]])
            for row in rows
        ]  # fmt: skip
        plot = scatter_plot(
            marks, title=f"{up.words} against {across.words}", x_label=across.axis, y_label=up.axis,
            x_from=axis_start([m.x for m in marks]), y_from=axis_start([m.y for m in marks]),
            step=up.maximise and not across.maximise, select=True,
        )  # fmt: skip
        drawn.append(card(plot, title=f"{up.words} against {across.words}"))
    if len(asked) > 2:
        axes = [objective.label for objective in asked[:3]]
        points = [
            {"v": [objective.of(row) for objective in asked[:3]], "key": row["spec"], "hint": _hint(row, asked),
             "number": numbers[groups[row["spec"]]], "group": groups[row["spec"]]}
            for row in rows
        ]  # fmt: skip
        cube = cube_plot(cube_drawing(_models(rows, asked), axes, "The front over three axes"), points, axes,
                         title="The front over three axes")  # fmt: skip
        drawn.append(card(cube, title="Over three axes"))
    words = (
        "Each mark is a model; a click shows its drawing and its cost. Drag to zoom in, or to select models to "
        "compare if “select” is on."
    )
    entries = [(swatch(number), name) for name, number in numbers.items() if name in groups.values()]
    known = {row["spec"]: list(mixers_of(row["spec"])) for row in rows}
    explorer = card(tag("div", json_script(known), data_explore="front"), title="Filter and compare")
    listed: list[list[Child]] = [
        [code(row["spec"], " + ".join(known[row["spec"]])), *(f"{objective.of(row):.4g}" for objective in asked)]
        for row in rows
    ]
    columns, keys = ["model", *(f">{objective.label}" for objective in asked)], [row["spec"] for row in rows]
    first = table(columns, listed[:FIRST], keys=keys[:FIRST], name="front")
    rest = table(columns, listed[FIRST:], keys=keys[FIRST:], name="front-rest")
    return [
        section("The front", note(words), legend(entries), grid(*drawn, explorer)) if drawn else explorer,
        section("Its models", first, *([folded(f"{len(listed) - FIRST} more", rest)] if listed[FIRST:] else [])),
    ]


def _models(rows: Sequence[Mapping[str, Any]], asked: Sequence[Quantified]) -> list[Model]:
    first, second, third = asked[:3]
    return [Model((first.of(row), second.of(row), third.of(row)), _hint(row, asked)) for row in rows]


def _figure(
    rows: Sequence[Mapping[str, Any]], asked: Sequence[Quantified], groups: Mapping[str, str], title: str
) -> str:
    panels = []
    for other in asked[1:4]:
        series = []
        for name in _numbers(groups):
            mine = [row for row in rows if groups[row["spec"]] == name]
            if mine:
                xs, ys = [other.of(row) for row in mine], [asked[0].of(row) for row in mine]
                hints = [_hint(row, asked) for row in mine]
                series.append(Series(name, xs, ys, "none", hints=hints, faint=name == OTHERS))
        panels.append(Panel(series, Axis(other.axis), Axis(asked[0].axis)))
    return figure(panels, title=title)


# ---- a supernet's choices over its layers


def _mixture(result: Mapping[str, Any]) -> Callable[[], str] | None:
    choices, seeds = sequence(result.get("choices")), sequence(result.get("seeds"))
    if not choices or not seeds or not all(sequence(mapping(seed).get("probabilities")) for seed in seeds):
        return None
    names = [[str(name) for name in sequence(layer)] for layer in choices]
    panels = [
        LayerChoices(
            f"seed {seed.get('seed')}, loss {number(seed.get('loss')) or 0:.3f}",
            seed["probabilities"],
            [str(name)[:1] or "–" for name in sequence(seed.get("layers"))],
        )
        for seed in seeds
    ]
    return lambda: mixture_chart(names, panels, title="What each layer chose")


def _choices(result: Mapping[str, Any]) -> list[Child]:
    drawn = _mixture(result)
    if drawn is None:
        return []
    rows: list[list[Child]] = [
        [
            str(seed.get("seed")),
            code(str(seed.get("spec") or "not in the space")),
            f"{number(seed.get('loss')) or 0:.4f}",
            whole_text(seed.get("steps")),
            percent(number(seed.get("settled")) or 0),
            number_text(seed.get("retrained_loss")),
        ]
        for seed in map(mapping, sequence(result.get("seeds")))
    ]
    columns = ("seed", "most likely model", ">loss in its supernet", ">steps", ">settled layers", ">retrained loss")
    words = "Layers across, choices down; darker is more likely. Letters show the choice taken."
    picture = card(tag("div", svg_element(drawn()), class_="drawing wide"))
    return [section("Choices over the layers", note(words), picture, table(columns, rows, name="supernets"))]
