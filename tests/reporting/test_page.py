"""A page is one whole document that loads nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.reporting.page import card, code, folded, legend, note, page, section, sentence, table, tiles, write

VOID = ("meta", "link", "img", "br", "hr", "input")


class Balanced(HTMLParser):
    """Fails where a tag is not closed, or closed that was not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(name)
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


def whole() -> str:
    made = table(("model", ">ms"), [[code("a <b>", "mix & match"), "1.5"], ["c", "2"]], chosen=1)
    return page("T <x>", section("S", note("n"), card(made, title="C"), folded("more", "x"), tiles([("a", "b", "c")])))


def test_it_is_well_formed() -> None:
    read = Balanced(whole())
    assert read.seen.count("tr") == 3
    assert whole().startswith("<!DOCTYPE html>")
    assert "T &lt;x&gt;" in whole()
    assert "mix &amp; match" in whole()


def test_it_loads_nothing() -> None:
    text = whole()
    assert not re.search(
        r"""https?://|\ssrc=|@import|url\((?!#)|<link""", text.replace("http://www.w3.org/2000/svg", "")
    )
    assert "default-src 'none'" in text


def test_numbers_stand_to_the_right_and_the_chosen_row_is_marked() -> None:
    text = whole()
    assert '<th class="right" scope="col">ms</th>' in text
    assert '<tr class="chosen"><td class="left">c</td>' in text


def test_a_sentence_keeps_the_name_that_it_begins_with() -> None:
    """A probe's page spoke of the mixer "My-mixer"."""
    assert sentence("my-mixer: state not matched") == "my-mixer: state not matched."
    assert sentence("trainings were cut: give more time") == "Trainings were cut: give more time."


def test_light_and_dark_know_the_same_colours() -> None:
    text = whole()
    used = set(re.findall(r"var\((--\w+)\)", text))
    light, dark = text.split("prefers-color-scheme: dark")[:2]
    for name in used | {f"--s{number}" for number in range(8)} | {"--none", "--limit", "--beyond"}:
        assert f"{name}:" in light, name
        assert f"{name}:" in dark.split("* { box-sizing")[0], name


def test_a_legend_names_its_swatches() -> None:
    from plait.reporting.axes import swatch

    assert [item[0].tail for item in legend([(swatch(0), "one"), (swatch(None), "two")])] == ["one", "two"]


def test_writing(tmp_path: Path) -> None:
    write(tmp_path / "new" / "report.html", whole())
    assert (tmp_path / "new" / "report.html").read_text(encoding="utf-8") == whole()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "file" / "report.html", "")


def test_a_failed_write_leaves_the_old_page_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "half a character: \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


def test_an_empty_cell_has_no_label_on_a_phone() -> None:
    """Each cell is told apart by its column there; a label of nothing reads as one that is cut off."""
    made = page("title", table(("name", ">loss", ">difference"), [["a", "1.0", ""], ["b", "1.1", "+0.1"]]))
    assert re.findall(r'data-label="(\w+)"', made) == ["loss", "loss", "difference"]
