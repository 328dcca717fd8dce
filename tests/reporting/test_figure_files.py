"""Figures and numbers of records as files, for a paper or another program."""

from __future__ import annotations

import csv
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import plait
from plait.core.errors import UserError
from plait.records import Record, open_store
from plait.reporting import figure_files
from plait.reporting.views import VIEWS, View, plain_view, view_of

ABOUT = {"started": "2026-03-04T05:06:07+00:00", "seconds": 3.0, "plait": "0.1", "cpu": "X"}
TRAINED = Record.of(
    "train",
    {"protocol": 1, "spec": "d=8 vocab=16 | attn[heads=1]"},
    {"spec": "d=8 vocab=16 | attn[heads=1]", "loss": 2.0, "steps": 2, "tokens": 20, "curve": [[1, 3.0], [2, 2.0]]},
    ABOUT,
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/plait.db"
    with open_store(url) as opened:
        opened.put(TRAINED)
    return url


def test_svg_and_csv(store: str, tmp_path: Path) -> None:
    made = plait.report([TRAINED.key[:8]], out=tmp_path / "p.html", svg=tmp_path / "f", csv=tmp_path / "n", store=store)
    svg, numbers = map(Path, made.files)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    rows = list(csv.DictReader(numbers.open()))
    assert [(row["step"], row["loss"]) for row in rows] == [("1.0", "3.0"), ("2.0", "2.0")]


def test_png_needs_something_that_draws(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is written."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "cairosvg", None)
    with pytest.raises(UserError, match="pip install cairosvg"):
        plait.report(out=tmp_path / "p.html", png=tmp_path / "f", store=store)
    assert not (tmp_path / "p.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
def test_png_by_a_browser(store: str, tmp_path: Path) -> None:
    made = plait.report([TRAINED.key], out=tmp_path / "p.html", png=tmp_path / "f", store=store)
    head = Path(made.files[0]).read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert int.from_bytes(head[16:20], "big") > 400  # pixels wide


def test_no_name_becomes_a_path() -> None:
    record = Record.of("../../etc/<x>", {"protocol": 1}, {}, {})
    assert "/" not in figure_files.file_name(record)


def test_a_package_s_view_is_used_and_its_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VIEWS, "_registered", {})

    def theirs(record: Record, context: Any) -> View:
        return View(f"seen {record.result['x']}")

    VIEWS.register("theirs", theirs)
    assert view_of(Record.of("theirs", {"protocol": 1}, {"x": 3}, {})).title == "seen 3"
    wrong = view_of(Record.of("theirs", {"protocol": 1}, {}, {}))
    assert "cannot be drawn" in "".join(part.text or "" for part in wrong.parts if not isinstance(part, str))


def test_a_view_that_does_not_load_is_told_beside_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose view could not be imported ended the whole report."""
    broken = EntryPoint("theirs", "no_such_module:view", "plait.views")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [broken])
    shown = view_of(Record.of("theirs", {"protocol": 1}, {"x": 3}, {}))
    assert "does not load" in "".join(part.text or "" for part in shown.parts if not isinstance(part, str))
    assert shown.rows == plain_view(Record.of("theirs", {"protocol": 1}, {"x": 3}, {})).rows


ODD: list[dict[str, Any]] = [
    {},
    {"front": 3, "architectures": "x", "maps": [1], "curve": [[1], None, "x"]},
    {"architectures": [{}], "front": [{"spec": 1}, {"spec": "d=8 | attn"}], "seeds": [0]},
]


@pytest.mark.parametrize("kind", [*VIEWS.lines])
@pytest.mark.parametrize("result", ODD)
def test_records_that_are_not_as_they_should_be_are_shown_all_the_same(kind: str, result: dict[str, Any]) -> None:
    view = view_of(Record.of(kind, {"protocol": 1, "task": 3, "recipe": "x", "runs": [1]}, result, {"seconds": "long"}))
    assert view.title
