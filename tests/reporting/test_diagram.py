"""The architecture's picture: every block in it, shares that add up, nothing outside of the frame."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from plait.model.cost import model_cost
from plait.reporting.diagram import (
    Box,
    Group,
    diagram,
    embedding_boxes,
    fold,
    leaves,
    mixer_colours,
    output_boxes,
    tint,
)

SPECS = (
    "par-base",
    "bert-base",
    "mad-striped-gla-moe",
    "lts-gpt2-titanxp-M12",
    "d=32 vocab=9 | identity",
    "d=64 vocab=9 | (((gla swiglu)x3 attn mlp)x2 fox moe)x2 mamba",
)


def drawn(spec: str, **more: str) -> ElementTree.Element:
    return ElementTree.fromstring(diagram(model_cost(spec, seq=64, memory=32), **more))


def hints(root: ElementTree.Element) -> list[tuple[ElementTree.Element, str]]:
    return [(rect, rect.findtext("{*}title", "")) for rect in root.iterfind(".//{*}rect[{*}title]")]


def test_repeats_are_folded() -> None:
    group, last = fold(model_cost("par-base"))
    assert isinstance(group, Group)
    assert isinstance(last, Box)
    assert group.count == 6
    assert [(box.mixer, box.count, box.copies) for box in leaves([group])] == [("xl-attn", 1, 6), ("mlp", 3, 18)]
    assert (last.mixer, last.count, last.copies) == ("mlp", 8, 8)
    said = [text.text for text in drawn("par-base").iterfind(".//{*}text")]
    assert [text for text in said if text and text.startswith("×")] == ["×6", "×3", "×8"]


@pytest.mark.parametrize("spec", SPECS)
def test_boxes_hold_the_whole_model(spec: str) -> None:
    cost = model_cost(spec, seq=64, memory=32)
    blocks = list(leaves(fold(cost)))
    boxes = [*embedding_boxes(cost), *blocks, *output_boxes(cost)]
    assert sum(box.copies for box in blocks) == len(cost.arch.layers)
    assert sum(box.params * box.copies for box in boxes) == cost.total_params
    assert sum(box.flops * box.copies for box in boxes) == cost.flops


@pytest.mark.parametrize("spec", SPECS)
def test_every_block_is_drawn_in_its_mixers_colour(spec: str) -> None:
    cost, found = model_cost(spec, seq=64, memory=32), dict[str, int]()
    colours = mixer_colours(cost)
    assert len(set(colours.values())) == len(colours)
    for rect, hint in hints(drawn(spec)):
        copies, times, text = hint.partition("\n")[0].partition(" × ")
        if times:
            mixer = text.partition("[")[0]
            assert (rect.attrib["stroke"], rect.attrib["fill"]) == (colours[mixer], tint(colours[mixer]))
            found[mixer] = found.get(mixer, 0) + int(copies)
    names = [options.name for options in cost.arch.layers]
    assert found == {name: names.count(name) for name in names}


@pytest.mark.parametrize("spec", SPECS)
def test_bars_are_as_long_as_their_shares(spec: str) -> None:
    cost = model_cost(spec, seq=64, memory=32)
    for unit, total in (("parameters", cost.total_params), ("FLOPs", cost.flops)):
        found = [
            (float(rect.attrib["width"]), re.match(rf"([\d,]+) {unit}, ", hint)) for rect, hint in hints(drawn(spec))
        ]
        bars = [(width, int(match[1].replace(",", ""))) for width, match in found if match]
        assert sum(value for _, value in bars) == total
        longest = max(bars)
        assert all(w == pytest.approx(longest[0] * v / longest[1], abs=0.01) for w, v in bars if w > 1.5)


@pytest.mark.parametrize("spec", SPECS)
def test_everything_stays_in_the_frame(spec: str) -> None:
    root = drawn(spec, title="long " * 100)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iterfind(".//{*}rect"):
        x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
    for text in root.iterfind(".//{*}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    boxes = [(float(rect.attrib["y"]), float(rect.attrib["height"])) for rect, hint in hints(root) if "\n" in hint]
    assert all(y + h < following for (y, h), (following, _) in pairwise(boxes)), "boxes overlap"


def test_text_is_escaped_and_nothing_is_fetched() -> None:
    picture = diagram(model_cost("d=32 vocab=9 | mlp"), title="<script>alert('x')</script> & more")
    assert "<script>" not in picture
    assert "&lt;script&gt;alert('x')&lt;/script&gt; &amp; more" in picture
    assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"]


def test_a_tint_is_light() -> None:
    assert tint("#000000") == "#dbdbdb"
    assert tint("#ffffff") == "#ffffff"
