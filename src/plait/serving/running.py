"""Page parts for running work: commands, from the progress they publish in the store, and trainings, from their
folders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element

from plait.core.units import duration, percent, short
from plait.records.jobs import Job
from plait.reporting.page import Child, card, code, link, note, table, tag, tiles
from plait.reporting.summaries import pattern_of
from plait.reporting.view_train import curve_points, loss_plot
from plait.serving.run_folders import RunState, run_curves


def run_address(name: str) -> str:
    return f"/run/{quote(name, safe='')}"


# ---- commands


def job_card(job: Job) -> Element:
    """The progress of a command, its running time, and its user."""
    state = job.state
    stage = ", ".join(part for part in (state.stage, state.detail) if part)
    if job.running:
        left = "" if state.seconds_left is None else f"about {duration(state.seconds_left)} left"
        parts = [stage, f"running for {duration(state.seconds + job.age)}", left, _process(job)]
    else:
        stopped = f"stopped {_ago(job.age)}, after {duration(state.seconds)}; the same command resumes"
        parts = [stage, stopped, _process(job)]
    words = "running" if job.running else "stopped"
    head = tag("h3", f"{state.verb}: {state.title[:120]} ", tag("span", words, class_=f"state {words}"))
    return card(head, _bar(state.share), note(" · ".join(part for part in parts if part)))


def _process(job: Job) -> str:
    return f"process {job.state.process} on {'this machine' if job.local else job.state.host}"


# ---- trainings


def training_card(state: RunState) -> Element:
    left = state.seconds_left
    parts = [
        f"step {state.step:,}" + (f" of {state.steps:,}" if state.steps else ""),
        "" if state.loss is None else f"loss {state.loss:.3f} nats per token",
        "" if state.tokens_per_second is None else f"{short(state.tokens_per_second)} tokens per second",
        "" if left is None else f"about {duration(left)} left",
    ]
    name = link(run_address(state.name), pattern_of(state.spec)[:120])
    return card(tag("h3", "train: ", name), _bar(state.share), note(" · ".join(part for part in parts if part)))


def trainings_table(states: Sequence[RunState]) -> Child:
    rows: list[list[Child]] = [
        [
            code(state.spec, link(run_address(state.name), state.name)),
            tag("span", state.words, class_=f"state {state.words}"),
            f"{state.step:,} of {state.steps:,}" if state.steps else f"{state.step:,}",
            "" if state.loss is None else f"{state.loss:.4f}",
            "" if state.validation is None else f"{state.validation:.4f}",
            _ago(time.time() - state.seen),
        ]
        for state in states
    ]
    columns = ("training", "state", ">step", ">training loss, nats per token",
               ">validation loss", ">last update")  # fmt: skip
    return table(columns, rows, name="runs") if rows else note("No training has a folder here yet: see `plait train`.")


def training_parts(root: Path, state: RunState) -> list[Child]:
    """The progress of a training, and its losses so far."""
    training, validation = run_curves(root, state.name)
    left = state.seconds_left
    numbers = [
        ("state", state.words, f"last update {_ago(time.time() - state.seen)}"),
        ("step", f"{state.step:,}", f"of {state.steps:,}" if state.steps else ""),
        ("loss", "" if state.loss is None else f"{state.loss:.4f}", "training, nats per token"),
        ("validation loss", "" if state.validation is None else f"{state.validation:.4f}", "on a part of its text"),
        ("speed", "" if state.tokens_per_second is None else short(state.tokens_per_second), "tokens per second"),
        ("left", "" if left is None else duration(left), "at this speed"),
    ]
    shown = tiles([row for row in numbers if row[1]])
    ended = {} if state.running else {"data_ended": "true"}
    top = tag("div", _bar(state.share), shown, data_part="numbers", **ended)
    return [top, loss_plot(curve_points(training), curve_points(validation), "steps")]


def _bar(share: float | None) -> Element:
    if share is None:
        return tag("progress", aria_label="Progress")
    return tag("progress", value=f"{share:.4f}", max="1", aria_label=f"Progress, {percent(share)}")


def _ago(seconds: float) -> str:
    passed = max(0.0, seconds)
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if passed < limit:
            return f"{passed / unit:.0f} {name} ago"
    return f"{passed / 86_400:.0f} days ago"
