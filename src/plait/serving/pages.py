"""The dashboard's pages. How a record is drawn is defined in `plait.reporting`, which reports use as well."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from sqlalchemy import select

from plait.core.errors import UserError
from plait.records.database import claims
from plait.records.jobs import read_jobs
from plait.records.record import INTERNAL, Record
from plait.records.store import Store
from plait.reporting.models import linked_sheets
from plait.reporting.page import STYLE, Child, document, link, note, script, section, tag, text_of
from plait.reporting.records_page import PARTS, kind_section, side_by_side
from plait.reporting.summaries import number, pattern_of
from plait.reporting.views import Context, View, architecture_parts, heading, view_of, whole_view
from plait.serving.lists import (
    PAGE,
    filter_text,
    job_card,
    kind_chips,
    page_links,
    record_address,
    record_line,
    records_table,
    short_list,
    training_card,
    training_parts,
    trainings_table,
)
from plait.serving.record_index import RecordIndex
from plait.serving.run_folders import read_run, run_states

RECENT = 600.0  # seconds
#: Descriptions of the kinds of records.
KINDS = {
    "train": "trainings of models",
    "track": "short trainings, for comparisons and races",
    "compare": "which model learns a text best",
    "probe": "trainings on synthetic tasks",
    "probe-verdict": "what models can do",
    "probe-plan": "what a probe planned to train",
    "probe-replan": "replans of such plans",
    "race-speed": "how fast models train here",
    "design-clock": "how the time of a design was spent",
    "search": "best models under limits",
    "measure": "latency, memory or energy here",
    "scale": "runs of scaling studies",
    "design": "whole designs, from limits to a model",
    "eval": "evaluations of trained models",
}
NEWEST = 12  # records in the overview
EMPTY = "The store is empty so far: what plait design, compare, probe, search and train find out will be here."
GALLERY = 300  # maximum number of records of one kind drawn together
MOST_BESIDE = 8
KEPT = 32  # views
KEY_DIGITS = 32


@cache
def asset(name: str) -> tuple[str, str]:
    """Text and a short hash of the style or the script; the hash is in the URL, so that browsers may cache it."""
    text = STYLE if name == "page.css" else script()
    return text, hashlib.sha256(text.encode()).hexdigest()[:12]


class Pages:
    def __init__(self, store: Store, runs: Path, index: RecordIndex) -> None:
        self.store, self.runs, self.index = store, runs, index
        self.context = Context(self._known, record_address)
        self._views: dict[str, tuple[Record, View]] = {}
        self._lock = threading.Lock()

    def _known(self, key: str) -> Record | None:
        return self.store.get(key)

    # ---- navigation, style and script around every page

    def page(self, title: str, *body: Child, here: str = "", words: str = "", after: Sequence[Child] = ()) -> str:
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
                "a",
                tag("b", f"{count:,}"),
                tag("span", kind),
                tag("span", KINDS.get(kind, "")),
                href=f"/kind/{quote(kind, safe='')}",
                class_="card tile",
            )
            for kind, count in kinds.items()
        ]
        intro = "What is in the store, and what is running." if total else EMPTY
        return self.page(
            "Overview",
            tag("header", tag("h1", self.store.name), tag("p", intro, class_="lead")),
            self._live("/live/overview", *self.overview_parts()),
            section("Everything in the store, by kind", tag("div", *cards, class_="tiles")) if cards else "",
            here="/",
        )

    def overview_parts(self) -> list[Child]:
        jobs = [job for job in read_jobs(self.store) if job.running or job.age < RECENT]
        running = [state for state in run_states(self.runs) if state.running]
        at_work = self._claims()
        parts: list[Child] = []
        if jobs or running:
            cards = [*map(job_card, jobs), *map(training_card, running)]
            parts.append(section("Running now", tag("div", *cards, class_="grid")))
        if at_work:
            owners = {owner for _, owner in at_work}
            words = f"{_count(len(at_work), 'result')} being computed by {_count(len(owners), 'process', 'processes')}."
            parts.append(note(words))
        if not jobs and not running and not at_work:
            parts.append(note("Nothing is running here now."))
        if ended := self.index.finished_since(time.time() - RECENT):
            counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(ended.items()))
            parts.append(note(f"Ended in the last ten minutes: {counts}."))
        if newest := self._latest():
            rows = [record_line(record) for record in newest]
            parts.append(section("Latest results", short_list(rows)))
        return parts

    def _latest(self) -> list[Record]:
        """The newest results, without the trainings and plans that they consist of if there is anything else."""
        whole = [kind for kind in self.store.kinds() if kind not in PARTS]
        newest = [record for kind in whole for record in self.store.find(kind, limit=NEWEST)]
        newest.sort(key=_ended, reverse=True)
        return newest[:NEWEST] or self.store.find(limit=NEWEST, without=INTERNAL)

    def _claims(self) -> list[tuple[str, str]]:
        """(key, owner) of every record that is being computed now."""
        asked = select(claims.c.key, claims.c.owner).where(claims.c.expires > time.time()).limit(1000)
        return [(row.key, row.owner) for row in self.store.raw_rows(asked)]

    def _live(self, address: str, *parts: Child) -> Element:
        return tag("div", *parts, data_live=address)

    # ---- lists

    def records(self, query: Mapping[str, str]) -> str:
        """The list, filtered and sorted by the URL's query: kind, q (words), sort, up, page."""
        kind, words = query.get("kind", "")[:200], query.get("q", "")[:400]
        sort, up = query.get("sort", "newest"), query.get("up") == "1"
        page = int(query["page"]) if query.get("page", "").isdecimal() and len(query["page"]) < 8 else 1
        page = max(1, page)
        matches = self.index.find(kind, words, sort, not up, (page - 1) * PAGE, PAGE)
        kept = {name: value for name, value in (("kind", kind), ("q", words)) if value}
        title = f"{matches.total:,} record{'s' * (matches.total != 1)}"
        reading = (
            f" {matches.read:,} of {matches.there:,} have been read so far." if matches.read < matches.there else ""
        )
        form = tag(
            "form",
            records_table(matches.lines, kept, sort, up),
            tag("p", tag("button", "Compare the selected", type="submit"), class_="actions") if matches.lines else "",
            action="/beside", method="get",
        )  # fmt: skip
        return self.page(
            title,
            tag("header", tag("h1", title), tag("p", filter_text(kind, words) + reading, class_="lead")),
            kind_chips(matches, kept),
            form if matches.lines else note("No matches. A search finds records that contain all its words."),
            page_links(matches, kept, sort, up, page),
            here="/records", words=words,
        )  # fmt: skip

    def kind(self, kind: str) -> str:
        records = self.store.find(kind, limit=GALLERY)
        if not records:
            raise UserError(f"no records of kind '{kind[:80]}'.")
        total = self.store.kinds().get(kind, len(records))
        lead = f"The newest {len(records):,} of {total:,}." if len(records) < total else f"{total:,} in total."
        every = f"/records?{urlencode({'kind': kind})}"
        return self.page(
            kind,
            tag("header", tag("h1", f"Records of kind {kind}"),
                tag("p", f"{lead} ", link(every, "As a list"), class_="lead")),
            kind_section(kind, records, self.context),
        )  # fmt: skip

    # ---- records

    def get(self, start: str) -> Record | None:
        """The record with this key, or with a unique key of this prefix."""
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
        return self.page(
            view.title,
            heading(record, view, tag("span", *_download_links(record, view), class_="along")),
            *whole_view(record, view, self.context),
            after=linked_sheets(view.sheets, lambda place: f"{record_address(record.key)}/model/{place}.json"),
        )

    def view(self, record: Record) -> View:
        """Cached: a record with this key and these contents never changes."""
        with self._lock:
            known = self._views.get(record.key)
        if known is not None and known[0] == record:
            return known[1]
        view = view_of(record, self.context)
        with self._lock:
            self._views[record.key] = record, view
            while len(self._views) > KEPT:
                self._views.pop(next(iter(self._views)))
        return view

    def beside(self, starts: Sequence[str]) -> str:
        records = [record for start in dict.fromkeys(starts[:MOST_BESIDE]) if (record := self.get(start)) is not None]
        if len(records) < 2:
            words = "Select two or more records in a list, or give their keys: /beside?key=…&key=…"
            return self.page("Side by side", tag("header", tag("h1", "Side by side")), note(words), here="/records")
        names = " and ".join(record.key[:8] for record in records)
        return self.page(
            f"{names} side by side",
            tag("header", tag("h1", "Side by side"), tag("p", names, class_="lead")),
            *side_by_side(records, self.context),
        )

    # ---- trainings by their folders

    def run_list(self) -> str:
        return self.page(
            "Runs",
            tag("header", tag("h1", "Runs"), tag("p", "Commands and trainings, running ones first.", class_="lead")),
            self._live("/live/runs", *self.run_list_parts()),
            section(f"Trainings in {self.runs}", trainings_table(run_states(self.runs))),
            here="/runs",
        )

    def run_list_parts(self) -> list[Child]:
        jobs = read_jobs(self.store)
        none = note("No command is running or was stopped within the last day.")
        return [section("Commands", tag("div", *map(job_card, jobs), class_="grid") if jobs else none)]

    def run(self, name: str) -> str | None:
        state = read_run(self.runs, name)
        if state is None:
            return None
        record = self.get(state.key)
        stored: list[Child] = [" · ", link(record_address(record.key), "its record")] if record is not None else []
        about = tag("p", tag("span", "run", class_="badge"), " ", tag("code", name), *stored, class_="kind")
        view = View(pattern_of(state.spec), spec=state.spec)
        return self.page(
            view.title,
            tag("header", about, tag("h1", view.title), tag("p", f"Trained on {state.data}.", class_="lead")),
            self._live(f"/live/run/{quote(name, safe='')}", *training_parts(self.runs, state)),
            *architecture_parts(view),
            here="/runs",
        )

    # ---- fragments for the live parts of pages

    def fragment(self, parts: Sequence[Child]) -> str:
        return "".join(part if isinstance(part, str) else text_of(part) for part in parts)

    def live_overview(self) -> str:
        return self.fragment(self.overview_parts())

    def live_runs(self) -> str:
        return self.fragment(self.run_list_parts())

    def live_run(self, name: str) -> str | None:
        state = read_run(self.runs, name)
        return None if state is None else self.fragment(training_parts(self.runs, state))


def _download_links(record: Record, view: View) -> list[Child]:
    """Download links of a record: offline page, JSON, CSV, figures."""
    address = record_address(record.key)
    links: list[Child] = [
        " · ",
        link(f"{address}/report.html", "offline page"),
        " · ",
        link(f"{address}/record.json", "JSON"),
    ]
    if view.rows:
        links += [" · ", link(f"{address}/numbers.csv", "CSV")]
    for name in view.figures:
        links += [" · ", link(f"{address}/figure/{quote(name, safe='')}.svg", f"{name}.svg")]
    return links


def _ended(record: Record) -> float:
    """The Unix time of its end: a design begins before everything that it consists of."""
    try:
        started = datetime.fromisoformat(str(record.provenance.get("started", ""))).timestamp()
    except ValueError:
        return 0.0
    return started + (number(record.provenance.get("seconds")) or 0.0)


def _count(amount: int, singular: str, plural: str = "") -> str:
    return f"{amount:,} {singular if amount == 1 else plural or singular + 's'}"
