"""Whatever goes in, a browser reads it as text."""

from __future__ import annotations

from html.parser import HTMLParser

from plait.reporting.page import add, tag, text_of

HOSTILE = "<script>alert('&')</script> \"quoted\""


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_text_and_attributes_are_escaped() -> None:
    read = Reader(text_of(tag("p", HOSTILE, title=HOSTILE)))
    assert read.tags == [("p", {"title": HOSTILE})]
    assert read.text == HOSTILE


def test_children_keep_their_order() -> None:
    made = tag("p", "a", tag("b", "b"), "c", "d", tag("i", "e"), "f")
    assert text_of(made) == "<p>a<b>b</b>cd<i>e</i>f</p>"
    assert text_of(add(tag("p"), "x", "y")) == "<p>xy</p>"


def test_attribute_names() -> None:
    assert text_of(tag("td", class_="right", aria_label="x", tabindex=0)) == (
        '<td class="right" aria-label="x" tabindex="0"></td>'
    )
