"""The output of `plait design`: the table, the recommendation, paths. The workflow itself: tests/designing."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from plait.api.design import DesignResult
from plait.cli import design, output
from plait.cli.design import WORDS, Display
from plait.cli.main import app
from plait.designing.config import STAGES

sys.path.insert(0, str(Path(__file__).parents[1] / "designing"))
from made_document import document


def test_the_pick_and_how_far_it_is_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    given = document(
        accuracy={
            "gla+attn": {"recall": 0.9, "copying": 0.7},
            "attn×2": {"recall": 0.8, "copying": 0.78},
            "gla×2": {"recall": 0.2, "copying": 0.6},
        },
        params={"attn×2": 900_000, "gla+attn": 1_000_000, "gla×2": 950_000},
        pick="gla+attn",
        equals=["gla+attn", "attn×2"],
    )
    design._print(DesignResult("d=8 | gla", "Take it.", "page.html", "runs/train-0123", given))
    lines = capsys.readouterr().out.splitlines()
    header = next(at for at, line in enumerate(lines) if line.split()[:1] == ["pattern"])
    rows = [line.split() for line in lines[header + 1 : header + 4]]
    assert rows[0][:3] == ["→", "gla+attn", "1"]
    assert rows[1][0] == "attn×2"
    assert rows[0][-3:] == ["80", "%", "0.80"]
    assert "4 M tokens" in "".join(lines[header + 4 : header + 6])
    text = "\n".join(lines)
    assert "Take it." in text
    assert given["pick"]["spec"] in text  # brackets and all
    assert re.search(r"^ +It is the best\.", text, re.MULTILINE)  # without a label, as earlier designs have it
    assert re.search(r"^Limits  latency 19 of 20 ms, attn\[heads=4\] and all\.", text, re.MULTILINE)
    assert "To use the model:\nplait export runs/train-0123 --to hf" in text


def test_every_stage_is_told_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(quiet=False) as display:
        for stage in STAGES:
            display.update(stage, None, "starting")
            display.update(stage, 0.5, "half [way]")
            display.update(stage, 1.0, f"done with attn[heads=4] in {stage}")
            display.update(stage, 1.0, "again")
    told = capsys.readouterr().err.splitlines()
    assert told == [f"{WORDS[stage]}: done with attn[heads=4] in {stage}" for stage in STAGES]
    with Display(quiet=True) as display:
        display.update("search", 1.0, "x")
    assert not capsys.readouterr().err


def test_a_narrow_terminal_cuts_what_goes_on_and_not_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    terminal = Console(file=written, width=80, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(design, "console", lambda stderr=False: terminal)
    with Display(quiet=False) as display:
        for stage in STAGES:
            display.update(stage, 0.42, "model d=64 vocab=256 tie=true | " + "gla swiglu[inner=128] " * 9)
    for stage in STAGES:
        assert re.search(rf"{WORDS[stage]} .* 42% 0:00:\d\d model d=64 .*…", written.getvalue())


def test_a_long_stage_in_a_log_tells_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "FIRST_LINE", 0.0)
    with Display(quiet=True) as display:
        display.update("race", None, "timing the candidates")
        display.update("race", 0.25, "racing attn[heads=4]")
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"plait: {WORDS['race']} after 0 s; timing the candidates",
        f"plait: {WORDS['race']}, 25 % after 0 s; racing attn[heads=4]",
    ]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_it_says_where_the_page_is(monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    """With --json on standard error, so that standard output is the document alone."""
    accuracy = {name: {"recall": 0.5, "copying": 0.5} for name in ("gla×2", "attn×2")}
    given = document(accuracy=accuracy, params={"gla×2": 1, "attn×2": 2}, pick="gla×2", equals=["gla×2"])
    done = DesignResult("d=8 | gla", "Take it.", "page.html", "runs/train-0123", given)
    monkeypatch.setattr("plait.api.design.design", lambda **_: done)
    said = CliRunner().invoke(app, ["design", *flags])
    assert said.exit_code == 0, said.output
    assert "wrote page.html" in (said.stderr if flags else said.stdout)
    if flags:
        assert json.loads(said.stdout)["pick"]
