"""The page of a design: whole, escaped, small."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

from made_document import document

from plait.designing.page import report_page


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
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(name)

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
        "A model for 20 ms and 100 MB", "Take it.", "19 ms", "0.80 (0.78–0.82)", "80 %", "recall", "copying",
        "gla+attn is best", "Which one wins on this text",
        "true entropy 1.400", "A processor & Co",
        "torch 2.13", "plait design --latency 20ms", "10,200 candidates", "25ms, not 20ms",
        "Limits:\n latency 19 of 20 ms", "It is the best.", "To use the model:\nplait export runs/train-0123 --to hf",
    ):  # fmt: skip
        assert words in text
    assert len(page.encode()) < 120_000  # of them 35,000 for style and script


def test_nothing_is_loaded_and_nothing_gets_through() -> None:
    given = example()
    given["points"][0] = given["candidates"][0]["spec"] = given["train"]["data"] = (
        "<img src=x onerror=alert(1)> & \"so on'"
    )
    page = report_page(given)
    assert "img" not in Text(page).tags
    assert page.count("&lt;img src=x onerror=alert(1)&gt; &amp;") >= 3
    # Neither a name of XML's nor a part of the page itself is loaded.
    assert not re.search(r"https?://|url\((?!#)|@import|<link", page.replace("http://www.w3.org/2000/svg", ""))


def test_without_entropy_there_is_no_floor() -> None:
    assert "true entropy" not in report_page(example(entropy=None))


def test_a_model_that_could_not_be_measured_is_only_predicted() -> None:
    given = example()
    row = given["search"]["front"][0]
    row["latency_ms"]["measured"] = row["memory_mb"]["measured"] = None
    row["within"], row["exceeded"] = False, ["it was ended by SIGKILL"]
    assert "it was ended by SIGKILL" in report_page(given)


def test_forecasts_at_own_budgets_say_so() -> None:
    """In the same time one candidate saw 123 k tokens and the others 25 k: all were said to be forecast at 123 k."""
    given = example()
    given["budget"] |= {"stated": "25s", "spoken_for": 123e3}
    given["foresight_text"] = "gla+attn is best at every budget"
    for row in given["race"]["architectures"]:
        row["tokens"] = 123e3 if row["name"] == "gla+attn" else 25e3
    text = Text(report_page(given)).data
    assert "extrapolated to the tokens it sees in 25s (25 k to 123 k) with its uncertainty" in text
    assert re.search(r"forecast at\n(.*\n)*123 k\n(.*\n)*25 k\n", text)
    assert "With equal tokens for all, gla+attn is best at every budget." in text
    for row in given["race"]["architectures"]:
        row["tokens"] = 123e3
    text = Text(report_page(given)).data
    assert "extrapolated to 123 k tokens with its uncertainty" in text
    assert "\ngla+attn is best at every budget." in text  # a name keeps its small letter


def test_a_probe_cut_short_says_so() -> None:
    assert "cut to 20 % of their steps" in report_page(example(scale=0.2))
    assert "cut to" not in report_page(example())


def test_a_forecast_at_other_tokens_is_no_promise() -> None:
    """The figure under the validation loss says so if the pick was trained on fewer tokens than were forecast."""
    given = example()
    for tokens, expected in ((given["budget"]["spoken_for"], False), (given["budget"]["spoken_for"] / 2, True)):
        text = report_page({**given, "train": {**given["train"], "tokens": int(tokens), "race_loss": 1.234}})
        assert "1.234 on the race" in text
        assert ("tokens, trained on" in text) == expected
