"""Trainings by their folders, as parts of pages that follow along."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element

from plait.core.units import duration, short
from plait.reporting.page import Child, card, code, link, note, table, tag, tiles
from plait.reporting.summaries import pattern_of
from plait.reporting.view_train import curve_points, loss_plot
from plait.serving.run_folders import RunState, run_curves


def run_address(name: str) -> str:
    return f"/run/{quote(name, safe='')}"


def runs_table(states: Sequence[RunState]) -> Child:
    rows: list[list[Child]] = [
        [
            _linked_spec(state),
            tag("span", state.words, class_=f"state {state.words}"),
            f"{state.step:,} of {state.steps:,}" if state.steps else f"{state.step:,}",
            "" if state.loss is None else f"{state.loss:.4f}",
            _ago(state.seen),
        ]
        for state in states
    ]
    columns = ("training", "", ">step", ">loss", ">last word")
    return table(columns, rows, name="runs") if rows else note("There are none.")


def run_parts(root: Path, state: RunState) -> list[Child]:
    """How far a training is, and its losses so far."""
    training, validation = run_curves(root, state.name)
    left = state.seconds_left
    words = [
        ("state", state.words, _ago(state.seen) if state.running else f"last word {_ago(state.seen)}"),
        ("step", f"{state.step:,}", f"of {state.steps:,}" if state.steps else ""),
        ("loss", "" if state.loss is None else f"{state.loss:.4f}", "training, nats per token"),
        ("held-out loss", "" if state.validation is None else f"{state.validation:.4f}", "nats per token"),
        ("speed", "" if state.tokens_per_second is None else short(state.tokens_per_second), "tokens per second"),
        ("left", "" if left is None else duration(left), "at this speed"),
    ]
    shown = tiles([row for row in words if row[1]])
    ended = {} if state.running else {"data_ended": "true"}
    top = tag("div", _bar(state), shown, data_part="numbers", **ended)
    return [top, loss_plot(curve_points(training), curve_points(validation), "steps")]


def _ago(when: float) -> str:
    passed = max(0.0, time.time() - when)
    if passed < 90:
        return f"{passed:.0f} s ago"
    return f"{passed / 60:.0f} min ago" if passed < 5400 else f"{passed / 3600:.0f} h ago" if passed < 172800 else (
        f"{passed / 86400:.0f} days ago"
    )  # fmt: skip


def _bar(state: RunState) -> Element:
    share = state.share
    if share is None:
        return tag("progress", aria_label="Progress")
    return tag("progress", value=f"{share:.4f}", max="1", aria_label=f"Progress, {share:.0%}")


def _linked_spec(state: RunState) -> Element:
    made = code(state.spec)
    made.insert(0, link(run_address(state.name), state.name))
    return made


def progress_card(state: RunState) -> Element:
    left = state.seconds_left
    parts = [
        f"step {state.step:,}" + (f" of {state.steps:,}" if state.steps else ""),
        "" if state.loss is None else f"loss {state.loss:.3f}",
        "" if state.tokens_per_second is None else f"{short(state.tokens_per_second)} tokens per second",
        "" if left is None else f"{duration(left)} left",
    ]
    name = link(run_address(state.name), pattern_of(state.spec)[:120])
    return card(tag("h3", name), _bar(state), note(" · ".join(part for part in parts if part)))
