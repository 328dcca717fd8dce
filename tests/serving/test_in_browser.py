"""The dashboard in a real browser, on a desktop and on a phone: every view is drawn, by itself, from here alone."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.records import open_store

from .stored import NASTY, filled, many

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium on this machine: pages are not looked at in a browser", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.slow
SECONDS = 2.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as begun:
        opened = begun.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("browser")
    with filled(made):
        pass
    run = made / "train-0123456789"
    run.mkdir()
    about = {"key": "0" * 32, "data": NASTY, "steps": 100, "config": {"spec": "d=8 vocab=16 | attn[heads=1]"}}
    (run / "run.json").write_text(json.dumps(about))
    log(made, 1, 20)
    return made


def log(folder: Path, first: int, last: int) -> None:
    with (folder / "train-0123456789" / "log.jsonl").open("a") as file:
        for step in range(first, last + 1):
            file.write(json.dumps({"step": step, "loss": 5 - step / 50, "tokens_per_second": 100}) + "\n")


@pytest.fixture(scope="module")
def address(folder: Path, started: Callable[..., str]) -> str:
    return started(folder).rstrip("/")


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["desktop", "phone"])
def visit(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A page, looked at; what it asks of others, says on the console or draws beyond its edge fails the test."""
    width, scheme = request.param
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)

    def opened(path: str, base: str = address) -> Any:
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: wrong.append("an alert"))
        page.on(
            "request", lambda asked: None if asked.url.startswith((base, "data:", "blob:")) else wrong.append(asked.url)
        )
        page.goto(base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        return page

    yield opened
    context.close()
    assert not wrong


def keys(folder: Path, kind: str) -> list[str]:
    with open_store(f"sqlite:///{folder}/plait.db") as store:
        return [record.key for record in store.find(kind)]


def test_every_view_is_drawn(visit: Any, folder: Path) -> None:
    with open_store(f"sqlite:///{folder}/plait.db") as store:
        records = store.find()
    for record in records:
        page = visit(f"/record/{record.key}")
        assert page.locator("h1").inner_text().strip()
        for figure in page.locator("figure").all():
            assert figure.locator("svg").locator("polyline, circle, polygon").count() > 0, record.kind
        page.close()
    for path in ("/", "/records", "/runs", "/run/train-0123456789", "/kind/probe", "/kind/train"):
        visit(path).close()


def test_a_hostile_name_is_text(visit: Any, folder: Path) -> None:
    page = visit(f"/record/{keys(folder, 'compare')[0]}")
    assert NASTY in page.locator("h1").inner_text()
    page.locator("figure.plot .mark").first.hover()
    assert NASTY in page.locator("#tip").inner_text()


def test_a_front_is_filtered_selected_compared_and_turned(visit: Any, folder: Path) -> None:
    page = visit(f"/record/{keys(folder, 'search')[1]}")
    first, cube = page.locator("figure.plot").first, page.locator("figure.cube")
    assert (first.locator(".mark").count(), cube.locator(".mark").count()) == (16, 16)
    page.locator(".chip", has_text="gla").press("Enter")
    assert page.locator(".chip", has_text="with gla").count() == 1
    assert (first.locator(".mark").count(), cube.locator(".mark").count()) == (8, 8)
    page.locator(".chip", has_text="with gla").click()  # without
    assert first.locator(".mark[data-key*=gla]").count() == 0
    page.locator(".chip", has_text="without gla").click()
    assert first.locator(".mark").count() == 16
    before = cube.locator(".mark").first.get_attribute("cx")
    cube.get_by_role("button", name="Turn left").click()
    assert cube.locator(".mark").first.get_attribute("cx") != before
    # Brush: all of the first chart.
    first.get_by_role("button", name="select").click()
    first.locator("svg").evaluate("picture => picture.scrollIntoView({ block: 'center' })")
    box = first.locator("svg").bounding_box()
    page.mouse.move(box["x"] + 48, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + box["height"] - 46, steps=4)
    page.mouse.up()
    page.locator(".compared h3").wait_for()
    chosen = int(page.locator(".compared h3").inner_text().partition(" ")[0])
    assert chosen >= 12
    assert "FLOPs for 64 tokens" in page.locator(".compared").inner_text()
    assert cube.locator(".ring").count() == chosen
    page.locator(".compared").get_by_role("button", name="clear").click()
    assert cube.locator(".ring").count() == 0
    cube.locator(".mark").first.dispatch_event("click")
    page.locator("dialog[open] .drawing svg").wait_for()
    page.locator("dialog[open]").get_by_role("button", name="compare").click()
    page.locator(".compared h3", has_text="1 selected").wait_for()


def test_the_keyboard_reaches_everything(visit: Any, folder: Path) -> None:
    page = visit(f"/record/{keys(folder, 'compare')[0]}")
    seen = set()
    place = "(document.activeElement.closest('figure, .legend, .scroll, .skip') ?? document.body).className"
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate(place))
    assert {"plot", "legend", "scroll", "skip"} <= seen
    page.locator("figure.plot .mark[tabindex='0']").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").is_visible()
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()


def test_records_are_searched_sorted_and_set_side_by_side(visit: Any) -> None:
    page = visit("/records")
    page.get_by_role("searchbox").fill("attn nats")
    page.keyboard.press("Enter")
    page.wait_for_url("**/records?q=attn+nats")
    assert "6 records" in page.locator("h1").inner_text()
    page.locator(".chip", has_text="train").click()
    page.wait_for_url("**kind=train**")
    for box in page.locator("td.pick input").all()[:2]:
        box.check()
    page.get_by_role("button", name="Compare the selected").click()
    page.wait_for_url("**/beside**")
    assert page.locator("figure.plot polyline.line").count() == 2
    assert "recipe.lr" in page.locator("main").inner_text()


def test_a_running_training_is_followed(visit: Any, folder: Path) -> None:
    page = visit("/run/train-0123456789")
    place = page.locator("[data-live]")
    tile = place.locator(".tile", has_text="step").first
    before = int(tile.locator("b").inner_text())
    log(folder, before + 1, before + 10)
    page.locator(".tile b").get_by_text(str(before + 10), exact=True).wait_for(timeout=120_000)
    points = page.evaluate("document.querySelector('figure.plot polyline.line').points.length")
    assert points == before + 10
    overview = visit("/")
    assert overview.locator("[data-live] progress").count() == 1


def test_paper_has_ink_on_white_and_no_controls(visit: Any, folder: Path) -> None:
    page = visit(f"/record/{keys(folder, 'search')[1]}")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("body > nav").is_visible()
    assert not page.locator(".bar").first.is_visible()


def test_an_offline_page_is_the_same_view(visit: Any, folder: Path, browser: Any, address: str, tmp_path: Path) -> None:
    key = keys(folder, "search")[1]
    page = visit(f"/record/{key}")
    with page.expect_download() as taken:
        page.get_by_role("link", name="offline page").click()
    taken.value.save_as(tmp_path / "page.html")
    alone = browser.new_context(offline=True).new_page()
    errors: list[str] = []
    alone.on("pageerror", lambda error: errors.append(str(error)))
    alone.goto((tmp_path / "page.html").as_uri())
    assert alone.locator("figure.plot .mark").count() == page.locator("figure.plot .mark").count()
    assert alone.locator("figure.cube .mark").count() == 16
    alone.locator("figure.cube .mark").first.dispatch_event("click")
    alone.locator("dialog[open] .drawing svg").wait_for()
    assert "Methods" in alone.locator("main").inner_text()
    assert not errors


def test_a_hundred_thousand_records(browser: Any, started: Callable[..., str], tmp_path: Path) -> None:
    """Every view is there within two seconds: while the store is being read, and afterwards."""
    with many(tmp_path, 100_000):
        pass
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        newest = {kind: store.find(kind, limit=1)[0].key for kind in store.kinds()}
    base = started(tmp_path).rstrip("/")
    views = ["/", "/records", "/records?q=gla&sort=value", "/records?kind=probe&sort=seconds&up=1&page=500",
             "/records?q=no-such-word", "/kind/train", "/kind/probe", "/runs",
             f"/beside?key={newest['train']}&key={newest['probe']}",
             *(f"/record/{key}" for key in newest.values())]  # fmt: skip
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    slow = []
    for state in ("reading", "read"):
        while state == "read" and "read so far" in str(page.goto(f"{base}/records").text()):
            time.sleep(0.5)
        for view in views:
            began = time.perf_counter()
            page.goto(base + view)  # until everything is loaded and drawn
            took = time.perf_counter() - began
            print(f"{took:.2f} s {state} {view}")
            if took > SECONDS:
                slow.append((took, state, view))
    assert not slow
