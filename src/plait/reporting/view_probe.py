"""Views of probes: one training of an architecture on a task, and many architectures as a heat map with intervals and
curves over sequence length.

`verdict_view` shows the document of `plait probe --json`: the scores of each architecture, and the verdict.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from plait.analysis.intervals import Share, estimate
from plait.core.units import percent
from plait.records.record import Record
from plait.reporting.axes import PAGE, Axis, swatch
from plait.reporting.charts import Panel, Series, figure
from plait.reporting.heat_maps import heat_map
from plait.reporting.models import ModelSheet
from plait.reporting.page import Child, card, code, grid, legend, note, section, sentence, table, tag, tiles
from plait.reporting.plots import line_legend, panel_plot
from plait.reporting.summaries import mapping, number, number_text, pattern_of, sequence, spec_of, task_of, time_text
from plait.reporting.svg import CHARACTER, Drawing, cut, shade
from plait.reporting.view_model import curve_points
from plait.reporting.views import Context, View

MOST_ROWS = 40  # architectures of a heat map
FEW = 3  # curves with at most this many points have marks
MOST_LINES = 8  # as many as there are colours
CELL, ROW, NAME_ROOM = 84.0, 40.0, 26.0
SHORT_NAME, LONGEST = 14, 90  # characters
WIDE_CHARACTER = 7.1  # pixels: names are mostly of wide letters
PROBED = 128  # sequence length for which costs of probed models are shown


@dataclass(frozen=True)
class Score:
    """Accuracy with its 95 % interval (None for one seed) and number of seeds; also by length factor."""

    accuracy: float
    interval: tuple[float, float] | None
    seeds: int
    lengths: Mapping[str, float]
    of: str = "seeds"

    @property
    def text(self) -> str:
        ends = " ({:.2f}–{:.2f})".format(*self.interval) if self.interval else ""
        return f"{self.accuracy:.3f}{ends}"


Scores = dict[str, dict[str, Score]]  # architecture → task → score


def score_of(seeds: Sequence[Mapping[str, Any]], items: float) -> Score | None:
    values = [value for seed in seeds if (value := number(seed.get("accuracy"))) is not None]
    if not values:
        return None
    mean = sum(values) / len(values)
    ends = estimate(values, [Share(mean, items)]).interval  # as in the verdict of `plait probe`
    interval = None if ends is None else (max(0.0, ends[0]), min(1.0, ends[1]))
    lengths: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        for factor, value in mapping(seed.get("lengths")).items():
            if (accuracy := number(value)) is not None:
                lengths[factor].append(accuracy)
    return Score(mean, interval, len(values), {f: sum(some) / len(some) for f, some in lengths.items()})


def scores_of(records: Sequence[Record]) -> tuple[Scores, int]:
    """Comparable scores: for each task, those in the setting and training with the most architectures. Also returns the
    number of other records, which are left out."""
    settings: dict[str, dict[str, dict[str, list[Record]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for record in records:
        same = json.dumps([record.config.get(name) for name in ("task", "training", "precision")], sort_keys=True)
        settings[task_of(record)][same][pattern_of(spec_of(record))].append(record)
    scores: Scores = defaultdict(dict)
    used = 0
    for task, by_setting in settings.items():
        largest = max(by_setting.values(), key=len)
        for name, mine in largest.items():
            used += len(mine)
            seeds = [mapping(seed) for record in mine for seed in _seeds(record)]
            tested = number(mapping(mine[0].config.get("training")).get("evaluation")) or 1.0
            if (score := score_of(seeds, tested * len(seeds))) is not None:
                scores[name][task] = score
    return dict(scores), len(records) - used


def _seeds(record: Record) -> Sequence[Any]:
    """The scores of every seed; records of earlier versions have a single accuracy."""
    return sequence(record.result.get("seeds")) or [
        {"accuracy": record.result.get("accuracy", record.result.get("test_accuracy"))}
    ]


def probes_section(records: Sequence[Record]) -> list[Child]:
    """Many trainings: a heat map, curves over length, and a table of the numbers."""
    scores, left = scores_of(records)
    ordered = sorted(scores, key=lambda name: -_mean(scores[name]))[:MOST_ROWS]
    if not ordered:
        return [note("These records contain no accuracy.")]
    tasks = sorted({task for name in ordered for task in scores[name]})
    words = "Test accuracy, the mean over seeds; below it Student's 95 % interval, if there are several seeds."
    if left:
        words += (
            f" {left:,} trainings with other settings of the same tasks are left out because they are not comparable."
        )
    rows: list[list[Child]] = [
        [code(name), *(_cell(scores[name].get(task)) for task in tasks), f"{_mean(scores[name]):.3f}"]
        for name in ordered
    ]
    columns = ["architecture", *(f">{task}" for task in tasks), ">mean"]
    return [
        note(words),
        card(tag("div", heat_grid({name: scores[name] for name in ordered}, tasks), class_="scroll wide")),
        *length_parts({name: scores[name] for name in ordered}),
        table(columns, rows, name="probes"),
    ]


def _cell(score: Score | None) -> str:
    return "" if score is None else f"{score.accuracy:.3f} ({score.seeds})"


def _mean(scores: Mapping[str, Score]) -> float:
    return sum(score.accuracy for score in scores.values()) / max(1, len(scores))


def heat_grid(scores: Mapping[str, Mapping[str, Score]], tasks: Sequence[str]) -> Element:
    """A heat map in the page's colours: architectures are rows, tasks columns, darker is better. Short names are next
    to their row, long ones above it, so that the cells fit a phone."""
    names = list(scores)
    longest = max(map(len, names), default=0)
    above = longest > SHORT_NAME
    left, step = (2.0, ROW + NAME_ROOM) if above else (20 + WIDE_CHARACTER * longest, ROW)
    wide = max(CELL, 16 + CHARACTER * max((min(len(task), 20) for task in tasks), default=0))
    across = max(wide * len(tasks), WIDE_CHARACTER * min(longest, LONGEST) if above else 0.0)
    drawing = Drawing(left + across + 8, 30 + step * len(names) + 6, "Accuracy by task", background="")
    for at, task in enumerate(tasks):
        drawing.text(left + wide * (at + 0.5), 20, cut(task, 20), anchor="middle", colour=PAGE.ink)
    for row, name in enumerate(names):
        y = 30 + step * row + (NAME_ROOM if above else 0)
        place, anchor = ((left, y - 6), "start") if above else ((left - 10, y + ROW / 2 + 4), "end")
        drawing.text(*place, cut(name, LONGEST), anchor=anchor, colour=PAGE.ink)
        for at, task in enumerate(tasks):
            _draw_cell(drawing, name, task, scores[name].get(task), left + wide * at, y, wide)
    chart = drawing.inline("chart")
    chart.set("width", f"{drawing.width:.0f}")
    return chart


def _draw_cell(drawing: Drawing, name: str, task: str, score: Score | None, x: float, y: float, wide: float) -> None:
    hint = f"{name}\n{task}: {'not probed' if score is None else f'{score.text}, {score.seeds} {score.of}'}"
    fill = "var(--track)" if score is None else shade(score.accuracy)
    drawing.rect(x + 1, y + 1, wide - 2, ROW - 2, fill, hint=hint, radius=4)
    if score is None:
        return
    ink = "#ffffff" if score.accuracy > 0.55 else "#1d2430"
    middle = x + wide / 2
    drawing.text(middle, y + (18 if score.interval else 25), f"{score.accuracy:.2f}", anchor="middle", colour=ink)
    if score.interval:
        drawing.text(middle, y + 32, "{:.2f}–{:.2f}".format(*score.interval), anchor="middle", size=11, colour=ink)


def length_parts(scores: Mapping[str, Mapping[str, Score]]) -> list[Child]:
    """Accuracy over the factor by which sequences are longer than in training, one chart per task."""
    tasks = sorted({task for by_task in scores.values() for task, score in by_task.items() if score.lengths})
    order = {name: place for place, name in enumerate(list(scores)[:MOST_LINES])}
    cards = []
    for task in tasks:
        lines = [
            Series.of(name, length_points(score), number=order[name], marks=True, key=name)
            for name, by_task in scores.items()
            if name in order and (score := by_task.get(task)) is not None and score.lengths
        ]
        axes = Axis("times as long as trained", log=True), Axis("test accuracy (↑ better)")
        panel = Panel(lines, *axes, f"{task}: accuracy over the length", unit="times")
        cards.append(card(panel_plot(panel), title=task))
    if not cards:
        return []
    entries = [(swatch(place), name) for name, place in order.items()]
    return [tag("h3", "On longer sequences"), grid(*cards), legend(entries)]


def length_points(score: Score) -> list[tuple[float, float]]:
    return [(1.0, score.accuracy), *sorted((float(factor), value) for factor, value in score.lengths.items())]


# ---- one training


def probe_view(record: Record, context: Context) -> View:
    """One architecture on one task: the learning curve of every replica of the grid, and the scores of every seed."""
    spec, task, result = spec_of(record), task_of(record), record.result
    seeds = [mapping(seed) for seed in _seeds(record)]
    training = mapping(record.config.get("training"))
    score = score_of(seeds, (number(training.get("evaluation")) or 1.0) * len(seeds))
    replicas = [mapping(replica) for replica in sequence(result.get("replicas"))]
    chosen = {seed.get("chosen") for seed in seeds}
    lines = [
        Series.of(_replica_name(replica, n, n in chosen), points, number=n % MOST_LINES,
                  marks=n in chosen or len(points) < FEW)
        for n, replica in enumerate(replicas)
        if (points := curve_points(replica.get("validation")))
    ]  # fmt: skip
    ceiling = number(seeds[0].get("ceiling")) if seeds else None
    ends = score.interval if score else None
    sure = "95 % (Student's t over seeds): {:.2f} to {:.2f}".format(*ends) if ends else "one seed: no interval"
    parts: list[Child] = [
        tiles([
            ("test accuracy", f"{score.accuracy:.3f}" if score else "?", sure),
            ("best possible", number_text(ceiling), "accuracy of a perfect model"),
            ("seeds", str(len(seeds)), f"{len(replicas)} trainings in total"),
            ("time", time_text(record.provenance.get("seconds")), "of all its trainings"),
        ]),
    ]  # fmt: skip
    if lines:
        axes = Axis("optimizer steps", low=0.0), Axis("validation accuracy (↑ better)")
        panel = Panel(lines, *axes, "Validation accuracy", unit="step")
        words = "Validation accuracy of every training; those with marks were the best of their seed and were tested."
        drawn = card(panel_plot(panel)), line_legend(panel)
        parts.append(section("Validation accuracy during training", note(words), *drawn))
    if score is not None and score.lengths:
        parts += [section("On longer sequences", *length_parts({pattern_of(spec): {task: score}})[1:])]
    rows: list[list[Child]] = [
        [
            str(replica.get("seed")),
            number_text(replica.get("lr")),
            number_text(replica.get("weight_decay")),
            str(replica.get("steps")),
            str(replica.get("stopped") or ""),
            number_text(sequence(replica.get("test"))[0] if sequence(replica.get("test")) else None),
        ]
        for replica in replicas
    ]
    columns = (">seed", ">rate", ">weight decay", ">steps", "stopped", ">test accuracy")
    if rows:
        parts.append(section("Trainings", table(columns, rows, name="replicas")))
    flat_rows = [
        {
            "seed": replica.get("seed"),
            "lr": replica.get("lr"),
            "weight_decay": replica.get("weight_decay"),
            "step": x,
            "accuracy": y,
        }
        for replica in replicas
        for x, y in curve_points(replica.get("validation"))
    ]
    figures = {"accuracy": lambda: _curves_figure(lines, task)} if lines else {}
    title = f"{pattern_of(spec)} on {task}"
    return View(title, _task_words(record), parts, figures, flat_rows, spec=spec, seq=PROBED)


def _replica_name(replica: Mapping[str, Any], place: int, tested: bool) -> str:
    rate, decay = number_text(replica.get("lr"), 2), number_text(replica.get("weight_decay"), 2)
    return f"{place}: seed {replica.get('seed')}, rate {rate}, decay {decay}{', tested' if tested else ''}"


def _task_words(record: Record) -> str:
    task, training = mapping(record.config.get("task")), mapping(record.config.get("training"))
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in task.items() if isinstance(value, (int, float))
    )
    return f"{settings}; {training.get('steps', '?')} steps of {training.get('batch', '?')} sequences.".lstrip("; ")


def _curves_figure(lines: Sequence[Series], task: str) -> str:
    axes = Axis("optimizer steps"), Axis("validation accuracy (↑ better)", low=0.0, high=1.0)
    return figure([Panel(lines, *axes)], title=task)


def verdict_view(record: Record, context: Context) -> View:
    result = record.result
    rows = [mapping(row) for row in sequence(result["architectures"])]
    tasks = list(dict.fromkeys(task for row in rows for task in mapping(row.get("tasks"))))
    scores: Scores = {
        str(row["name"]): {
            task: Score(
                float(estimate["accuracy"]),
                (float(estimate["interval"][0]), float(estimate["interval"][1])) if estimate.get("interval") else None,
                int(estimate.get("seeds") or 1),
                {str(f): float(v) for f, v in mapping(estimate.get("lengths")).items()},
            )
            for task, estimate in mapping(row["tasks"]).items()
        }
        for row in rows
    }
    ran, cost = mapping(result.get("ran")), mapping(result.get("cost"))
    listed: list[list[Child]] = [
        [
            code(str(row["spec"]), str(row["name"])),
            f"{float(row['mean']['accuracy']):.3f}",
            _ends(row["mean"].get("interval")),
            f"{int(row['params']):,}",
            f"{int(row['fixed_state']):,}" + (" and growing" if row.get("state_grows") else ""),
        ]
        for row in rows
    ]
    columns = ("architecture", ">mean accuracy", ">95 % interval", ">parameters", ">state per sequence, numbers")
    parts: list[Child] = [
        tiles([
            ("best", str(rows[0]["name"]), f"mean accuracy {float(rows[0]['mean']['accuracy']):.3f}"),
            ("tasks", str(len(tasks)), shorten(", ".join(tasks), 80, placeholder=" …")),
            ("trainings", f"{int(cost.get('runs') or 0):,}", f"{int(cost.get('steps') or 0):,} steps"),
            ("steps", percent(float(ran.get('steps_share') or 1)), "of the protocol's"),
        ]),
        section("What they can do",
                note("Test accuracy per task, the mean over seeds: 1 is perfect; below it Student's 95 % interval."),
                card(tag("div", heat_grid(scores, tasks), class_="scroll wide")),
                table(columns, listed, chosen=0, keys=[str(row["name"]) for row in rows], name="probe"),
                *(note(sentence(str(words))) for words in sequence(result.get("notes")))),
        *([section("Longer sequences", *longer)] if (longer := length_parts(scores)[1:]) else []),
    ]  # fmt: skip
    values = np.array([[getattr(scores[name].get(task), "accuracy", math.nan) for task in tasks] for name in scores])
    sheets = [
        ModelSheet(
            str(row["name"]),
            str(row["name"]),
            str(row["spec"]),
            [("mean accuracy", str(row["mean"]["accuracy"])[:6])],
            PROBED,
        )
        for row in rows
    ]
    flat_rows = [
        {"architecture": name, "task": task, "accuracy": score.accuracy, "low": (score.interval or (None, None))[0],
         "high": (score.interval or (None, None))[1], "seeds": score.seeds}
        for name, by_task in scores.items()
        for task, score in by_task.items()
    ]  # fmt: skip
    drawn = {
        "heat-map": lambda: heat_map(
            values, title="Test accuracy (↑ better)", x_label="task", y_label="", x_ticks=tasks, y_ticks=list(scores)
        )
    }
    lead = sentence(f"{result.get('protocol')} protocol, on {result.get('device')}")
    title, _, rest = str(result["verdict"]).partition(". ")
    return View(title, f"{rest} {lead}".strip(), parts, drawn, flat_rows, sheets)


def _ends(interval: object) -> str:
    ends = sequence(interval)
    return f"{float(ends[0]):.3f} to {float(ends[1]):.3f}" if len(ends) == 2 else ""
