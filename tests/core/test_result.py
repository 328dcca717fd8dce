"""What a notebook shows: a headline, a picture, a table, and every name as text."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import pytest

import plait
from plait.api.search import FrontResult
from plait.api.train import TrainResult
from plait.core.errors import UserError
from plait.core.result import MOST_ROWS, Result, card

EVIL = "<script>alert(1)</script>"


def pictures(html: str) -> list[str]:
    return [base64.b64decode(found).decode() for found in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)]


def test_names_are_text() -> None:
    html = card([{EVIL: EVIL, "n": 1234567, "x": 0.123456}], headline=EVIL, figure=f"<svg>{EVIL}</svg>")
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 4  # headline, alt, column, cell
    assert "1,234,567" in html
    assert "0.1235" in html


@dataclass(frozen=True)
class Losses(Result):
    ROWS = "models"
    models: tuple[dict[str, Any], ...] = ()

    def headline(self) -> str:
        return "b is best."


def test_printed_it_is_a_table_of_plain_text() -> None:
    models = {"name": "a", "loss": 1.25, "params": 12345}, {"name": "longer", "loss": None, "params": 7}
    assert str(Losses(models)).splitlines() == [
        "b is best.",
        "name    loss  params",
        "a       1.25  12,345",
        "longer             7",
    ]
    assert str(Losses(models[:1])).splitlines()[1:] == ["name    a", "loss    1.25", "params  12,345"]
    assert str(Losses(({"name": "x\n" * 500},))).endswith("x x …")
    assert str(Losses()) == "b is best."


def test_of_a_long_table_the_first_rows_are_shown() -> None:
    html = card([{"row": i} for i in range(MOST_ROWS + 5)])
    assert html.count("<tr>") == MOST_ROWS + 1
    assert f"{MOST_ROWS} of {MOST_ROWS + 5} rows" in html


def test_one_wide_row_is_turned_and_empty_columns_are_left_out() -> None:
    wide = card([{f"c{i}": i for i in range(12)} | {"nothing": None}])
    assert wide.count("<tr>") == 13
    assert "nothing" not in wide
    assert card([{"a": 1, "b": None}]).count("<th ") == 1


def test_of_a_wide_table_the_columns_that_differ_are_shown_and_lists_are_words() -> None:
    rows = [{"key": n, "long": "x" * 500, **{f"same{i}": i for i in range(20)}, "loss": n / 2} for n in range(3)]
    html = card(rows)
    assert re.findall(r">([^<]*)</th>", html) == ["key", "loss"]
    assert "2 of 23 columns; to_frame() has all" in html
    listed = card([{"options": ["heads", "window"], "what": "w" * 300}])
    assert ">heads, window<" in listed
    assert len(listed) < 1400, "a long text is cut"


@dataclass(frozen=True)
class Undrawable(Result):
    name: str

    def figure(self) -> str:
        raise UserError("a figure needs two objectives")


def test_what_cannot_be_drawn_is_a_table() -> None:
    assert "<table>" in Undrawable("a")._repr_html_()
    assert "<img" not in Undrawable("a")._repr_html_()


def test_without_a_chart_no_file_is_written(tmp_path) -> None:
    with pytest.raises(UserError, match=r"losses\.svg: a Losses has no chart"):
        Losses().save_svg(tmp_path / "losses.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shown", [plait.cost, plait.show], ids=["cost", "show"])
def test_architectures_are_drawn(shown: Any) -> None:
    html = shown("d=64 vocab=99 | (gla swiglu attn swiglu)x2")._repr_html_()
    (drawn,) = pictures(html)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "gla" in drawn
    assert "d=64 vocab=99 | (gla swiglu attn swiglu)x2" in html


def test_a_spec_shows_its_mixers() -> None:
    html = plait.architecture("d=64 vocab=99 | (gla swiglu)x3")._repr_html_()
    assert "<b>d=64 vocab=99 | (gla swiglu)x3</b>" in html
    assert re.findall(r">(gla|swiglu|3)</td>", html) == ["gla", "3", "swiglu", "3"]


def test_a_training_shows_its_curves() -> None:
    told = TrainResult(
        key="k", run=EVIL, folder="f", spec="d=8 | attn", data=EVIL, loss=2.5, perplexity=12.2, bits_per_character=None,
        train_loss=2.4, steps=20, skipped=0, tokens=640, flops=1e6, seconds=1.0, tokens_per_second=640.0, mfu=None,
        params=100, trained_now=True, curve=((1, 3.0), (20, 2.4)), validation_curve=((20, 2.5),),
    )  # fmt: skip
    html = told._repr_html_()
    assert "2.500 nats per token after 20 steps" in html
    (drawn,) = pictures(html)
    assert "validation" in drawn
    assert "<script" not in drawn
    assert "<script" not in html


def test_a_front_is_drawn_and_one_of_one_objective_is_not() -> None:
    row = {"spec": "d=8 | attn", "decoder_params": 10, "flops": 20, "measurement": None, "within": True, "exceeded": []}
    other = {
        "spec": "d=8 | gla",
        "decoder_params": 20,
        "flops": 10,
        "measurement": None,
        "within": True,
        "exceeded": [],
    }
    document = {
        "key": "k", "space": EVIL, "method": "lts", "limits": {}, "setting": {},
        "objectives": ["decoder_params", "flops"],
        "profile": None, "front": [row, other], "over_limit": [], "on_front": 2, "evaluated": 7, "proposed": 7,
        "measured": 0, "cost": {},
    }  # fmt: skip
    html = FrontResult.of(document, None)._repr_html_()
    assert "2 of 2 models on the front of 7 candidates" in html
    assert len(pictures(html)) == 1
    assert "<script" not in pictures(html)[0]
    assert not pictures(FrontResult.of({**document, "objectives": ["flops"]}, None)._repr_html_())


@dataclass(frozen=True)
class Long(Result):
    name: str
    document: dict[str, Any]
    hidden: str = field(default="", repr=False)


def test_at_a_prompt_long_fields_are_cut() -> None:
    """Also of a class whose own `__repr__` a dataclass would write."""
    result = Long("a", {f"key{i}": list(range(1000)) for i in range(1000)}, "not shown")
    assert repr(result).startswith("Long(name='a', document={'key0': [0, 1, 2,")
    assert len(repr(result)) < 300
    assert "hidden" not in repr(result)
    assert result.as_dict() == {"name": "a", "document": result.document}
