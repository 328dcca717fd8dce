"""The page of a design in a real browser, on a desk and on a phone: everything that a reader can do with it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_document import document, entry

from plait.designing.page import report_page

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium on this machine: the page is not looked at in a browser", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PREDICTED = 40


def example() -> dict[str, Any]:
    made = document(
        accuracy={"gla+attn": {"recall": 0.9, "copying": 0.7}, "attn×2": {"recall": 0.5, "copying": 0.5}},
        params={"attn×2": 1_000_000, "gla+attn": 900_000},
        pick="gla+attn",
        equals=["gla+attn"],
        entropy=1.4,
        foresight=[
            {"tokens": tokens, "best": "gla+attn", "p_best": {"attn×2": 0.4, "gla+attn": 0.6}} for tokens in (1e6, 4e6)
        ],
    )
    made["candidates"][0]["latency_ms"] = {**entry(15.0, 14.0), "noisy": False}
    made["pick"] = made["candidates"][1]
    made["predicted_front"] = [
        {
            "spec": f"d={16 + 8 * i} vocab=256 | (attn[heads=2] swiglu)x{1 + i % 5}",
            "decoder_params": 20_000 * (i + 1),
            "latency_ms": entry(None, 0.5 * (i + 1)),
            "memory_mb": entry(None, 2.0 + i),
        }
        for i in range(PREDICTED)
    ]
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_page(example()), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(params=[DESK, PHONE], ids=["desk", "phone"])
def page(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Opened, with nothing asked of anybody and nothing complained about in the end."""
    touch = request.param is PHONE
    context = browser.new_context(viewport=request.param, has_touch=touch, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    opened.on("request", lambda one: asked.append(one.url))
    opened.on("pageerror", lambda one: wrong.append(str(one)))
    opened.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
    opened.goto(address)
    yield opened
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
    assert wrong == []
    context.close()


def plot(page: Any, title: str) -> Any:
    return page.locator(f"figure.plot:has(svg[aria-label='{title}'])")


def sizes(page: Any, what: str = "latency") -> Any:
    return plot(page, f"Parameters of the layers against {what}")


def test_the_verdict_is_one_line_and_the_reasons_are_points(page: Any) -> None:
    assert page.locator(".advice .verdict").inner_text() == "Take it."
    assert page.locator(".advice .points li").all_inner_texts() == [
        "It is the best.",
        "Limits: latency 19 of 20 ms, attn[heads=4] and all.",
    ]


def test_what_is_drawn_of_how_many(page: Any) -> None:
    words = sizes(page).locator(".drawn").inner_text()
    # Two candidates, one measured from the front, those predicted; the search found 900.
    assert f"{PREDICTED + 3} of the 900 models" in words
    assert f"3 measured, {PREDICTED} predicted only" in words
    assert sizes(page).locator(".mark").count() == PREDICTED + 3


def test_the_step_line_and_its_limit(page: Any) -> None:
    """A model beyond the limit of one chart is dimmed in the other, too."""
    assert sizes(page).locator("polyline.step").count() == 1
    assert "Largest within the limits: attn×2, 1 million" in sizes(page).locator(".drawn").inner_text()
    slider = sizes(page).locator("input[type=range]")
    slider.fill("10.025")
    slider.dispatch_event("input")
    assert "0.4 million" in sizes(page).locator(".drawn").inner_text()  # 0.5 (i + 1) ms and 20,000 (i + 1) parameters
    beyond = PREDICTED - 20 + 2  # and both candidates
    assert sizes(page).locator(".mark.dim").count() == beyond
    assert sizes(page, "memory").locator(".mark.dim").count() == beyond


def test_the_legend_hides_a_series_in_every_chart(page: Any) -> None:
    curves = plot(page, "Learning curves").locator("polyline.line")
    assert curves.count() == 2
    first = page.locator(".legend button", has_text="attn×2").first
    first.click()
    assert first.get_attribute("aria-pressed") == "false"
    assert curves.count() == 1
    assert plot(page, "P(best) against tokens").locator("polyline.line").count() == 1
    assert sizes(page).locator(".mark").count() == PREDICTED + 2
    page.locator(".legend button", has_text="attn×2").last.click()
    assert curves.count() == 2


def test_zoom(page: Any) -> None:
    marks = sizes(page).locator(".mark")
    whole = marks.count()
    sizes(page).get_by_role("button", name="Zoom in").click()
    assert 0 < marks.count() < whole
    assert f"of the {whole} in view" in sizes(page).locator(".drawn").inner_text()
    sizes(page).get_by_role("button", name="Show all").click()
    assert marks.count() == whole
    sizes(page).scroll_into_view_if_needed()
    box = sizes(page).locator("svg").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)  # nothing is there, the upper left corner
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 240, steps=4)
    page.mouse.up()
    assert 0 < marks.count() < whole
    ticks = [float(words) for words in sizes(page).locator("text.tick[text-anchor=middle]").all_text_contents()]
    assert len(ticks) >= 2
    page.mouse.dblclick(box["x"] + 80, box["y"] + 60)
    assert marks.count() == whole


def test_tables_are_sorted(page: Any) -> None:
    table = page.locator("table[data-name=candidates]")
    params = table.locator("th", has_text="params")

    def first() -> str:
        return str(table.locator("tbody tr").first.inner_text())

    params.locator("button").click()
    assert params.get_attribute("aria-sort") == "descending"
    assert "attn×2" in first()  # 1 M against 900 k
    params.locator("button").click()
    assert params.get_attribute("aria-sort") == "ascending"
    assert "gla+attn" in first()


def test_bars_say_their_numbers_and_light_up_elsewhere(page: Any) -> None:
    bar = page.locator("svg.chart rect[data-key]").first
    bar.scroll_into_view_if_needed()
    bar.hover()
    assert "gla+attn\nmean: 0.80 (0.78–0.82)" in page.locator("#tip").inner_text()
    key = bar.get_attribute("data-key")
    for what in (sizes(page).locator(".mark.lit"), plot(page, "Learning curves").locator("polyline.line.lit")):
        assert {what.nth(i).get_attribute("data-key") for i in range(what.count())} == {key}
    assert page.locator("table[data-name=race] tr.lit").count() == 1


def test_a_mark_lights_its_row(page: Any) -> None:
    mark = sizes(page).locator(".mark[data-key^='d=64']").last
    mark.hover()
    rows = page.locator("table[data-name=candidates] tr.lit")
    assert rows.count() == 1
    assert rows.first.get_attribute("data-key") == mark.get_attribute("data-key")


def test_copying(page: Any) -> None:
    page.locator(".advice").get_by_label("Copy the spec").click()
    assert page.evaluate("navigator.clipboard.readText()") == example()["pick"]["spec"]
    page.locator(".advice").get_by_label("Copy the command").click()
    assert page.evaluate("navigator.clipboard.readText()") == example()["next"][0]["command"]
    page.get_by_label("Copy the command").nth(1).click()
    assert page.evaluate("navigator.clipboard.readText()") == "plait design --latency 20ms"


def test_the_data_can_be_saved(page: Any, tmp_path: Path) -> None:
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download all of it").click()
    assert saved.value.suggested_filename == "design.json"
    saved.value.save_as(tmp_path / "design.json")
    assert json.loads((tmp_path / "design.json").read_text(encoding="utf-8")) == json.loads(json.dumps(example()))
    with page.expect_download() as saved:
        page.locator("div:has(> table[data-name=race]) .take").click()
    saved.value.save_as(tmp_path / "race.csv")
    head, first, *_ = (tmp_path / "race.csv").read_text(encoding="utf-8").splitlines()
    assert head.startswith("candidate,trained tokens,forecast at,nats forecast")
    assert first.startswith("gla+attn | d=64 vocab=256 | gla[heads=2]")


def test_a_point_opens_its_drawing_and_cost(page: Any) -> None:
    mark = sizes(page).locator(".mark[data-key^='d=16 vocab=256 | (attn']")
    mark.click()
    sheet = page.locator("dialog[open]")
    sheet.locator(".drawing svg").wait_for()
    words = sheet.inner_text()
    assert "d=16 vocab=256 | (attn[heads=2] swiglu)x1" in words
    assert "latency, predicted" in words
    assert "KV cache after 256 tokens" in words
    assert "swiglu)x1' --data builtin:stdlib --time 10m" in words  # a command that runs as it is
    assert "attn" in sheet.locator(".drawing svg").inner_html()
    sheet.locator(".copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == mark.get_attribute("data-key")
    page.keyboard.press("Escape")
    assert sheet.count() == 0


def test_a_row_opens_it_too_and_so_does_the_keyboard(page: Any) -> None:
    page.locator("table[data-name=candidates] tbody tr td").first.click(position={"x": 5, "y": 5})
    page.locator("dialog[open] .drawing svg").wait_for()
    assert page.locator("dialog[open] h3").inner_text() == "gla+attn"
    page.keyboard.press("Escape")
    sizes(page).locator(".mark[tabindex='0']").focus()
    page.keyboard.press("End")  # to the last one, 20 ms
    assert page.evaluate("document.activeElement.dataset.x") == "20"
    assert "predicted 20 (18 to 22) ms" in page.locator("#tip").inner_text()
    page.keyboard.press("Enter")
    page.locator("dialog[open] .drawing svg").wait_for()


def test_few_stops_of_the_tab_key(page: Any) -> None:
    """One for each group, however many marks or rows it has."""
    stops = page.evaluate(
        """() => [...document.querySelectorAll("a, button, input, summary, [tabindex]")].filter(
             (one) => one.tabIndex >= 0 && one.checkVisibility() && !one.closest("details:not([open]) > :not(summary)")
           ).length"""
    )
    charts = page.locator(".chart").count()
    # Of a chart its marks, its zoom and its limit; of a table, a legend, a copy button and a fold one each.
    most = 3 * charts + page.locator("table, .legend, summary, .taken, [data-take]").count()
    assert stops <= most
    assert page.locator(".mark").count() > 80


def test_nothing_is_cut_off_and_letters_can_be_read(page: Any) -> None:
    width = page.viewport_size["width"]
    for fold in page.locator("summary").all():
        fold.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    hidden = page.evaluate(
        """() => [...document.querySelectorAll("table, .scroll, .card, pre, code")].filter(
             (one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline"
                      && one.clientWidth > 0).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert hidden == []
    small = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((one) => one.childNodes.length &&
             [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && one.checkVisibility()
             && !one.matches("title, script, style")).map((one) => {
               const size = parseFloat(getComputedStyle(one).fontSize);
               const picture = one.ownerSVGElement;
               const scale = picture ? picture.getBoundingClientRect().width / picture.viewBox.baseVal.width : 1;
               return [size * scale, one.textContent.slice(0, 30)]; }).filter(([size]) => size < 11)"""
    )
    assert small == []
    sizes(page).locator(".mark").first.click()
    page.locator("dialog[open] .drawing svg").wait_for()
    drawing = page.evaluate(
        """() => { const picture = document.querySelector(".drawing svg");
             const scale = picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
             return [picture.getBoundingClientRect().right, Math.min(...[...picture.querySelectorAll("text")].map(
               (one) => scale * parseFloat(getComputedStyle(one).fontSize)))]; }"""
    )
    assert drawing[0] <= width
    assert drawing[1] >= 11


def test_names_are_only_text(browser: Any, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror='window.hit=1'><script>window.hit=1</script>"
    given = copy.deepcopy(example())
    for row in (*given["candidates"], *given["race"]["architectures"], *given["probe"]["architectures"], given["pick"]):
        for name in ("pattern", "name", "spec"):
            if row.get(name) in ("attn×2", example()["candidates"][0]["spec"]):
                row[name] = bad
    for row in given["foresight"]:
        row["p_best"] = {bad if name == "attn×2" else name: value for name, value in row["p_best"].items()}
    given["points"] = [bad, bad]
    path = tmp_path / "report.html"
    path.write_text(report_page(given), encoding="utf-8")
    opened = browser.new_page()
    opened.goto(path.as_uri())
    assert bad in opened.locator(".verdict").inner_text()
    for mark in opened.locator("figure .mark[aria-label*='onerror']").all():
        mark.hover()
    opened.locator("figure .mark[aria-label*='onerror']").first.click()
    opened.locator("dialog[open]").wait_for()
    assert opened.evaluate("window.hit") is None
    assert opened.locator("img").count() == 0
    opened.close()
