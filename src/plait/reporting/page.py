"""A page in one file: it loads nothing, so it can be mailed, archived and read without a network.

HTML is a tree: whatever text goes in is escaped on the way out, so there is nothing to forget. The page is light or
dark by what the reader's system says, and fit for a phone and for paper.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from plait.core.atomic_write import atomic_write
from plait.core.errors import UserError

Child = Element | str


def tag(name: str, /, *children: Child, **attributes: str | int) -> Element:
    """An element. `class_` and the like lose their last underscore, others become hyphens: `aria_label`."""
    made = Element(name, {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items()})
    return add(made, *children)


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


#: Series are told apart with any colour vision (after Okabe and Ito 2008), lighter on dark ground.
STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1d2430; --pale: #5c6675; --grid: #e4e7ec; --edge: #d9dee5;
  --track: #eff1f5; --limit: #b3261e; --beyond: rgba(179, 38, 30, 0.06); --accent: #0b63a5; --none: #a9b2be;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b8558f; --s4: #b07d00; --s5: #3a9ad9;
  --s6: #7353ba; --s7: #5b6770;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #11151b; --card: #1a2029; --ink: #e8ecf2; --pale: #a2adbb; --grid: #2b3440; --edge: #323c4a;
    --track: #252d38; --limit: #ff8a80; --beyond: rgba(255, 138, 128, 0.08); --accent: #7cc4ff; --none: #66717f;
    --s0: #4fb3ee; --s1: #ff9350; --s2: #3fd0a2; --s3: #ea9fcb; --s4: #f0c350; --s5: #9bd8ff;
    --s6: #b9a0f0; --s7: #b4c0cc;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.015em; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 44px 0 4px; letter-spacing: -0.005em; }
h3 { font-size: 0.95rem; margin: 0 0 8px; font-weight: 600; }
p { margin: 0 0 12px; max-width: 74ch; }
.lead, .note { color: var(--pale); }
.note { font-size: 0.9rem; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 18px 20px; }
.advice { border-left: 4px solid var(--accent); margin: 22px 0 16px; }
.advice p { max-width: 92ch; margin-bottom: 0; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 0.86em; }
code { overflow-wrap: anywhere; }
.spec { display: block; padding: 10px 12px; border-radius: 8px; background: var(--track); margin: 0 0 12px; }
pre { margin: 0; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 1.45rem; line-height: 1.25; letter-spacing: -0.01em; }
.tile span { display: block; font-size: 0.82rem; color: var(--pale); }
.grid + .card { margin-top: 14px; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 14px; }
.chart { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.chart .hover { cursor: pointer; outline: none; }
.chart .hover:hover, .chart .hover:focus-visible { stroke: var(--ink); }
.legend { list-style: none; margin: 10px 0 14px; padding: 0; display: flex; flex-wrap: wrap; gap: 4px 18px;
  font-size: 0.9rem; }
.legend li { display: flex; align-items: center; gap: 6px; }
.swatch { width: 16px; height: 16px; flex: none; }
.scroll { overflow-x: auto; margin: 10px 0; padding: 4px 0; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th { font-weight: 600; text-align: left; color: var(--pale); }
th, td { padding: 7px 8px; border-bottom: 1px solid var(--grid); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
td.right, th.right { text-align: right; white-space: nowrap; }
td code { display: block; min-width: 34ch; font-weight: 400; color: var(--pale); }
tr.chosen td { font-weight: 650; background: var(--track); }
details { margin: 12px 0; }
summary { cursor: pointer; color: var(--accent); }
#tip { position: fixed; z-index: 9; max-width: min(360px, 92vw); padding: 9px 12px; border-radius: 8px;
  pointer-events: none;
  background: var(--ink); color: var(--card); font-size: 0.82rem; line-height: 1.45; white-space: pre-line;
  overflow-wrap: anywhere; box-shadow: 0 6px 22px rgba(0, 0, 0, 0.25); }
@media (max-width: 560px) {
  main { padding: 20px 12px 40px; }
  h1 { font-size: 1.5rem; }
  .card { padding: 14px 12px; }
  .tiles { grid-template-columns: 1fr 1fr; }
}
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""

#: Shows what a mark's title says at once and in several lines. Without it the browser shows the titles by itself.
HOVER = """
(() => {
  const tip = document.createElement("div");
  tip.id = "tip"; tip.hidden = true; tip.setAttribute("role", "status");
  document.body.append(tip);
  const show = (mark, x, y) => {
    tip.textContent = mark.dataset.hint;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 14) : y + 18) + "px";
  };
  const hide = () => { tip.hidden = true; };
  for (const title of document.querySelectorAll(".hover > title, .chart rect > title")) {
    const mark = title.parentElement;
    mark.dataset.hint = title.textContent;
    mark.setAttribute("aria-label", title.textContent);
    title.remove();
    mark.addEventListener("pointermove", (event) => show(mark, event.clientX, event.clientY));
    mark.addEventListener("pointerleave", hide);
    mark.addEventListener("focus", () => { const box = mark.getBoundingClientRect(); show(mark, box.right, box.top); });
    mark.addEventListener("blur", hide);
  }
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
"""


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
