"""A page in one file: it loads nothing, so it can be mailed, archived and read without a network."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from xml.etree.ElementTree import Element

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError
from plait.reporting.markup import Child, tag, text_of
from plait.reporting.style import HOVER, STYLE

#: The page may show what it holds and run its own few lines, and load nothing, whatever its text says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, *body: Child) -> str:
    """A whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", STYLE),
    )
    return "<!DOCTYPE html>\n" + text_of(
        tag("html", head, tag("body", tag("main", *body), tag("script", HOVER)), lang="en")
    )


def write(path: Path, document: str) -> None:
    """Whole or not at all."""
    with _told(path), atomic_write(path) as draft:
        draft.write_text(document, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Before minutes are spent on what is to be written there."""
    with _told(path), TemporaryFile(dir=path.parent):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the folder of `path`, made if need be, refuses is said in one message."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as wrong:
        raise UserError(f"the report {path} cannot be written: {wrong.strerror}.") from wrong


def section(title: str, *children: Child) -> Element:
    return tag("section", tag("h2", title), *children)


def note(words: str) -> Element:
    return tag("p", words, class_="note")


def card(*children: Child, title: str = "") -> Element:
    heading = [tag("h3", title)] if title else []
    return tag("div", *heading, *children, class_="card")


def grid(*children: Child) -> Element:
    return tag("div", *children, class_="grid")


def tiles(figures: Sequence[tuple[str, str, str]]) -> Element:
    """Key figures: what, how much, beside what."""
    made = (tag("div", tag("span", what), tag("b", much), tag("span", beside), class_="card tile")
            for what, much, beside in figures)  # fmt: skip
    return tag("div", *made, class_="tiles")


def legend(entries: Sequence[tuple[Element, str]]) -> Element:
    return tag("ul", *(tag("li", swatch, name) for swatch, name in entries), class_="legend")


def table(columns: Sequence[str], rows: Sequence[Sequence[Child]], *, chosen: int | None = None) -> Element:
    """A column whose name begins with `>` is one of numbers: it stands to the right."""
    sides = ["right" if name.startswith(">") else "left" for name in columns]
    heads = [tag("th", name.lstrip(">"), class_=side, scope="col") for name, side in zip(columns, sides, strict=True)]
    body = [
        tag(
            "tr",
            *(tag("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)),
            class_="chosen" if number == chosen else "plain",
        )
        for number, row in enumerate(rows)
    ]
    made = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", made, class_="scroll", tabindex=0)


def folded(summary: str, *children: Child) -> Element:
    return tag("details", tag("summary", summary), *children)


def code(text: str, name: str = "") -> Element:
    """A spec, below the name that it goes by."""
    return tag("span", name, tag("code", text)) if name else tag("code", text)
