"""The page of a design: what the candidates can do, by the probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

from plait.designing.page_order import colours, keys
from plait.reporting import charts
from plait.reporting.page import Child, card, code, folded, grid, note, section, table


def probe_section(d: dict[str, Any]) -> Element:
    found, names, key_of = d["probe"], colours(d), keys(d)

    def panel(title: str, task: str | None) -> Element:
        rows = []
        for row in found["architectures"]:
            score = row["tasks"][task] if task else row["mean"]
            rows.append(
                charts.Bar(
                    row["name"],
                    score["accuracy"],
                    tuple(score["interval"]) if score["interval"] else None,
                    names[row["name"]],
                    hint=f"{row['name']}\n{title}: {score_text(score)}\n{row['spec']}",
                    chosen=row["name"] == d["pick"]["pattern"],
                    key=key_of[row["name"]],
                )
            )
        return card(charts.bars(rows, title=f"{title}: accuracy of every pattern"), title=title)

    few, many = min(found["seeds"].values()), max(found["seeds"].values())
    seeds = str(few) if few == many else f"{few} to {many}"
    words = (
        f"Each pattern at the probe's size, with the same number of parameters per layer, trained on "
        f"{len(found['tasks'])} "
        f"synthetic tasks with {seeds} seed{'s' * (many > 1)} each: {found['runs']} trainings, {found['steps']:,} "
        "steps."
    )
    words += " Whiskers are 95 % intervals of test accuracy." if many > 1 else " One seed: no intervals, no verdict."
    if found["scale"] < 1:
        words += f" To fit the time they were cut to {found['scale']:.0%} of their steps: a longer --time tells more."
    notes = [note(f"{row['name']}: {row['note']}.") for row in found["architectures"] if row["note"]]
    panels = [panel("mean", None), *(panel(task, task) for task in found["tasks"])]
    words += " This says what a pattern can do, not what its loss will be: it decided nothing."
    return section("What they can do", note(words), grid(*panels), *notes, _differences(d))


def _differences(d: dict[str, Any]) -> Element:
    words = {1: "the pick is better", 0: "not distinguishable", -1: "the pick is worse"}
    others = [row for row in d["probe"]["architectures"] if row["name"] != d["pick"]["pattern"]]
    rows: list[list[Child]] = [
        [
            code(row["spec"], row["name"]),
            f"{row['pick_ahead_by']['value']:+.3f}",
            _ends(row["pick_ahead_by"]["interval"]),
            words[row["pick_ahead_by"]["sign"]],
        ]
        for row in others
    ]
    columns = ("against, as probed", ">pick ahead by", ">95 % interval", "verdict")
    made = table(columns, rows, keys=[keys(d)[row["name"]] for row in others], name="probe")
    return folded("Paired differences of the mean, and the architectures as probed", made)


def _ends(interval: Sequence[float] | None) -> str:
    return "{:+.3f} to {:+.3f}".format(*interval) if interval else ""


def score_text(found: dict[str, Any]) -> str:
    ends = " ({:.2f}–{:.2f})".format(*found["interval"]) if found["interval"] else ""
    return f"{found['accuracy']:.2f}{ends}"
