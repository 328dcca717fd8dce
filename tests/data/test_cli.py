"""`plait data`: what there is, and what one corpus holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from plait.cli.data import group
from plait.core.errors import UserError
from plait.data.corpora import FILES, NAMED
from plait.data.tokenizer_table import TOKENIZERS


@pytest.fixture
def plait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer(pretty_exceptions_enable=False)
    app.add_typer(group, name="data")
    return lambda *arguments: CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)


def test_list_names_everything(plait: Any) -> None:
    listed = json.loads(plait("list", "--json").stdout)
    assert len(listed["corpora"]) == len(NAMED) + len(FILES) + 1
    assert [row["name"] for row in listed["tokenizers"]] == [*TOKENIZERS, "hf:PATH", "FOLDER"]
    text = plait("list").stdout
    for row in (*listed["corpora"], *listed["tokenizers"]):
        assert row["name"] in text
        assert row["what"] in text
    assert "min_count=1,size=0" in text


def test_show_states_the_entropy_where_it_is_known(plait: Any) -> None:
    shown = json.loads(plait("show", "builtin:language", "--json", "--sample", "5").stdout)
    assert shown["entropy"] == pytest.approx(1.37027, abs=1e-5)
    assert (shown["vocab"], shown["tokens"]["test"], len(shown["sample"])) == (32, 524_288, 5)
    text = plait("show", "builtin:language").stdout
    assert "1.3703 nats per token" in text
    assert "8,388,608" in text


def test_show_prints_text_as_it_is(plait: Any) -> None:
    Path("a.txt").write_text("[bold]not markup[/bold] grüße\n" * 100)
    ran = plait("show", "a.txt", "--tokenizer", "words")
    assert "[bold]not markup[/bold] grüße" in ran.stdout
    assert "words, vocabulary 5" in ran.stdout
    assert "entropy" not in ran.stdout
    assert Path("runs/cache").is_dir()
    assert json.loads(plait("show", "a.txt", "--json").stdout)["entropy"] is None
    with pytest.raises(UserError, match="Did you mean 'words'"):
        plait("show", "a.txt", "--tokenizer", "wrds")
