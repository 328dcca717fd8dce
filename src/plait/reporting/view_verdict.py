"""The view of a probe's verdict, the document of `plait probe --json`: what each architecture can do, and the words."""

from __future__ import annotations

import math

import numpy as np

from plait.core.units import percent
from plait.records.record import Record
from plait.reporting.charts import heat_map
from plait.reporting.models import ModelSheet
from plait.reporting.page import Child, card, code, note, section, sentence, table, tag, tiles
from plait.reporting.summaries import mapping, sequence
from plait.reporting.view_probe import PROBED, Score, Scores, heat_grid, length_parts
from plait.reporting.views import Context, View


def verdict_view(record: Record, context: Context) -> View:
    found = record.result
    rows = [mapping(row) for row in sequence(found["architectures"])]
    tasks = list(dict.fromkeys(task for row in rows for task in mapping(row.get("tasks"))))
    scores: Scores = {
        str(row["name"]): {
            task: Score(
                float(one["accuracy"]),
                (float(one["interval"][0]), float(one["interval"][1])) if one.get("interval") else None,
                int(one.get("seeds") or 1),
                {str(f): float(v) for f, v in mapping(one.get("lengths")).items()},
            )
            for task, one in mapping(row["tasks"]).items()
        }
        for row in rows
    }
    ran, cost = mapping(found.get("ran")), mapping(found.get("cost"))
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
            ("tasks", str(len(tasks)), ", ".join(tasks)[:80]),
            ("trainings", f"{int(cost.get('runs') or 0):,}", f"{int(cost.get('steps') or 0):,} steps"),
            ("steps", percent(float(ran.get('steps_share') or 1)), "of the protocol's"),
        ]),
        section("What they can do",
                note("Test accuracy per task, the mean over seeds: 1 is perfect; below it the 95 % interval if known."),
                card(tag("div", heat_grid(scores, tasks), class_="scroll wide")),
                table(columns, listed, chosen=0, keys=[str(row["name"]) for row in rows], name="probe"),
                *(note(sentence(str(words))) for words in sequence(found.get("notes")))),
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
    lead = sentence(f"{found.get('protocol')} protocol, on {found.get('device')}")
    return View(str(found["verdict"]), lead, parts, drawn, flat_rows, sheets)


def _ends(interval: object) -> str:
    ends = sequence(interval)
    return f"{float(ends[0]):.3f} to {float(ends[1]):.3f}" if len(ends) == 2 else ""
