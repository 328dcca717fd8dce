"""The picture of a supernet's choices holds what it was given, and stays inside its frame."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from plait.core.errors import UserError
from plait.reporting.studies import CELL, LayerChoices, mixture_chart
from plait.reporting.svg import shade

SVG = "{http://www.w3.org/2000/svg}"
CHOICES = [["attn[heads=4]", "mlp"], ["attn[heads=4]", "mlp", "none"], ["mlp", "none"]]
LIKELY = [[0.9, 0.1], [0.2, 0.5, 0.3], [0.25, 0.75]]


def drawn(*panels: LayerChoices, title: str = "Mixture <of> 3 layers") -> ElementTree.Element:
    return ElementTree.fromstring(mixture_chart(CHOICES, panels, title=title))


def cells(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    hinted = [rect for rect in root.iter(f"{SVG}rect") if len(rect)]
    return {str(rect[0].text): rect for rect in hinted}


def words(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_every_probability_has_its_cell() -> None:
    root = drawn(LayerChoices("seed 0", LIKELY, "sf·"))
    found = cells(root)
    assert len(found) == 7
    assert found["layer 1, attn[heads=4]: 0.900"].attrib["fill"] == shade(0.9)
    assert found["layer 3, none: 0.750"].attrib["fill"] == shade(0.75)
    x = {name: float(rect.attrib["x"]) for name, rect in found.items()}
    y = {name: float(rect.attrib["y"]) for name, rect in found.items()}
    assert x["layer 2, mlp: 0.500"] - x["layer 1, mlp: 0.100"] == pytest.approx(CELL)
    # A choice has its row, whatever its place in the layer's list.
    assert y["layer 2, mlp: 0.500"] == y["layer 3, mlp: 0.250"] > y["layer 2, attn[heads=4]: 0.200"]


def test_letters_stand_under_their_layers() -> None:
    root = drawn(LayerChoices("seed 0", LIKELY, "sf·"))
    at = {text.text: float(text.attrib["x"]) for text in root.iter(f"{SVG}text") if text.text in ("s", "f", "·")}
    assert [at["f"] - at["s"], at["·"] - at["f"]] == pytest.approx([CELL, CELL])
    x = float(cells(root)["layer 1, mlp: 0.100"].attrib["x"])
    assert at["s"] == pytest.approx(x + CELL / 2)


def test_thirds_are_marked() -> None:
    root = drawn(LayerChoices("seed 0", LIKELY, "sf·"))
    start = float(cells(root)["layer 1, mlp: 0.100"].attrib["x"])
    marked = [float(line.attrib["x1"]) - start for line in root.iter(f"{SVG}line")]
    assert marked == [pytest.approx(CELL), pytest.approx(2 * CELL)]


def test_one_panel_a_search_below_each_other() -> None:
    root = drawn(
        LayerChoices("seed 0", LIKELY, "sf·"), LayerChoices("seed 1 & more", [[0, 1], [0, 0, 1], [1, 0]], "f·f")
    )
    assert {"seed 0", "seed 1 & more", "Mixture <of> 3 layers", "attn[heads=4]"} <= set(words(root))
    first, second = (float(cells(root)[f"layer 3, mlp: {value}"].attrib["y"]) for value in ("0.250", "1.000"))
    assert second > first + 40
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= height


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(UserError, match="seed 3: there should be one probability"):
        drawn(LayerChoices("seed 3", LIKELY[:2], "sf·"))
    with pytest.raises(UserError, match="3 layers, but 2 letters"):
        drawn(LayerChoices("seed 3", LIKELY, "sf"))
