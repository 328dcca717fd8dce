"""Lists of records: their lines, the headings that sort them, filters by kind, and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from plait.records.record import Record
from plait.reporting.page import Child, link, table, tag
from plait.reporting.summaries import number, started_text, summary, time_text
from plait.serving.record_index import Line, Matches

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
