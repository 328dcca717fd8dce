"""The dashboard's pages. What a record looks like is said once, in `plait.reporting`: a report shows the same."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from sqlalchemy import select

from plait.core.errors import UserError
from plait.core.units import duration, short
from plait.records.database import claims
from plait.records.record import Record
from plait.records.store import Store
from plait.reporting.models import linked_sheets
from plait.reporting.page import (
    STYLE,
    Child,
    card,
    code,
    document,
    link,
    note,
    script,
    section,
    table,
    tag,
    text_of,
    tiles,
)
from plait.reporting.records_page import kind_section
from plait.reporting.side_by_side import side_by_side
from plait.reporting.summaries import pattern_of, started_text, summary, time_text
from plait.reporting.view_train import curve_points, loss_plot
from plait.reporting.views import Context, View, architecture_parts, heading, view_of, whole_view
from plait.serving.record_index import Found, Line, RecordIndex
from plait.serving.run_folders import RunState, read_run, run_curves, run_states

PAGE = 50  # records of a page of a list
RECENT = 600.0  # seconds
NEWEST = 12  # records of the overview
GALLERY = 300  # records of one kind that are drawn together
MOST_BESIDE = 8
KEPT = 32  # views
KEY_DIGITS = 32
COLUMNS = (("name", "what"), ("kind", "kind"), ("value", "found"), ("source", "on"), ("started", "started"),
           ("seconds", "computed for"))  # fmt: skip


@cache
def asset(name: str) -> tuple[str, str]:
    """Text and a short hash of the style or the script; the hash is in the address, so that a browser may keep it."""
    text = STYLE if name == "page.css" else script()
    return text, hashlib.sha256(text.encode()).hexdigest()[:12]


def record_address(key: str) -> str:
    return f"/record/{quote(key, safe='')}"


def run_address(name: str) -> str:
    return f"/run/{quote(name, safe='')}"


class Pages:
    def __init__(self, store: Store, runs: Path, index: RecordIndex) -> None:
        self.store, self.runs, self.index = store, runs, index
        self.context = Context(self._known, record_address)
        self._views: dict[str, tuple[Record, View]] = {}
        self._lock = threading.Lock()

    def _known(self, key: str) -> Record | None:
        return self.store.get(key)

    # ---- what surrounds a page

    def whole(self, title: str, *body: Child, here: str = "", words: str = "", after: Sequence[Child] = ()) -> str:
        links = [("/", "Overview"), ("/records", "Records"), ("/runs", "Runs")]
        anchors = [
            tag("a", name, href=address, **({"aria-current": "page"} if address == here else {}))
            for address, name in links
        ]
        field = tag(
            "input", type="search", name="q", value=words, placeholder="Search records", aria_label="Search records"
        )
        form = tag("form", field, action="/records", method="get", role="search")
        nav = tag("nav", tag("a", "plait", href="/", class_="brand"), *anchors, form, aria_label="Main")
        foot = tag("footer", tag("p", f"{self.store.name} · read only", class_="note"))
        head = [
            tag("link", rel="stylesheet", href=f"/static/page.css?{asset('page.css')[1]}"),
            tag("link", rel="icon", href="data:,"),
        ]
        skip = tag("a", "To the content", href="#content", class_="skip")
        main = tag("main", *body, foot, id="content")
        run = tag("script", src=f"/static/page.js?{asset('page.js')[1]}")
        return document(f"{title} · plait", head, [skip, nav, main, *after, run])

    # ---- overview

    def overview(self) -> str:
        kinds = self.store.kinds()
        total = sum(kinds.values())
        cards = [
            tag(
                "a", tag("b", f"{count:,}"), tag("span", kind), href=f"/kind/{quote(kind, safe='')}", class_="card tile"
            )
            for kind, count in kinds.items()
        ]
        intro = "What the store holds, and what goes on now." if total else "The store is empty so far."
        return self.whole(
            "Overview",
            tag("header", tag("h1", self.store.name), tag("p", intro, class_="lead")),
            self._live("/live/overview", *self.overview_parts()),
            section("By kind", tag("div", *cards, class_="tiles")) if cards else "",
            here="/",
        )

    def overview_parts(self) -> list[Child]:
        running = [state for state in run_states(self.runs) if state.running]
        at_work = self._claims()
        parts: list[Child] = []
        if running:
            parts.append(section("Running now", tag("div", *map(_progress, running), class_="grid")))
        if at_work:
            owners = {owner for _, owner in at_work}
            words = f"{_count(len(at_work), 'result')} being computed by {_count(len(owners), 'process', 'processes')}."
            parts.append(note(words))
        if not running and not at_work:
            parts.append(note("Nothing is running here now."))
        if ended := self.index.finished_since(time.time() - RECENT):
            told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(ended.items()))
            parts.append(note(f"Ended in the last ten minutes: {told}."))
        newest = self.store.find(limit=NEWEST)
        if newest:
            rows = [_record_line(record) for record in newest]
            parts.append(section("Latest results", _list(rows)))
        return parts

    def _claims(self) -> list[tuple[str, str]]:
        """(key, owner) of what is being computed."""
        asked = select(claims.c.key, claims.c.owner).where(claims.c.expires > time.time()).limit(1000)
        return [(row.key, row.owner) for row in self.store.raw_rows(asked)]

    def _live(self, address: str, *parts: Child) -> Element:
        return tag("div", *parts, data_live=address)

    # ---- lists

    def records(self, asked: Mapping[str, str]) -> str:
        """`asked`: kind, q, sort, up, page."""
        kind, words = asked.get("kind", "")[:200], asked.get("q", "")[:400]
        sort, up = asked.get("sort", "newest"), asked.get("up") == "1"
        page = int(asked["page"]) if asked.get("page", "").isdecimal() and len(asked["page"]) < 8 else 1
        page = max(1, page)
        found = self.index.find(kind, words, sort, not up, (page - 1) * PAGE, PAGE)
        kept = {name: value for name, value in (("kind", kind), ("q", words)) if value}
        title = f"{found.total:,} record{'s' * (found.total != 1)}"
        reading = f" {found.read:,} of {found.there:,} have been read so far." if found.read < found.there else ""
        form = tag(
            "form",
            _records_table(found.lines, kept, sort, up),
            tag("p", tag("button", "Compare the selected", type="submit"), class_="actions") if found.lines else "",
            action="/beside", method="get",
        )  # fmt: skip
        return self.whole(
            title,
            tag("header", tag("h1", title), tag("p", _told(kind, words) + reading, class_="lead")),
            _kinds(found, kept),
            form if found.lines else note("Nothing fits. A search finds records that hold all its words."),
            _pages(found, kept, sort, up, page),
            here="/records", words=words,
        )  # fmt: skip

    def kind(self, kind: str) -> str:
        found = self.store.find(kind, limit=GALLERY)
        if not found:
            raise UserError(f"no records of kind '{kind[:80]}'.")
        total = self.store.kinds().get(kind, len(found))
        lead = f"The newest {len(found):,} of {total:,}." if len(found) < total else f"{total:,} in all."
        every = f"/records?{urlencode({'kind': kind})}"
        return self.whole(
            kind,
            tag("header", tag("h1", f"Records of kind {kind}"),
                tag("p", f"{lead} ", link(every, "As a list"), class_="lead")),
            kind_section(kind, found, self.context),
        )  # fmt: skip

    # ---- records

    def get(self, start: str) -> Record | None:
        """By the key, or the beginning of one."""
        if not start or len(start) > KEY_DIGITS or not all(c in "0123456789abcdef" for c in start):
            return None
        if len(start) < KEY_DIGITS:
            try:
                start = self.store.full_key(start)
            except UserError:
                return None
        return self.store.get(start)

    def record(self, record: Record) -> str:
        view = self.view(record)
        return self.whole(
            view.title,
            heading(record, view, tag("span", *_taken(record, view), class_="along")),
            *whole_view(record, view, self.context),
            after=linked_sheets(view.sheets, lambda place: f"{record_address(record.key)}/model/{place}.json"),
        )

    def view(self, record: Record) -> View:
        """Made once: a record does not change, and an answer that is given anew is another."""
        with self._lock:
            known = self._views.get(record.key)
        if known is not None and known[0] == record:
            return known[1]
        made = view_of(record, self.context)
        with self._lock:
            self._views[record.key] = record, made
            while len(self._views) > KEPT:
                self._views.pop(next(iter(self._views)))
        return made

    def beside(self, starts: Sequence[str]) -> str:
        found = [record for start in dict.fromkeys(starts[:MOST_BESIDE]) if (record := self.get(start)) is not None]
        if len(found) < 2:
            words = "Select two records or more in a list, or give their keys: /beside?key=…&key=…"
            return self.whole("Side by side", tag("header", tag("h1", "Side by side")), note(words), here="/records")
        names = " and ".join(record.key[:8] for record in found)
        return self.whole(
            f"{names} side by side",
            tag("header", tag("h1", "Side by side"), tag("p", names, class_="lead")),
            *side_by_side(found, self.context),
        )

    # ---- trainings by their folders

    def run_list(self) -> str:
        states = run_states(self.runs)
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
        return self.whole(
            "Runs",
            tag(
                "header", tag("h1", "Runs"), tag("p", f"Trainings in {self.runs}, those that run first.", class_="lead")
            ),
            table(columns, rows, name="runs") if rows else note("There are none."),
            here="/runs",
        )

    def run(self, name: str) -> str | None:
        state = read_run(self.runs, name)
        if state is None:
            return None
        record = self.get(state.key)
        stored: list[Child] = [" · ", link(record_address(record.key), "its record")] if record is not None else []
        about = tag("p", tag("span", "run", class_="badge"), " ", tag("code", name), *stored, class_="kind")
        view = View(pattern_of(state.spec), spec=state.spec)
        return self.whole(
            view.title,
            tag("header", about, tag("h1", view.title), tag("p", f"Trained on {state.data}.", class_="lead")),
            self._live(f"/live/run/{quote(name, safe='')}", *self.run_parts(state)),
            *architecture_parts(view),
            here="/runs",
        )

    def run_parts(self, state: RunState) -> list[Child]:
        training, validation = run_curves(self.runs, state.name)
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

    # ---- fragments for what follows along

    def fragment(self, parts: Sequence[Child]) -> str:
        return "".join(part if isinstance(part, str) else text_of(part) for part in parts)

    def live_overview(self) -> str:
        return self.fragment(self.overview_parts())

    def live_run(self, name: str) -> str | None:
        state = read_run(self.runs, name)
        return None if state is None else self.fragment(self.run_parts(state))


# ---- pieces


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


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


def _progress(state: RunState) -> Element:
    left = state.seconds_left
    parts = [
        f"step {state.step:,}" + (f" of {state.steps:,}" if state.steps else ""),
        "" if state.loss is None else f"loss {state.loss:.3f}",
        "" if state.tokens_per_second is None else f"{short(state.tokens_per_second)} tokens per second",
        "" if left is None else f"{duration(left)} left",
    ]
    name = link(run_address(state.name), pattern_of(state.spec)[:120])
    return card(tag("h3", name), _bar(state), note(" · ".join(part for part in parts if part)))


def _record_line(record: Record) -> Line:
    found = summary(record)
    seconds = record.provenance.get("seconds")
    return Line(record.key, record.kind, found.name, found.spec, found.source, found.value, found.unit, found.words,
                started_text(record), seconds if isinstance(seconds, float) else None)  # fmt: skip


def _cells(line: Line) -> list[Child]:
    return [
        link(record_address(line.key), line.name[:160]),
        tag("span", line.kind, class_="badge"),
        line.words[:160],
        line.source[:60],
        line.started[5:16].replace("T", " "),
        time_text(line.seconds),
    ]


def _list(lines: Sequence[Line]) -> Element:
    columns = ["what", "kind", "found", "on", "started", ">computed for"]
    made = table(columns, [_cells(line) for line in lines], fixed=True)
    for row in made.iter("tr"):
        row[0].set("class", "left what")
    made.set("class", "fixed scroll lines")
    return made


def _records_table(lines: Sequence[Line], kept: Mapping[str, str], sort: str, up: bool) -> Element:
    """Its headings sort in the database, not in the page: there are more records than are shown."""
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
    made = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", made, class_="fixed scroll lines")


def _kinds(found: Found, kept: Mapping[str, str]) -> Element:
    rest = {name: value for name, value in kept.items() if name != "kind"}
    now = kept.get("kind", "")
    total = sum(found.kinds.values())
    chips = [("", "all", total), *((kind, kind, count) for kind, count in found.kinds.items())]
    made = [
        tag("a", f"{words} {count:,}", href=f"/records?{urlencode({**rest, **({'kind': kind} if kind else {})})}",
            class_="chip", **({"aria_current": "true"} if kind == now else {}))
        for kind, words, count in chips
    ]  # fmt: skip
    return tag("div", *made, class_="chips")


def _pages(found: Found, kept: Mapping[str, str], sort: str, up: bool, page: int) -> Child:
    last = max(1, -(-found.total // PAGE))
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


def _told(kind: str, words: str) -> str:
    parts = [f"of kind {kind}" if kind else "", f"with “{words}”" if words else ""]
    told = " ".join(part for part in parts if part)
    return f"Records {told}." if told else "All that the store holds."


def _taken(record: Record, view: View) -> list[Child]:
    """What can be taken along."""
    address = record_address(record.key)
    made: list[Child] = [
        " · ",
        link(f"{address}/report.html", "offline page"),
        " · ",
        link(f"{address}/record.json", "JSON"),
    ]
    if view.rows:
        made += [" · ", link(f"{address}/numbers.csv", "CSV")]
    for name in view.figures:
        made += [" · ", link(f"{address}/figure/{quote(name, safe='')}.svg", f"{name}.svg")]
    return made
