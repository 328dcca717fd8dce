"""How many source files a command goes through, counted while it runs: a number that may fall and not grow.

Counted is a file of which any function is called; what runs when a module is imported is not.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import plait
from plait.cli.main import main

SOURCE = str(Path(plait.__file__).parent) + "/"
SMALL = "d=16 | attn[heads=2] swiglu"
WALKS = {
    "show": (("show", "attn"), 15),
    "search": (
        ("search", "--space", "small-hybrid", "--objectives", "max:decoder_params,min:flops", "--method", "random",
         "--iterations", "2", "--population", "8", "--no-confirm"),
        35,
    ),
    "train": (("train", SMALL, "--data", "builtin:language", "--steps", "2", "--batch", "2", "--seq-len", "16"), 40),
    "probe": (
        ("probe", SMALL, "--no-match", "--no-baselines", "--tasks", "memorization", "--seeds", "1", "--workers", "1"),
        30,
    ),
}  # fmt: skip


def files_called(run: Callable[[], object]) -> set[str]:
    """The files of plait that have a function which was called, and not by a module's import."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(SOURCE) or path in found:
            return
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(SOURCE):
                return
            caller = caller.f_back
        found.add(path)

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {path.removeprefix(SOURCE) for path in found}


def forget_caches() -> None:
    """What an earlier test left in a cache would not be called again: a walk would depend on the tests before it."""
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper and str(found.__module__).startswith("plait."):
            found.cache_clear()


@pytest.mark.parametrize("command", ["show", "search", "train", pytest.param("probe", marks=pytest.mark.slow)])
def test_a_commands_walk_does_not_grow(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, most = WALKS[command]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plait", *arguments])

    def run() -> None:
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code, capsys.readouterr().err

    forget_caches()
    walked = files_called(run)
    assert len(walked) <= most, "\n".join(sorted(walked))
