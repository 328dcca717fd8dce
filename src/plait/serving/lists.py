"""Parts of pages: lists of records (lines, headings that sort them, filters by kind, pages), and running work:
commands, from the progress they publish in the store, and trainings, from their folders."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from plait.core.units import duration, percent, short
from plait.records.jobs import Job
from plait.records.record import Record
from plait.reporting.page import Child, card, code, link, note, table, tag, tiles
from plait.reporting.summaries import number, pattern_of, started_text, summary, time_text
from plait.reporting.view_model import curve_points, loss_plot
from plait.serving.record_index import Line, Matches
from plait.serving.run_folders import RunState, run_curves

PAGE = 50  # records per page of a list
LONGEST = 160  # characters of a result
#: Sort keys of a list and their column headings.
COLUMNS = (("name", "what"), ("kind", "kind"), ("value", "result"), ("source", "data or task"),
           ("started", "started, UTC"), ("seconds", "took"))  # fmt: skip


def record_address(key: str) -> str:
    return f"/record/{quote(key, safe='')}"


def record_line(record: Record) -> Line:
    fields = summary(record)
    return Line(record.key, record.kind, fields.name, fields.spec, fields.source, fields.value, fields.unit,
                fields.words, started_text(record), number(record.provenance.get("seconds")))  # fmt: skip


def _cells(line: Line) -> list[Child]:
    return [
        link(record_address(line.key), line.name[:160]),
        tag("span", line.kind, class_="badge"),
        line.words if len(line.words) <= LONGEST else f"{line.words[:LONGEST].rpartition(' ')[0]} …",
        line.source[:60],
        line.started[5:16].replace("T", " "),
        time_text(line.seconds),
    ]


def short_list(lines: Sequence[Line]) -> Element:
    columns = [f">{words}" if name == "seconds" else words for name, words in COLUMNS]
    listing = table(columns, [_cells(line) for line in lines], fixed=True)
    for row in listing.iter("tr"):
        row[0].set("class", "left what")
    listing.set("class", "fixed scroll lines")
    return listing


def records_table(lines: Sequence[Line], kept: Mapping[str, str], sort: str, up: bool) -> Element:
    """Headings are links that sort in the index: sorting in the browser would only sort the page shown."""
    heads = [tag("th", "", scope="col", class_="left")]
    for name, words in COLUMNS:
        here = sort == name
        again = {**kept, "sort": name, **({"up": "1"} if (here and not up) or (not here and name == "name") else {})}
        side = "right" if name == "seconds" else "left"
        sorted_ = {"aria_sort": "ascending" if up else "descending"} if here else {}
        heads.append(tag("th", link(f"/records?{urlencode(again)}", words), scope="col", class_=side, **sorted_))
    body = []
    for line in lines:
        pick = tag("input", type="checkbox", name="key", value=line.key, aria_label=f"Select {line.key[:8]}")
        cells = [tag("td", pick, class_="left pick")]
        for (name, words), cell in zip(COLUMNS, _cells(line), strict=True):
            side = "right" if name == "seconds" else "left what" if name == "name" else "left"
            cells.append(tag("td", cell, class_=side, **({} if name == "name" else {"data_label": words})))
        body.append(tag("tr", *cells, class_="plain"))
    rows = tag("tbody", *body)
    return tag("div", tag("table", tag("thead", tag("tr", *heads)), rows), class_="fixed scroll lines")


def kind_chips(matches: Matches, kept: Mapping[str, str]) -> Element:
    rest = {name: value for name, value in kept.items() if name != "kind"}
    now = kept.get("kind", "")
    total = sum(matches.kinds.values())
    chips = [("", "all", total), *((kind, kind, count) for kind, count in matches.kinds.items())]
    links = [
        tag("a", f"{words} {count:,}", href=f"/records?{urlencode({**rest, **({'kind': kind} if kind else {})})}",
            class_="chip", **({"aria_current": "true"} if kind == now else {}))
        for kind, words, count in chips
    ]  # fmt: skip
    return tag("div", *links, class_="chips")


def page_links(matches: Matches, kept: Mapping[str, str], sort: str, up: bool, page: int) -> Child:
    last = max(1, -(-matches.total // PAGE))
    if last == 1:
        return ""
    same = {**kept, **({"sort": sort} if sort != "newest" else {}), **({"up": "1"} if up else {})}

    def to(number: int, words: str) -> Child:
        return link(f"/records?{urlencode({**same, 'page': number})}", words)

    parts: list[Child] = []
    if page > 1:
        parts += [to(1, "first"), to(page - 1, "← newer" if sort == "newest" and not up else "← before")]
    parts.append(tag("span", f"page {page:,} of {last:,}"))
    if page < last:
        parts += [to(page + 1, "older →" if sort == "newest" and not up else "next →"), to(last, "last")]
    return tag("nav", *parts, class_="pages", aria_label="Pages")


def filter_text(kind: str, words: str) -> str:
    parts = [f"of kind {kind}" if kind else "", f"with “{words}”" if words else ""]
    words = " ".join(part for part in parts if part)
    return f"Records {words}." if words else "Everything in the store."


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
