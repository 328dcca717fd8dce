"""Views of single records, one per kind, the same in the live dashboard and in a report.

A view consists of parts of a page, figures as SVG documents and numbers as rows, so that a record looks the same
everywhere. Packages add views of their own kinds by entry points of the group `plait.views`: a function of a record and
a `Context`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from plait.core.errors import UserError
from plait.core.registry import Table
from plait.core.units import percent, short
from plait.records.record import Record, flat
from plait.reporting.models import ModelSheet, cost_facts, cost_of, drawing_of, model_sheets
from plait.reporting.page import Child, card, folded, grid, link, note, page, section, table, tag
from plait.reporting.summaries import (
    mapping,
    number_text,
    sequence,
    spec_of,
    started_text,
    summary,
    time_text,
    whole_text,
)

SHOWN = 160  # characters of a value in a table of fields
MOST_FIELDS = 300
MOST_SOURCES = 60  # records behind a result that are listed


@dataclass(frozen=True)
class Context:
    """What a view may use besides its record: other records, and their addresses ("" if there is none)."""

    get: Callable[[str], Record | None] = lambda key: None
    address: Callable[[str], str] = lambda key: ""

    def linked(self, key: str, words: str) -> Child:
        address = self.address(key)
        return link(address, words) if address else words


ALONE = Context()


@dataclass(frozen=True)
class View:
    """`figures`: name → function that returns an SVG document; `rows`: the numbers, for a table file; `sheets`: models
    whose details can be opened; `seq`: the sequence length of costs."""

    title: str
    lead: str = ""
    parts: Sequence[Child] = ()
    figures: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    sheets: Sequence[ModelSheet] = ()
    spec: str = ""
    seq: int = 1024


VIEWS: Table[Callable[[Record, Context], View]] = Table(
    "view",
    {
        "train": "plait.reporting.view_model:train_view",
        "track": "plait.reporting.view_model:track_view",
        "search": "plait.reporting.view_search:search_view",
        "probe": "plait.reporting.view_probe:probe_view",
        "probe-verdict": "plait.reporting.view_probe:verdict_view",
        "compare": "plait.reporting.comparison:comparison_view",
        "scale": "plait.scaling.view:scale_view",
        "eval": "plait.reporting.view_eval:eval_view",
        "measure": "plait.reporting.view_model:measure_view",
        "design": "plait.designing.page:design_view",
    },
    group="plait.views",
)


def view_of(record: Record, context: Context = ALONE) -> View:
    """The view for the record's kind; malformed records and unknown kinds are shown as fields."""
    known = record.kind in VIEWS.lines
    try:
        if not known:
            VIEWS.discover(record.kind)
        if record.kind not in VIEWS:
            return plain_view(record)
        return VIEWS.load(record.kind)(record, context)
    except (UserError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as wrong:
        if known and not isinstance(wrong, UserError):
            words = f"It is not as a record of kind {record.kind} should be; here are its raw fields."
        else:
            # Without the list of known names and the caret line, which are for terminals.
            reason = str(wrong).partition("\n")[0].partition(" Known: ")[0]
            words = f"It cannot be drawn: {reason}"
        plain = plain_view(record)
        return View(plain.title, plain.lead, [note(words), *plain.parts], rows=plain.rows, spec=plain.spec)


def view_page(view: View, document: Mapping[str, Any], file: str) -> str:
    """One view as a self-contained page, from which `document` can be saved as `file`."""
    return page(
        view.title,
        tag("header", tag("h1", view.title), tag("p", view.lead, class_="lead")),
        *view.parts,
        tag("p", data_take=file),
        *model_sheets(view.sheets, document),
    )


def plain_view(record: Record) -> View:
    """The default view of any record: its numbers, and all fields."""
    headline = summary(record)
    fields = flat(record.result)
    return View(
        headline.name,
        headline.words,
        [section("Result", field_table(fields, "result"))],
        rows=[{name: value for name, value in fields.items() if not isinstance(value, (list, dict))}],
        spec=spec_of(record),
    )


def whole_view(record: Record, view: View, context: Context) -> list[Child]:
    """A record's view, followed by what every record has: architecture, source records, provenance, cost and config."""
    return [*view.parts, *architecture_parts(view), *sources(record, context), making(record)]


def sources(record: Record, context: Context) -> list[Child]:
    """Links to the trainings behind a result, so that each number can be traced to its source."""
    named: dict[str, list[str]] = {}
    for name, inner in mapping(record.config.get("trainings")).items():
        if isinstance(inner, str):  # key → architecture
            named.setdefault(inner, []).append(name)
        else:
            named[name] = [str(key) for at in sequence(inner) for key in sequence(at)]
    if not named:
        return []
    rows: list[list[Child]] = [
        [
            name,
            str(len(keys)),
            tag("span", *(_with_space_after(context.linked(key, key[:6])) for key in keys[:MOST_SOURCES])),
        ]
        for name, keys in named.items()
    ]
    return [folded("Its trainings", table(("architecture", ">trainings", "their records"), rows))]


def _with_space_after(child: Child) -> Element:
    return tag("span", child, " ")


def heading(record: Record, view: View, *beside: Child) -> Element:
    kind = tag("p", tag("span", record.kind, class_="badge"), " ", tag("code", record.key[:10]), *beside, class_="kind")
    lead = [tag("p", view.lead, class_="lead")] if view.lead else []
    return tag("header", kind, tag("h1", view.title), *lead)


def architecture_parts(view: View) -> list[Child]:
    """The spec, cost and drawing of the record's model, if it has one that can be read here."""
    if not view.spec:
        return []
    cost = cost_of(view.spec, view.seq)
    spec = tag("div", tag("code", view.spec, data_copy="the spec"), class_="taken")
    if cost is None:
        words = "Its spec names a mixer that is not known here: give its file with --mixers to see drawing and cost."
        return [section("Architecture", spec, note(words))]
    rows: list[list[Child]] = [[name, value] for name, value in cost_facts(cost)]
    return [
        section(
            "Architecture",
            spec,
            grid(
                card(table(("", ">"), rows, fixed=True), note("Numbers of 4 bytes."), title="Exact cost"),
                card(tag("div", svg_element(drawing_of(view.spec, view.seq)), class_="drawing")),
            ),
        )
    ]


def svg_element(document: str) -> Element:
    """An SVG document as part of a page."""
    root = ElementTree.fromstring(document)
    for element in root.iter():  # in HTML, SVG elements have no namespace prefix
        element.tag = element.tag.rpartition("}")[2]
    return root


PROVENANCE = {
    "started": "started",
    "seconds": "took",
    "plait": "plait",
    "code": "hash of its source",
    "torch": "torch",
    "python": "Python",
    "gpu": "GPU",
    "cpu": "CPU",
    "threads": "threads",
    "cores": "cores",
    "system": "system",
}


def making(record: Record) -> Element:
    """Provenance and cost of the record's numbers, and the config that decides them."""
    about = record.provenance
    rows: list[list[Child]] = [["record", tag("span", tag("code", record.key, data_copy="the key"))]]
    for name, words in PROVENANCE.items():
        value = about.get(name)
        if value is not None and value != "":
            text = time_text(value) if name == "seconds" else started_text(record) if name == "started" else ""
            rows.append([words, text or str(value)[:SHOWN]])
    cost = {name: value for name, value in flat(record.result).items() if _is_cost(name) and number_text(value)}
    # By its words: a profile, for example, states its time too.
    texts = {_cost_words(name): _cost_text(name, value) for name, value in reversed(list(cost.items())[:20])}
    spent: list[list[Child]] = [[words, text] for words, text in reversed(texts.items())]
    cards = [card(table(("", ""), rows, fixed=True), title="Provenance")]
    if spent:
        cards.append(card(table(("", ">"), spent, fixed=True), title="Cost"))
    return section(
        "Provenance and cost",
        grid(*cards),
        folded("Config: everything that determines the result", field_table(flat(record.config), "config")),
    )


COSTS = ("seconds", "flops", "tokens", "steps", "core_hours", "mfu", "runs", "joules")


def _is_cost(name: str) -> bool:
    """Whether the field is a cost that was spent, and not a limit."""
    before, _, last = name.rpartition(".")
    return before == "cost" or (last in COSTS and before.count(".") == 0 and before not in ("asked", "latency"))


def _cost_words(name: str) -> str:
    words = name.removeprefix("cost.").replace("_", " ").replace(".", ", ").replace("flops", "FLOPs")
    return words.removesuffix("seconds").rstrip(", ") or "time" if words.endswith("seconds") else words


def _cost_text(name: str, value: Any) -> str:
    """With its unit: seconds as a time, counts in full, and large ones by their power of ten."""
    if name.endswith("seconds"):
        return time_text(value)
    if name.endswith("joules"):
        return f"{number_text(value)} J"
    if name.endswith("mfu"):
        return percent(float(value), 1)
    if name.endswith("flops"):
        return short(float(value))
    return whole_text(value) if float(value).is_integer() and float(value) < 1e9 else number_text(value)


def field_table(fields: Mapping[str, Any], name: str) -> Element:
    rows: list[list[Child]] = [[key, _shown(value)] for key, value in islice(_leaves(fields), MOST_FIELDS)]
    return table(("field", "value"), rows, name=name)


def _leaves(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields, each entry of a list of objects by its place: `candidates.1.spec`."""
    for name, value in fields.items():
        if isinstance(value, (list, tuple)) and any(isinstance(entry, Mapping) for entry in value):
            yield from _leaves(flat({str(place): entry for place, entry in enumerate(value, start=1)}, f"{name}."))
        else:
            yield name, value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"
