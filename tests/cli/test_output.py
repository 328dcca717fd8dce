"""What reaches a script is JSON, whatever the numbers."""

from __future__ import annotations

import io
import itertools
import json
import math
import time

import pytest
from rich.console import Console
from rich.table import Table

from plait.cli import output
from plait.cli.output import (
    ProgressLines,
    SafeConsole,
    fits,
    paragraph,
    plain,
    print_json,
    print_rows,
    progress_bar,
    table,
)


def test_numbers_that_json_has_not_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": math.nan, "b": [1.5, math.inf, {"c": (-math.inf, "NaN")}], "d": True})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": None, "b": [1.5, None, {"c": [None, "NaN"]}], "d": True,
    }  # fmt: skip


@pytest.mark.parametrize("width", [80, 26])
def test_long_columns_are_never_squeezed_out(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(width=width, highlight=False))
    rows = [{"params": f"{n}00 k", "limits": "within, noisy", "layers": "(gla swiglu)x12"} for n in (1, 22)]
    print_rows({"params": "right", "limits": "left", "layers": "left"}, rows, ("layers",))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    if width == 80:
        assert lines[1] == " 100 k  within, noisy  (gla swiglu)x12"
    else:
        assert lines[2:4] == [" 100 k  within, noisy", "    (gla swiglu)x12"]
    assert max(map(len, lines)) <= width


def test_a_table_that_a_terminal_would_break_does_not_fit() -> None:
    """rich's own measure never exceeds the console's width: tables of comparisons were cut inside their numbers."""
    grid = table(architecture="left", loss="right")
    grid.add_row("attn", "1.794 (1.730–1.859)")
    assert fits(Console(width=33), grid)
    assert not fits(Console(width=32), grid)


@pytest.mark.parametrize("width", [79, 60, 50, 32])
def test_a_table_breaks_no_number_and_no_word_in_a_narrow_terminal(width: int) -> None:
    """At 80 columns `plait show` broke "fox[heads=16" from "]", and `plait measure` its numbers."""
    grid = table(mixer="left", at="left", params_each="right", fixed_state="right")
    cells = ["swiglu[inner=2816]", "1, 3, 5 … 47", "12,345,678", "9,876,543"]
    grid.add_row(*map(plain, cells))
    out = SafeConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    out.print(grid)
    written = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, written.splitlines())) <= width
    words = [word for cell in (*cells, "params each", "fixed state", "mixer") for word in cell.split()]
    assert sorted(words) == sorted(word for word in written.split() if word != "at")


def _printed(grid: Table, width: int) -> list[str]:
    out = SafeConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    out.print(grid)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_broken_text_gets_the_room_there_is() -> None:
    grid = table(what="left", count="right")
    grid.add_row("words of four " * 6, "12")
    lines = _printed(grid, 60)
    assert len(lines) == 3
    assert len(lines[1]) > 50


def test_a_long_path_is_broken_rather_than_the_table() -> None:
    grid = table(kind="left", file="left")
    grid.add_row("train", "/runs" * 20)
    lines = _printed(grid, 60)
    assert lines[0].split() == ["kind", "file"]
    assert "".join(lines[1:]).replace(" ", "") == "train" + "/runs" * 20


def test_short_columns_beside_long_ones_are_not_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(width=72, highlight=False))
    limits = "within all limits but noisy in some"
    print_rows({"limits": "left", "layers": "left"}, [{"limits": limits, "layers": "gla swiglu " * 9}], ("layers",))
    assert limits in capsys.readouterr().out


def test_a_table_in_a_pipe_is_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    grid = table(spec="left", what="left")
    grid.add_row("d=64 | (gla swiglu)x2 " * 20, "word " * 80)
    output.console().print(grid)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_progress_in_a_log_is_a_line_now_and_then() -> None:
    """The first after a few seconds, then ever rarer: a night's training leaves no thousand lines."""
    written, now = io.StringIO(), 0
    lines = ProgressLines(written, clock=lambda: now, first=4.0)
    at = []
    for now in range(36_000):
        before = len(written.getvalue())
        lines.tell("searching", now / 36_000, "loss 3")
        if len(written.getvalue()) > before:
            at.append(now)
    assert at[0] <= 5
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 10
    assert 100 <= gaps[-1] <= 120
    assert written.getvalue().splitlines()[0] == f"plait: searching, 0 % after {at[0]} s; loss 3"


def test_one_long_step_gets_its_lines_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An export's single steps take half a minute, during which nothing is reported."""
    monkeypatch.setattr(output, "FIRST_LINE", 0.05)
    monkeypatch.setattr(output, "REPEAT_SECONDS", 0.01)
    with progress_bar(quiet=False) as bar:
        bar("writing m.onnx", 0.08, 1)
        deadline = time.monotonic() + 10
        said = ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
            said = capsys.readouterr().err
    assert said.startswith("plait: writing m.onnx, 8 % after ")


def test_a_line_tells_the_time_left_of_its_stage() -> None:
    """A stage that is resumed at a half did not come that far in this time, and the next stage has its own speed."""
    written, now = io.StringIO(), 0.0
    lines = ProgressLines(written, clock=lambda: now, first=0.0)
    for at, what, share in [
        (0, "opening", None), (10, "training", 0.5), (12, "training", 0.52), (20, "training", 0.6),
        (60, "scoring", 0.0), (70, "scoring", 0.125), (160, "scoring", 0.25), (990, "scoring", 1.0),
    ]:  # fmt: skip
        now = at
        lines.tell(what, share)
    assert [line.partition(" after ")[2] for line in written.getvalue().splitlines()] == [
        "0 s", "10 s", "12 s", "20 s, about 40 s left", "1 m 0 s", "1 m 10 s", "2 m 40 s, about 9 m 0 s left",
        "16 m 30 s",
    ]  # fmt: skip


def test_what_is_no_terminal_gets_lines_and_standard_output_stays_clean(capsys, monkeypatch) -> None:
    monkeypatch.setattr(output, "FIRST_LINE", 0.0)
    with progress_bar(quiet=True) as on_progress:
        on_progress("measuring", 1, 4)
    assert capsys.readouterr() == ("", "plait: measuring, 25 % after 0 s\n")


def test_an_overrun_of_the_time_given_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error, in figures; nothing is said where it was kept."""
    from plait.cli import output

    now = [0.0]
    monkeypatch.setattr(output.time, "perf_counter", lambda: now[0])
    for given, took, told in (
        ("60s", 60.9, ""),
        ("60s", 90.0, "1 m 30 s, 50 % more than the 1 m 0 s"),
        ("10s", 269.0, "4 m 29 s, 27 times the 10 s given"),
        (None, 1e6, ""),
    ):
        with output.within_time(given):
            now[0] += took
        found = capsys.readouterr()
        assert told in found.err
        assert bool(found.err) == bool(told)
        assert not found.out


def test_prose_is_broken_between_words_in_a_terminal_and_not_at_all_in_a_file() -> None:
    """`plait compare` left it to the terminal, which broke "per tok" and "en above"."""
    text = "(gla swiglu)x2 is 0.167 nats per token above the best [sic]"
    for terminal in (True, False):
        out = SafeConsole(file=io.StringIO(), width=24, force_terminal=terminal, no_color=True, highlight=False)
        paragraph(out, text)
        lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert " ".join(line.strip() for line in lines) == text
        assert (len(lines) > 1) == terminal
        assert not terminal or all(len(line) <= 24 for line in lines)
