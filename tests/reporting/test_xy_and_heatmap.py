"""Pictures are well-formed, hold what they were given, and stay inside their frame."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from plait.reporting.axes import FILE, Axis
from plait.reporting.charts import Panel, Series, figure, hint_of, xy_chart
from plait.reporting.heat_maps import Matrix, heat_map, matrices
from plait.reporting.svg import Scale, label, labels, png, round_numbers, shade

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: str) -> ElementTree.Element:
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def chart(*curves: Series, **options: object) -> ElementTree.Element:
    given = {"title": "Loss <by> position & run", "x": Axis("i"), "y": Axis("L(i)"), **options}
    return parsed(xy_chart(curves, **given))  # type: ignore[arg-type]


def test_a_chart_names_its_curves_and_axes() -> None:
    root = chart(
        Series("FoX <Pro>", [512, 1024, 2048], [3.0, 2.5, 2.2]),
        Series("a & b", [512, 2048], [3.1, 9.0]),
        x=Axis("i", log=True),
    )
    said = words(root)
    assert {"Loss <by> position & run", "i", "L(i)", "FoX <Pro>", "a & b", "512", "1024", "2048"} <= set(said)
    assert len(list(root.iter(f"{SVG}polyline"))) == 2


def test_points_lie_where_they_should() -> None:
    root = chart(Series("", [1, 2, 4], [0.0, 1.0, 2.0]), x=Axis("i", log=True))
    (line,) = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    across = np.diff([x for x, _ in points])
    down = np.diff([y for _, y in points])
    assert across[0] == pytest.approx(across[1], abs=0.02)  # doublings are equally wide
    assert down[0] == pytest.approx(down[1], abs=0.02)
    assert down[0] < 0  # more is higher


def test_everything_stays_in_the_frame() -> None:
    many = [Series(f"a run with a long name, number {k}", [1, 10], [k, 2 * k]) for k in range(12)]
    root = chart(*many, marker=5, marker_label="trained length")
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for line in root.iter(f"{SVG}polyline"):
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 < x < width
            assert 0 < y < height
    placed = [(float(t.attrib["x"]), float(t.attrib["y"])) for t in root.iter(f"{SVG}text")]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in placed)
    assert len(set(placed)) == len(placed)  # no two labels on one place
    assert "trained length" in words(root)


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [Series("one point", [3], [2.0])],
        [Series("flat", [1, 2, 3], [2.0, 2.0, 2.0])],
        [Series("holes", [1, 2, 3], [2.0, math.nan, math.inf])],
        [Series("nothing", [1], [math.nan])],
        [Series("flat and large", [1, 2], [1e304, 1e304])],
    ],
)
@pytest.mark.parametrize("log_x", [False, True])
def test_odd_curves_are_drawn(curves: list[Series], log_x: bool) -> None:
    picture = xy_chart(curves, title="t", x=Axis("x", log=log_x), y=Axis("y"))
    parsed(picture)
    assert "nan" not in picture
    assert "inf" not in picture


def test_a_grid_writes_its_values() -> None:
    values = np.array([[0.0, 0.25], [1.0, math.nan]])
    ticks = {"x_ticks": ["10", "20"], "y_ticks": ["0%", "100%"], "marker": 1, "marker_label": "trained length"}
    root = parsed(heat_map(values, title="Needle", x_label="length", y_label="depth", **ticks))  # type: ignore[arg-type]
    assert {"0", "0.25", "1", "–", "10", "20", "0%", "100%", "trained length"} <= set(words(root))
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert len(cells) == 4
    assert cells[0].attrib["fill"] == shade(0.0)
    assert cells[2].attrib["fill"] == shade(1.0)


def test_matrices_are_bitmaps_of_their_values() -> None:
    values = np.tril(np.ones((7, 5)))
    panels = [Matrix("F", values), Matrix("A", values * 0.5)]
    root = parsed(matrices(panels, title="t", x_label="key", y_label="query", columns=2))
    first, second, _ramp = root.iter(f"{SVG}image")
    pixels = decoded(first.attrib["href"])
    assert pixels.shape == (7, 5, 3)
    assert (pixels[0, 0] == pixels[6, 0]).all()
    assert (pixels[0, 4] != pixels[0, 0]).any()
    assert (decoded(second.attrib["href"])[0, 0] != pixels[0, 0]).any()


def decoded(href: str) -> np.ndarray:
    """A PNG of ours back into pixels, checksums and all."""
    data = base64.b64decode(href.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = {}, 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == int.from_bytes(data[at + 8 + size : at + 12 + size], "big")
        parts[kind] = body
        at += 12 + size
    columns, rows = (int.from_bytes(parts[b"IHDR"][i : i + 4], "big") for i in (0, 4))
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), dtype=np.uint8).reshape(rows, 1 + 3 * columns)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(rows, columns, 3)


def test_a_bitmap_comes_back() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(6, 9, 3)).astype(np.uint8)
    href = "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
    assert np.array_equal(decoded(href), pixels)


@pytest.mark.parametrize(
    ("low", "high", "first", "last"), [(0, 1, 0, 1), (2.13, 2.19, 2.13, 2.19), (0, 65536, 0, 60000), (-3, 7, -2, 6)]
)
def test_round_numbers_fill_the_range(low: float, high: float, first: float, last: float) -> None:
    found = round_numbers(low, high)
    assert 4 <= len(found) <= 8
    assert found[0] == pytest.approx(first)
    assert found[-1] == pytest.approx(last)


def test_labels_are_short() -> None:
    assert [label(v) for v in (0.25, 512, 16000, 65536, 2e20)] == ["0.25", "512", "16k", "65.536k", "2e20"]
    assert labels([3e12, 1e13, 1e16]) == ["3e12", "1e13", "1e16"]  # one axis, one way
    assert labels([0.5, 16000, 3e12]) == ["0.5", "16k", "3T"]
    assert Scale(512, 65536, 0, 1, log=True).ticks()[0] == 512


def test_what_is_extrapolated_is_shaded() -> None:
    panel = Panel([Series("law", [1e12, 1e16], [2.0, 1.0])], Axis("FLOPs", log=True), known_to=1e14)

    def widths(panel: Panel) -> list[float]:
        found = parsed(figure([panel], title="laws")).iter(f"{SVG}rect")
        return [float(one.get("width", 0)) for one in found if one.get("fill") == FILE.shade]

    (half,), (whole,) = widths(panel), widths(replace(panel, known_to=1e9))
    assert half == pytest.approx(whole / 2)
    assert widths(replace(panel, known_to=1e17)) == widths(replace(panel, known_to=None)) == []


def test_an_interval_that_reaches_below_zero_ends_at_a_logarithmic_axis() -> None:
    series = Series("noisy", [1, 2], [1.0, 2.0], low=[-0.5, 1.5], high=[3.0, 2.5])
    assert "noisy" in xy_chart([series, series], title="t", x=Axis("x"), y=Axis("y", log=True))


def test_a_series_may_choose_its_number_its_width_and_its_marks() -> None:
    points = [(1.0, 2.0), (2.0, 3.0)]
    root = chart(Series.of("raw", points, thin=True, marks=False, number=3), Series.of("smooth", points, number=3))
    raw, smooth = root.iter(f"{SVG}polyline")
    assert raw.attrib["stroke"] == smooth.attrib["stroke"] == FILE.series[3]
    assert (raw.attrib["stroke-width"], smooth.attrib["stroke-width"]) == ("1", "2")
    hints = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert [hint.splitlines()[0] for hint in hints if "i: " in hint] == ["smooth", "smooth"]


def test_a_short_tooltip_has_the_interval_and_the_unit() -> None:
    series = Series("gla", [1e6, 2e6], [2.0, 1.5], low=[2.0, 1.25], high=[2.0, 1.75])
    panel = Panel([series], unit="tokens")
    assert [hint_of(series, i, panel) for i in (0, 1)] == [
        "gla: 2.000\ntokens 1,000,000",
        "gla: 1.500 (1.250 to 1.750)\ntokens 2,000,000",
    ]
