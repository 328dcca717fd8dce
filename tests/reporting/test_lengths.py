"""The figure of latency over length: points where they belong, whatever the names."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from plait.reporting.studies import BlockLine, length_chart

LENGTHS = (128, 256, 512, 1024)


def line(name: str, power: float, **more: str) -> BlockLine:
    seconds = [1e-5 * n**power for n in LENGTHS]
    return BlockLine(name, seconds, [0.9 * s for s in seconds], [1.1 * s for s in seconds], **more)


def drawn(*lines: BlockLine) -> ElementTree.Element:
    return ElementTree.fromstring(length_chart(lines, LENGTHS, title="t", below="somewhere"))


def points(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in one.attrib["points"].split())]
        for one in root.iterfind(".//{*}polyline")
    ]


def test_powers_are_straight_lines_of_their_slope() -> None:
    linear, square = points(drawn(line("mlp", 1), line("attn", 2)))
    for some in (linear, square):
        steps = [(x2 - x1, y1 - y2) for (x1, y1), (x2, y2) in pairwise(some)]
        assert all(step == pytest.approx(steps[0], abs=0.03) for step in steps)
    rise = [some[0][1] - some[-1][1] for some in (linear, square)]
    assert rise[1] == pytest.approx(2 * rise[0], abs=0.1)


def test_it_says_what_it_shows_and_escapes_it() -> None:
    root = drawn(line("attn[heads=2] <&>", 1.4, words="k = 1.40"), line("x" * 100, 1))
    said = {text.text or "" for text in root.iterfind(".//{*}text")}
    assert {"t", "somewhere", "attn[heads=2] <&>", "k = 1.40", "128", "1024", "∝ N", "∝ N²"} <= said
    assert "x" * 59 + "…" in said
    hints = [mark.findtext("{*}title", "") for mark in root.iterfind(".//*[{*}title]")]
    assert sum("tokens:" in hint for hint in hints) == 2 * len(LENGTHS)


@pytest.mark.parametrize("power", [-0.5, 0.0, 3.0])
def test_everything_stays_in_the_frame(power: float) -> None:
    root = drawn(line("a", power), line("b", 1))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for some in points(root):
        assert all(0 < x < width and 0 < y < height for x, y in some)
    for one in root.iterfind(".//{*}line"):
        assert all(0 <= float(one.attrib[x]) <= width for x in ("x1", "x2"))
        assert all(0 <= float(one.attrib[y]) <= height for y in ("y1", "y2"))


def test_what_xml_forbids_is_replaced() -> None:
    said = [text.text for text in drawn(line("a\x00b\x1b\ud800\uffff\tc", 1)).iterfind(".//{*}text")]
    assert "a\ufffdb\ufffd\ufffd\ufffd\tc" in said
