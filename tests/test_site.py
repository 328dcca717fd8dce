"""The site that docs/build.py writes: links lead somewhere, nothing is loaded from outside, a browser can use it."""

from __future__ import annotations

import importlib
import shutil
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
site = importlib.import_module("build")


@dataclass
class Read:
    """What a page has: places to go to, links, and what a browser loads with it."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.page = Read()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.page.ids.add(given.get("id", ""))
        if tag == "a":
            self.page.links.append(given.get("href", ""))
        elif loaded := given.get("src") or (given.get("href") if tag == "link" else ""):
            self.page.loads.append(loaded)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    site.build(out)
    return out


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[Path, Read]:
    return {path: Reader(path.read_text(encoding="utf-8")).page for path in folder.rglob("*.html")}


def test_links_lead_somewhere(pages: dict[Path, Read]) -> None:
    lost = []
    for path, page in pages.items():
        for link in page.links:
            if link.startswith(("http:", "https:")):
                continue
            file, anchor = urldefrag(link)
            target = (path.parent / unquote(file)).resolve() if file else path
            known = target in pages and (not anchor or unquote(anchor) in pages[target].ids)
            if not (known or (target.is_file() and not anchor)):
                lost.append(f"{path.name}: {link}")
    assert not lost


def test_a_link_into_nowhere_is_refused(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"
    token = site.MarkdownIt().parse("[x](gone.md)")[1]
    with pytest.raises(SystemExit, match=r"docs/index.md: gone.md leads nowhere"):
        list(site._point_links(token, page))


def test_nothing_is_loaded_from_outside(folder: Path, pages: dict[Path, Read]) -> None:
    for path, page in pages.items():
        for loaded in page.loads:
            assert loaded == "data:," or (path.parent / loaded).is_file(), f"{path.name}: {loaded}"
        assert "default-src 'none'" in path.read_text(encoding="utf-8"), path
    for name in ("site.css", "site.js"):
        text = (folder / "theme" / name).read_text(encoding="utf-8")
        assert not [word for word in ("http", "@import", "url(", "fetch(") if word in text], name


def test_headings_that_repeat_have_places_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "p.md"
    page.write_text("# T\n\n## Same `x`\n\na\n\n## Same `x`\n\n<script>alert(1)</script>\n\n```text\n<b>\n```\n")
    read = site.read_page(page)
    assert [section.anchor for section in read.sections] == ["", "t", "same-x", "same-x-1"]
    assert "<script>" not in read.body
    assert "&lt;b&gt;" in read.body


@pytest.mark.slow
def test_a_browser_finds_its_way(folder: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (1400, 390):
            page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="dark").new_page()
            said: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on(
                "request", lambda asked, said=said: asked.url.startswith(("file:", "data:")) or said.append(asked.url)
            )
            for path in sorted(folder.rglob("*.html")):
                page.goto(path.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            page.goto((folder / "index.html").as_uri())
            if width < 800:
                assert not page.locator("#menu").is_visible()
                page.click(".menu")
            assert page.locator("#menu").is_visible()
            page.keyboard.press("/")
            page.keyboard.type("forgetting attention")
            page.wait_for_selector("#found a")
            page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
            page.wait_for_url("**/*.html#*")
            before = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.click(".theme")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
            assert said == []
        browser.close()
