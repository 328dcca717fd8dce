"""Charts hold what they were given, in the frame, and say it when pointed at."""

from __future__ import annotations

import math
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from plait.reporting.axes import Axis, colour, shape, swatch
from plait.reporting.charts import WIDE, Bar, Panel, Series, bars, inline_panel, series_numbers
from plait.reporting.plots import Mark, scatter


def words(chart: Element) -> list[str]:
    return [found.text or "" for found in chart.iter("text")]


def hints(chart: Element) -> list[str]:
    return [found.text or "" for mark in chart for found in mark.iter("title") if mark is not found]


def drawn(marks: list[Mark], limit: float | None = None) -> Element:
    return scatter(marks, title="t", x_label="ms", y_label="params", limit=limit, limit_label="limit")


def curves(series: list[Series], x: Axis, **options: Any) -> Element:
    panel = Panel(series, x, Axis("nats"), "t", **options)
    return inline_panel(panel, series_numbers([panel]), WIDE)


def test_marks_stand_where_their_numbers_say() -> None:
    chart = drawn([Mark(10, 1, 0, "a"), Mark(20, 1, 0, "b"), Mark(30, 2, 0, "c")], limit=25)
    at = {mark[0].text: (float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in chart.iter("circle")}
    assert at["b"][0] - at["a"][0] == pytest.approx(at["c"][0] - at["b"][0], abs=0.02)
    assert at["a"][1] == at["b"][1] > at["c"][1]  # more is higher
    dashed = [float(line.attrib["x1"]) for line in chart.iter("line") if "stroke-dasharray" in line.attrib]
    assert dashed == [pytest.approx((at["b"][0] + at["c"][0]) / 2, abs=0.02)]
    assert hints(chart) == ["a", "b", "c"]


def test_a_limit_out_of_sight_is_told() -> None:
    chart = drawn([Mark(10, 1)], limit=1000)
    assert not [line for line in chart.iter("line") if "stroke-dasharray" in line.attrib]
    assert "limit, far beyond →" in words(chart)


def test_the_chosen_one_is_ringed_and_on_top() -> None:
    chart = drawn([Mark(1, 1, 0, "pick", chosen=True), Mark(2, 2, 1, "other"), Mark(3, 3, hint="grey", measured=False)])
    assert hints(chart) == ["grey", "other", "pick"]
    hollow = [mark.attrib["fill"] for mark in chart.iter("circle") if len(mark) and mark[0].text == "grey"]
    assert hollow == ["var(--card)"]


def test_series_differ_in_shape_and_colour() -> None:
    assert len({(shape(series), colour(series)) for series in range(8)}) == 8
    assert len({shape(series) for series in range(5)}) == 5
    assert colour(None) not in {colour(series) for series in range(8)}
    assert swatch(1).attrib["aria-hidden"] == "true"


def test_bars_show_value_and_interval() -> None:
    chart = bars(
        [Bar("attn", 0.5, (0.4, 0.7), 0), Bar("a very long name of a mix of many mixers", 1.0, (0.9, 1.0), 1)],
        title="t",
    )
    said = words(chart)
    assert "0.50" in said
    assert "1.00" in said
    assert any(word.startswith("a very long") and word.endswith("…") for word in said)
    assert hints(chart)[0] == "attn: 0.50 (0.40 to 0.70)"
    whisker = next(line for line in chart.iter("line") if line.attrib["stroke"] == "var(--ink)")
    filled = [rect for rect in chart.iter("rect") if len(rect)]
    start, wide = float(filled[0].attrib["x"]), float(filled[0].attrib["width"])
    left, right = float(whisker.attrib["x1"]), float(whisker.attrib["x2"])
    assert (left - start) / wide == pytest.approx(0.4 / 0.5, abs=0.01)
    assert (right - start) / wide == pytest.approx(0.7 / 0.5, abs=0.01)


def test_curves_and_their_floor() -> None:
    series = [
        Series.of("train", [(1, 5.0), (2, math.nan), (3, 2.0)], number=0, marks=False),
        Series.of("held out", [(3, 2.5)], number=1, marks=True),
    ]
    chart = curves(series, Axis("steps", low=0.0), floor=1.4, floor_label="true entropy 1.400", unit="step")
    assert "true entropy 1.400" in words(chart)
    assert hints(chart) == ["held out: 2.500\nstep 3"]
    line = next(chart.iter("polyline"))
    assert len(line.attrib["points"].split()) == 2  # what is no number is left out
    floor = next(line for line in chart.iter("line") if "stroke-dasharray" in line.attrib)
    assert all(float(pair.split(",")[1]) < float(floor.attrib["y1"]) for pair in line.attrib["points"].split())


def test_curves_below_zero() -> None:
    chart = curves([Series.of("score", [(1, -5.0), (2, -2.0)])], Axis("steps", low=0.0))
    low, high = (float(pair.split(",")[1]) for pair in next(chart.iter("polyline")).attrib["points"].split())
    assert 14 < high < low < 264  # pixels of the chart's area


def test_nothing_to_draw() -> None:
    for chart in (drawn([]), bars([], title="t"), curves([], Axis("steps", low=0.0))):
        assert chart.attrib["class"] == "chart"
