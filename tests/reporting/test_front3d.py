"""Three axes at once: every model is in the cube and in each of the three panels, where its values put it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from plait.core.errors import UserError
from plait.reporting.front import Model, cube_chart, search_cube

SVG = "{http://www.w3.org/2000/svg}"
AXES = ["million parameters", "latency, ms", "memory, MB"]


def circles(picture: str, hint: str) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(picture)
    found = []
    for mark in root.iter():
        title = mark.find(f"{SVG}title")
        if "cx" in mark.attrib and title is not None and title.text == hint:
            found.append((float(mark.attrib["cx"]), float(mark.attrib["cy"])))
    return found


def test_every_model_is_drawn_four_times_and_where_it_belongs() -> None:
    models = [Model((1.0, 10.0, 100.0), "low"), Model((2.0, 10.0, 100.0), "high"), Model((1.0, 30.0, 100.0), "slow"),
              Model((1.0, 10.0, 300.0), "large")]  # fmt: skip
    picture = cube_chart(models, AXES, "a title")
    places = {model.hint: circles(picture, model.hint) for model in models}
    assert {hint: len(found) for hint, found in places.items()} == dict.fromkeys(places, 4)
    (x, y), high, slow, large = places["low"][0], places["high"][0], places["slow"][0], places["large"][0]
    assert high[0] == x
    assert high[1] < y
    assert slow[0] > x
    assert slow[1] > y
    assert large[0] < x
    assert large[1] > y
    assert "var(--" not in picture
    assert all(f"{axis}: " in picture for axis in AXES)


def test_three_axes_are_needed() -> None:
    with pytest.raises(UserError, match="three axes; given: a, b"):
        cube_chart([Model((1.0, 2.0, 3.0))], ["a", "b"], "t")
    with pytest.raises(UserError, match="needs three objectives; this search had decoder_params, flops"):
        search_cube({"objectives": ["max:decoder_params", "min:flops"], "front": [], "over_limit": []})
