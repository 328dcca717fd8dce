"""Writes the pages as a site that opens from a folder and loads nothing from outside: `make site`.

docs/index.md is the table of contents: its headings and links are the menu, in its order. Links lead to what they lead
to in the repository: another page as its HTML, a page from outside docs/ (CONTRIBUTING.md, a benchmark's results) as a
page of its own, any other file as a copy. `theme/` has the style and the script; the search index is a script too,
because a page that is opened from a folder may not fetch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
THEME = DOCS / "theme"
COLOURED = ("python", "console", "sh", "toml", "yaml", "json")  # other blocks are shown as they are
#: What a cell of a column of numbers holds: 12,345, −0.3, 5e-3, 1.4×, 93 %, 12 ms, 0.78 ± 0.02, or nothing.
NUMBER = re.compile(r"([-−+≈<≤>≥~]? ?\d[\d,. ]*(e[-+−]?\d+)?( ?(%|×|[kKMGT]?B?|[mµn]?s))?( ?± ?[\d.]+)?|[-–—]?)")
#: A page may show what is beside it and run the site's own script; the browser refuses it everything else.
POLICY = "default-src 'none'; style-src 'self' file:; script-src 'self' file:; img-src 'self' file: data:"


@dataclass
class Section:
    """What a search finds: a heading and the text below it."""

    title: str
    anchor: str
    text: list[str] = field(default_factory=list)


@dataclass
class Page:
    source: Path
    title: str
    body: str
    sections: list[Section]
    links: list[Path]  # of the repository, that the page leads to


def slug(title: str) -> str:
    """The anchor of a heading, as code hosts derive it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def destination(source: Path) -> Path:
    """Where a file of the repository is in the site."""
    inside = source.relative_to(DOCS) if source.is_relative_to(DOCS) else source.relative_to(ROOT)
    return inside.with_suffix(".html") if source.suffix == ".md" else inside


def relative(target: Path, page: Path) -> str:
    return os.path.relpath(destination(target), destination(page).parent)


# ---- one page


def read_page(source: Path) -> Page:
    text = re.sub(r"<!--.*?-->\n?", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    sections, used, links = [Section(source.stem, "")], dict[str, int](), list[Path]()
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            title = _plain(tokens[i + 1])
            anchor = slug(title)
            used[anchor] = used.get(anchor, 0) + 1
            anchor += f"-{used[anchor] - 1}" if used[anchor] > 1 else ""
            token.attrSet("id", anchor)
            sections.append(Section(title, anchor))
        elif token.type == "inline":
            sections[-1].text.append(_plain(token))
            links += _point_links(token, source)
        elif token.type == "fence":
            sections[-1].text.append(token.content)
    titles = [section.title for section in sections[1:2]]
    body = _with_extras(markdown, tokens)
    return Page(source, titles[0] if titles else source.stem, body, sections, links)


def _plain(inline: Token) -> str:
    return "".join(child.content if child.type in ("text", "code_inline") else " " if child.type == "softbreak" else ""
                   for child in inline.children or [])  # fmt: skip


def _point_links(inline: Token, source: Path) -> Iterator[Path]:
    """Point links at the site's files; gives what of the repository they lead to."""
    for child in inline.children or []:
        place = {"link_open": "href", "image": "src"}.get(child.type, "")
        href = str(child.attrGet(place) or "")
        if not href or href.startswith(("http:", "https:", "#")):
            continue
        path, _, anchor = href.partition("#")
        target = (source.parent / path).resolve()
        if target.is_dir():
            target = target / "README.md"
        if not target.is_file():
            raise SystemExit(f"{source.relative_to(ROOT)}: {href} leads nowhere")
        child.attrSet(place, relative(target, source) + (f"#{anchor}" if anchor else ""))
        yield target


def _align_numbers(tokens: Sequence[Token]) -> None:
    """Columns of numbers to the right, whatever the page says of them."""
    cells: list[Token] = []
    columns: dict[int, list[tuple[Token, str]]] = {}
    for i, token in enumerate(tokens):
        if token.type == "table_open":
            columns = {}
        elif token.type == "tr_open":
            cells = []
        elif token.type in ("th_open", "td_open"):
            columns.setdefault(len(cells), []).append((token, _plain(tokens[i + 1])))
            cells.append(token)
        elif token.type == "table_close":
            for column in columns.values():
                body = [text for cell, text in column if cell.type == "td_open"]
                if any(text != "" for text in body) and all(NUMBER.fullmatch(text) for text in body):
                    for cell, _ in column:
                        cell.attrSet("style", "text-align:right")


def _with_extras(markdown: MarkdownIt, tokens: Sequence[Token]) -> str:
    """HTML: code coloured, wide tables in a box that scrolls, headings with a link to themselves."""
    html, anchor = [], ""
    _align_numbers(tokens)
    for token in tokens:
        if token.type == "fence":
            html.append(_code(token.content, token.info.strip()))
            continue
        if token.type == "table_open":
            html.append('<div class="wide" tabindex="0">')
        if token.type == "heading_close" and token.tag != "h1":
            html.append(f'<a class="self" href="#{anchor}" aria-label="link to this section">#</a>')
        if token.type == "heading_open":
            anchor = str(token.attrGet("id"))
        if style := token.attrs.pop("style", ""):  # a column's alignment, which the policy takes as a class only
            token.attrSet("class", str(style).rpartition(":")[2])
        html.append(markdown.renderer.render([token], markdown.options, {}))
        if token.type == "table_close":
            html.append("</div>")
    return "".join(html)


def _code(text: str, language: str) -> str:
    if language in COLOURED:
        text = highlight(text, get_lexer_by_name(language), HtmlFormatter(nowrap=True))
    else:
        text = escape(text)
    kind = "output" if language == "output" else "code"
    return f'<pre class="{kind}" tabindex="0"><code>{text}</code></pre>\n'


# ---- the site


def menu() -> list[tuple[str, list[tuple[str, Path]]]]:
    """The index's headings, each with the names and sources of its pages."""
    parts: list[tuple[str, list[tuple[str, Path]]]] = []
    for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            parts.append((line[3:], []))
        elif parts and (link := re.match(r"- \[([^\]]+)\]\(([^)\s]+)\)", line)):
            parts[-1][1].append((link[1], (DOCS / link[2]).resolve()))
    return parts


def build(out: Path) -> list[Path]:
    """Write the site; gives its pages."""
    parts = menu()
    order = [DOCS / "index.md", *(source for _, entries in parts for _, source in entries)]
    pages: dict[Path, Page] = {}
    queue = [*order, *sorted(DOCS.rglob("*.md"))]
    files: set[Path] = set()
    while queue:
        source = queue.pop(0)
        if source.suffix != ".md":
            files.add(source)
        elif source not in pages:
            pages[source] = read_page(source)
            queue += pages[source].links
    for source, page in pages.items():
        _write(out / destination(source), _document(page, parts, order))
    for source in files:
        _write(out / destination(source), source.read_bytes())
    for name in ("site.css", "site.js"):
        _write(out / "theme" / name, (THEME / name).read_bytes())
    _write(out / "theme" / "search.js", f"window.SEARCH = {json.dumps(_index(pages), ensure_ascii=False)};\n")
    return [out / destination(source) for source in pages]


def _index(pages: dict[Path, Page]) -> list[list[str]]:
    """Page, heading, place and text of every section."""
    return [
        [page.title, section.title, f"{destination(source).as_posix()}#{section.anchor}", " ".join(section.text)]
        for source, page in pages.items()
        for section in page.sections
        if section.text
    ]


def _document(page: Page, parts: list[tuple[str, list[tuple[str, Path]]]], order: list[Path]) -> str:
    up = os.path.relpath(".", destination(page.source).parent)
    contents = [s for s in page.sections[2:] if s.title][:60]
    front = page.source == DOCS / "index.md"
    body = page.body.replace("</a>: ", "</a> ") if front else page.body  # a card's name stands on a line of its own
    return (THEME / "page.html").read_text(encoding="utf-8").format(
        title=escape(page.title if page.title == "plait" else f"{page.title} · plait"), policy=POLICY, up=up,
        home=relative(DOCS / "index.md", page.source), menu=_menu(page, parts), body=body,
        contents="".join(f'<li><a href="#{s.anchor}">{escape(s.title)}</a></li>' for s in contents),
        kind="front" if front else "text",
        hidden="" if len(contents) > 1 else " hidden", neighbours=_neighbours(page, parts, order),
    )  # fmt: skip


def _menu(page: Page, parts: list[tuple[str, list[tuple[str, Path]]]]) -> str:
    html = []
    for title, entries in parts:
        items = "".join(
            f'<li><a href="{relative(source, page.source)}"{" aria-current=page" if source == page.source else ""}>'
            f"{escape(name)}</a></li>"
            for name, source in entries
        )
        html.append(f"<h2>{escape(title)}</h2><ul>{items}</ul>")
    return "".join(html)


def _neighbours(page: Page, parts: list[tuple[str, list[tuple[str, Path]]]], order: list[Path]) -> str:
    names = {source: name for _, entries in parts for name, source in entries} | {DOCS / "index.md": "Start"}
    if page.source not in names:
        return ""
    at = order.index(page.source)
    before, after = order[at - 1 : at] if at else [], order[at + 1 : at + 2]
    links = [f'<a rel="prev" href="{relative(s, page.source)}">← {escape(names[s])}</a>' for s in before]
    links += [f'<a rel="next" href="{relative(s, page.source)}">{escape(names[s])} →</a>' for s in after]
    return "".join(links)


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out: Path = parser.parse_args().out
    if (out / "index.html").exists():  # a site from before, pages of which may be gone
        shutil.rmtree(out)
    written = build(out)
    print(f"{len(written)} pages: {os.path.relpath(out / 'index.html')}", file=sys.stderr)


if __name__ == "__main__":
    main()
