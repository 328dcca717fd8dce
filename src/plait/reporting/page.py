"""Self-contained HTML pages: one file that loads nothing, so it can be mailed, archived and read offline.

HTML is built as a tree, and all text is escaped on output, so escaping cannot be forgotten. The theme is light or dark
by the reader's system setting, and the layout suits phones and print. Interactions (`web/`) are shared by all pages:
tooltips, links between charts and tables, zoom, sorting, copying, downloads.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from plait.core.errors import UserError
from plait.core.files import atomic_write

Child = Element | str


def tag(name: str, /, *children: Child, **attributes: str | int) -> Element:
    """An element. Attribute names lose a trailing underscore (`class_`); others become hyphens (`aria_label`)."""
    element = Element(name, {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items()})
    return add(element, *children)


def add(parent: Element, *children: Child) -> Element:
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + child
        else:
            parent.text = (parent.text or "") + child
    return parent


def text_of(element: Element) -> str:
    return ElementTree.tostring(element, encoding="unicode", method="html")


WEB = Path(__file__).parent / "web"
#: The series colours suit any colour vision (after Okabe and Ito 2008), and are lighter on a dark background.
STYLE = (WEB / "page.css").read_text(encoding="utf-8")
#: In this order. Without scripts the page is still readable, and the browser shows the titles of marks.
SCRIPTS = ("links.js", "tables.js", "models.js", "plots.js", "cube.js", "explore.js", "live.js")


#: Content security policy: the page may use its inline style and script, and load nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, *body: Child) -> str:
    """A whole document."""
    policy = tag("meta", http_equiv="Content-Security-Policy", content=POLICY)
    return document(title, [policy, tag("style", STYLE)], [tag("main", *body), tag("script", script())])


def document(title: str, head: Sequence[Child], body: Sequence[Child]) -> str:
    """The HTML document around a page, whether its style and script are inline or linked."""
    meta = tag("meta", charset="utf-8"), tag("meta", name="viewport", content="width=device-width, initial-scale=1")
    whole = tag("html", tag("head", *meta, tag("title", title), *head), tag("body", *body), lang="en")
    return "<!DOCTYPE html>\n" + text_of(whole)


def script() -> str:
    return "(() => {\n" + "".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS) + "})();\n"


def json_script(value: object, **attributes: str) -> Element:
    """JSON data for the page's script. Text inside <script> is not escaped on output, so `<` is escaped here."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return tag("script", text, type="application/json", **attributes)


def write(path: Path, document: str) -> None:
    """Write atomically: the file is complete or absent."""
    with _explain_write_errors(path), atomic_write(path) as draft:
        draft.write_text(document, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Fail now rather than after minutes of work whose result could not be written."""
    with _explain_write_errors(path), TemporaryFile(dir=path.parent):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    """Create the folder of `path` if needed; an OSError inside becomes a UserError that names the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as wrong:
        raise UserError(f"the report {path} cannot be written: {wrong.strerror}.") from wrong


def section(title: str, *children: Child) -> Element:
    return tag("section", tag("h2", title), *children)


def sentence(words: str) -> str:
    """Capitalised, with a full stop; a name before a colon remains as it is."""
    first = words[:1] if words.partition(" ")[0].endswith(":") else words[:1].upper()
    return f"{first}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}"


def note(words: str) -> Element:
    return tag("p", words, class_="note")


def card(*children: Child, title: str = "") -> Element:
    heading = [tag("h3", title)] if title else []
    return tag("div", *heading, *children, class_="card")


def grid(*children: Child) -> Element:
    return tag("div", *children, class_="grid")


def tiles(figures: Sequence[tuple[str, str, str]]) -> Element:
    """Key figures as (label, value, note)."""
    cards = (tag("div", tag("span", what), tag("b", much), tag("span", beside), class_="card tile")
             for what, much, beside in figures)  # fmt: skip
    return tag("div", *cards, class_="tiles")


def legend(entries: Sequence[tuple[Element, str]], keys: Mapping[str, str] | None = None) -> Element:
    """A legend in which a click hides a series; `keys` link a series to other parts of the page."""
    items = [
        tag("li", swatch, name, data_series=name, **({"data_key": keys[name]} if keys and name in keys else {}))
        for swatch, name in entries
    ]
    return tag("ul", *items, class_="legend")


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Child]], *, chosen: int | None = None,
    keys: Sequence[str] = (), name: str = "", fixed: bool = False, sortable: bool = True,
) -> Element:  # fmt: skip
    """A table. Columns whose name begins with `>` are numeric and right-aligned. `keys` link each row to other parts of
    the page; `name`: of the file it can be saved as; `fixed`: cannot be sorted or saved; not `sortable`: its rows are
    different quantities. On a phone each cell shows its column's name, unless it is empty, or is the first one and not
    a number."""
    sides = ["right" if column.startswith(">") else "left" for column in columns]
    names = [column.lstrip(">") for column in columns]
    heads = [tag("th", heading, class_=side, scope="col") for heading, side in zip(names, sides, strict=True)]
    body = []
    for number, row in enumerate(rows):
        cells = [
            tag(
                "td",
                cell,
                class_=side,
                **({"data_label": heading} if heading and (place or side == "right") and cell != "" else {}),
            )
            for place, (cell, side, heading) in enumerate(zip(row, sides, names, strict=True))
        ]
        line = tag("tr", *cells, class_="chosen" if number == chosen else "plain")
        if keys:
            line.set("data-key", keys[number])
        body.append(line)
    head = [tag("thead", tag("tr", *heads))] if any(names) else []
    element = tag("table", *head, tag("tbody", *body), data_name=name, **({} if sortable else {"data_unsortable": ""}))
    return tag("div", element, class_="fixed scroll" if fixed else "scroll")


def link(address: str, *words: Child) -> Element:
    return tag("a", *words, href=address)


def folded(summary: str, *children: Child) -> Element:
    return tag("details", tag("summary", summary), *children)


def code(text: str, name: Child = "") -> Element:
    """A spec with a copy button, below its name."""
    named = [] if name == "" else [name, tag("br")]
    return tag("span", *named, tag("code", text, data_copy="the spec"))


def commands(lines: Sequence[str]) -> Element:
    """Commands, each with a copy button."""
    return tag("div", *(tag("div", tag("pre", line, data_copy="the command"), class_="taken") for line in lines))
