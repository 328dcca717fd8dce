"""Pages of a comparison and of scaling laws in a real browser: they can do what a design's page can."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.records.comparison import ComparisonResult
from plait.reporting.axes import Axis, swatch
from plait.reporting.charts import Panel, Series, series_numbers
from plait.reporting.comparison import comparison_page
from plait.reporting.page import card, legend, page, table
from plait.reporting.plots import panel_plot

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium on this machine: pages are not looked at in a browser", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")

SPECS = {"attn": "d=16 vocab=256 | attn[heads=2] swiglu", "gla": "d=16 vocab=256 | gla[heads=2] swiglu"}


def compared() -> dict[str, Any]:
    rows = [
        {"name": name, "spec": spec, "loss": 3.0 + at, "interval": [2.9 + at, 3.1 + at], "p_best": 0.9 - 0.8 * at,
         "lr": 0.002, "tokens": 4000, "params": 5000 + at, "flops_per_token": 1e4, "seeds": 2, "diverged": 0,
         "curve": [[1000, 3.6 + at], [2000, 3.2 + at], [4000, 3.0 + at]], "rates": {"0.002": 3.0 + at}}
        for at, (name, spec) in enumerate(SPECS.items())
    ]  # fmt: skip
    pair = {"a": "attn", "b": "gla", "difference": -1.0, "interval": [-1.2, -0.8], "verdict": "attn"}
    return {
        "verdict": "attn is best", "data": "builtin:language", "equal": "tokens", "batch": 2, "seq_len": 16,
        "noise": 0.02, "notes": [], "architectures": rows, "paired": [pair], "cost": {"trained_seconds": 3.0},
        "foresight": [{"tokens": tokens, "p_best": {"attn": 0.9, "gla": 0.1}} for tokens in (2000, 8000)],
        "foresight_text": "attn at all of them",
    }  # fmt: skip


def laws() -> str:
    """Two panels of one legend, one of them on two logarithmic axes with intervals, as a page of scaling laws has."""
    sizes = np.geomspace(1e6, 1e9, 8).tolist()
    first = [Series("1e+15 FLOPs", sizes, [3.0 + 0.1 * i for i in range(8)]), Series("1e+16 FLOPs", sizes, [2.5] * 8)]
    low, high = [size / 2 for size in sizes], [size * 2 for size in sizes]
    second = [Series("1e+15 FLOPs", sizes, sizes, "none", low, high)]
    panels = [
        Panel(first, Axis("parameters", log=True), Axis("loss"), "curves"),
        Panel(second, Axis("FLOPs", log=True), Axis("N*", log=True), "best size", marker=1e8, marker_label="target"),
    ]
    numbers = series_numbers(panels)
    entries = [(swatch(number), name) for name, number in numbers.items()]
    return page("laws", *(card(panel_plot(panel, numbers)) for panel in panels), legend(entries))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(params=[1280, 390])
def visit(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    def opened(text: str) -> Any:
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        found = browser.new_page(viewport={"width": request.param, "height": 900})
        found.on("pageerror", lambda wrong: pytest.fail(str(wrong)))
        found.goto((tmp_path / "page.html").as_uri())
        assert found.evaluate("document.documentElement.scrollWidth") <= request.param
        return found

    return opened


def test_a_comparison(visit: Any) -> None:
    seen = visit(comparison_page(ComparisonResult.from_dict(compared())))
    lines = seen.locator("figure.plot polyline.line")
    assert lines.count() == 4  # two in each of two charts
    seen.locator(".legend button", has_text="gla").first.click()
    assert lines.count() == 2
    seen.locator(".legend button", has_text="gla").first.click()
    seen.locator("figure.plot .mark[data-key=gla]").first.hover()
    assert seen.locator("polyline.line.lit[data-key=gla]").count() == 2
    assert seen.locator("table[data-name=comparison] tr.lit").get_attribute("data-key") == "gla"
    seen.locator("table[data-name=comparison] tbody tr[data-key=gla] td").first.click(position={"x": 4, "y": 4})
    seen.locator("dialog[open] .drawing svg").wait_for()
    assert SPECS["gla"] in seen.locator("dialog[open]").inner_text()
    seen.keyboard.press("Escape")
    with seen.expect_download() as saved:
        seen.get_by_role("button", name="Download all of it").click()
    assert saved.value.suggested_filename == "comparison.json"


def test_one_budget_alone_has_its_place(visit: Any) -> None:
    """Logarithmic axes of a single value."""
    given = compared()
    given["foresight"] = given["foresight"][:1]
    for row in given["architectures"]:
        row["curve"], row["tokens"] = row["curve"][1:2], 2000
    seen = visit(comparison_page(ComparisonResult.from_dict(given)))
    assert seen.locator("figure.plot .mark").count() == 4
    assert seen.locator(".legend button").count() == 4


@pytest.mark.parametrize("sortable", [True, False])
def test_a_table_of_different_quantities_is_saved_and_not_sorted(visit: Any, sortable: bool) -> None:
    """On a phone the law's table began with "sort by value"."""
    rows = [["E", "1.7"], ["N*", "3e8"]]
    seen = visit(page("laws", table(["", ">value"], rows, name="laws", sortable=sortable)))
    head = seen.locator("table[data-name=laws] thead")
    assert head.locator("button").count() == sortable
    assert head.is_visible() == (sortable or seen.viewport_size["width"] > 600)
    with seen.expect_download() as saved:
        seen.get_by_role("button", name="Download this table as CSV").click()
    assert Path(saved.value.path()).read_text() == ",value\nE,1.7\nN*,3e8\n"


def test_scaling_laws(visit: Any) -> None:
    seen = visit(laws())
    assert seen.locator("figure.plot .mark").count() == 24
    seen.locator(".legend button", has_text="1e+15").click()
    assert seen.locator("figure.plot .mark").count() == 8
    seen.locator(".legend button", has_text="1e+15").click()
    second = seen.locator("figure.plot").nth(1)
    ticks = second.locator("text.tick").all_text_contents()
    assert {"10M", "100M", "target"} <= set(ticks)
    second.get_by_role("button", name="Zoom in").click()
    assert 0 < second.locator(".mark").count() < 8
    second.get_by_role("button", name="Show all").click()
    assert second.locator(".mark").count() == 8
