"""Names and files of others: no escape sequence of theirs reaches the terminal, and no link is followed."""

from __future__ import annotations

import io
import json
import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text

from plait.cli.output import GuardedStream, SafeConsole, table, without_control
from plait.designing.workflow import commands

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31mred"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_console_shows_styles_and_no_control_characters() -> None:
    out = Terminal()
    shown = SafeConsole(file=out, force_terminal=True, color_system="standard", width=80)
    made = table(name="left")
    made.add_row(EVIL)
    shown.print(made)
    shown.print(Text(EVIL, style="red"))
    shown.print(EVIL, markup=False)
    assert "\x1b[31m" in out.getvalue()  # ours
    assert not any(sign in out.getvalue() for sign in ("\x1b]", "\x07", "\x1b[2J", "\x9b"))


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_what_is_printed_without_a_console_is_guarded(stream: io.StringIO) -> None:
    print(f"{EVIL} \x1b[1mbold\x1b[0m", file=GuardedStream(stream))  # type: ignore[arg-type]
    text = stream.getvalue()
    assert not any(sign in text for sign in ("\x1b]", "\x07", "\x1b[2J", "\x9b"))
    assert ("\x1b[1m" in text) == stream.isatty()


def test_lines_and_tabs_stay() -> None:
    assert without_control("a\tb\nc – é") == "a\tb\nc – é"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    rows = [{"name": f"{EVIL}{n}", "loss": 3 - n / 10, "ms": 1.0 + n} for n in range(4)]
    (tmp_path / "table.json").write_text(json.dumps(rows))
    (tmp_path / "profile.json").write_text(json.dumps({"format": EVIL}))
    (tmp_path / f"{EVIL}.txt".replace("/", "")).write_text("layers: 1")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyse", "front", "table.json", "--minimise", "loss,ms"),
        ("analyse", "front", "table.json", "--minimise", "loss,ms", "--json"),
        ("analyse", "front", "table.json", "--minimise", EVIL),
        ("show", f"d=64 | {EVIL}"),
        ("show", f"{EVIL}.yaml"),
        ("profile", "show", "profile.json"),
        ("check", EVIL),
        ("runs", "show", EVIL),
        ("search", "--space", f"{EVIL}.txt"),
        ("task", "show", EVIL),
    ],
    ids=lambda arguments: " ".join(arguments[:2]).replace(EVIL, "EVIL"),
)
def test_no_command_passes_escape_sequences_on(plait: Any, hostile: Path, arguments: tuple[str, ...]) -> None:
    ran = plait(*arguments)
    for text in (ran.stdout, ran.stderr):
        assert not any(sign in text for sign in ("\x1b", "\x07", "\x9b")), text


def test_commands_on_the_page_are_quoted() -> None:
    evil = "my space.txt; rm -rf ~"
    config = {"limits": {}, "setting": {"seq": 16}, "seed": 0, "space": evil, "data": "it's.txt", "seconds": 60.0}
    row = {"spec": "d=64 | attn[heads=2]"}
    document = {
        "config": {**config, "train_for": "10 minutes; rm"}, "pick": row, "race": {"architectures": [row]},
        "train": {"recipe": {"lr": 1e-3}}, "budget": {"tokens": 1e6},
    }  # fmt: skip
    design = SimpleNamespace(space_given="", space=SimpleNamespace(mixer_sources={}))
    for line in commands(document, design):
        words = shlex.split(line)
        assert "rm" not in words
        assert "--space" not in words or words[words.index("--space") + 1] == evil
        assert "--data" not in words or words[words.index("--data") + 1] == "it's.txt"


def test_pictures_replace_a_link_and_stay_in_their_folder(tmp_path: Path) -> None:
    from plait.api.evaluate import _draw
    from plait.core.errors import UserError

    class Drawn:
        def figures(self, results: object) -> dict[str, str]:
            return {"curve": "<svg/>"}

    mine, evals = tmp_path / "mine.txt", tmp_path / "run" / "evals"
    mine.write_text("precious")
    evals.mkdir(parents=True)
    os.symlink(mine, evals / "curve.svg")
    _draw(Drawn(), {}, evals)  # type: ignore[arg-type]
    assert mine.read_text() == "precious"
    assert (evals / "curve.svg").read_text() == "<svg/>"
    os.symlink(tmp_path, tmp_path / "run" / "linked")
    with pytest.raises(UserError, match="is a link to another folder"):
        _draw(Drawn(), {}, tmp_path / "run" / "linked")  # type: ignore[arg-type]
