"""The page of a design: whole, escaped, small, and the same in a browser."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_document import document

from plait.designing.page import report_page

CHROMIUM = shutil.which("chromium")


def example(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "accuracy": {"gla+attn": {"recall": 0.9, "copying": 0.7}, "attn×2": {"recall": 0.5, "copying": 0.5}},
        "params": {"attn×2": 1_000_000, "gla+attn": 900_000},
        "pick": "gla+attn",
        "equals": ["gla+attn"],
        "entropy": 1.4,
    }
    return document(**{**given, **changes})


class Text(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.data = ""
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.data += data + "\n"


def test_everything_is_on_it() -> None:
    given = example()
    page, text = report_page(given), Text(report_page(given)).data
    for row in [
        *given["candidates"],
        *given["search"]["front"],
        *given["search"]["over_limit"],
        *given["predicted_front"],
    ]:
        assert html.escape(row["spec"], quote=False) in page
    for words in (
        "A model for 20 ms and 100 MB", "Take it.", "19 ms", "0.80 (0.78–0.82)", "80%", "recall", "copying",
        "gla+attn is best", "Which one wins on this text",
        "true entropy 1.400", "A processor & Co",
        "torch 2.13", "plait design --latency 20ms", "10,200 candidates", "25ms, not 20ms",
    ):  # fmt: skip
        assert words in text
    assert len(page.encode()) < 60_000


def test_nothing_is_loaded_and_nothing_gets_through() -> None:
    given = example()
    given["advice"] = given["candidates"][0]["spec"] = given["train"]["data"] = (
        "<img src=x onerror=alert(1)> & \"so on'"
    )
    page = report_page(given)
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt; &amp;") >= 3
    assert not re.search(r"https?://|url\(|@import|<link", page)


def test_without_entropy_there_is_no_floor() -> None:
    assert "true entropy" not in report_page(example(entropy=None))


def test_a_model_that_could_not_be_measured_is_only_predicted() -> None:
    given = example()
    row = given["search"]["front"][0]
    row["latency_ms"]["measured"] = row["memory_mb"]["measured"] = None
    row["within"], row["exceeded"] = False, ["it was ended by SIGKILL"]
    assert "it was ended by SIGKILL" in report_page(given)


def test_a_probe_cut_short_says_so() -> None:
    assert "cut to 20% of their steps" in report_page(example(scale=0.2))
    assert "cut to" not in report_page(example())


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the page is not looked at in a browser")
def test_in_a_browser(tmp_path: Path) -> None:
    """The script has run: hints are where it puts them, and no title is left on a mark."""
    path = tmp_path / "report.html"
    path.write_text(report_page(example()), encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom")
    ran = subprocess.run(
        [str(CHROMIUM), *options, path.as_uri()], capture_output=True, text=True, timeout=600, check=True
    )
    assert 'id="tip"' in ran.stdout
    assert ran.stdout.count('data-hint="gla+attn') >= 4  # on both fronts and in every panel of bars
    assert not re.search(r'class="hover"[^>]*><title>', ran.stdout)
