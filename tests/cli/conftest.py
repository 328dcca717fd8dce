"""The program as a shell would run it: `plait` in this process, which is quicker, `program` in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from short_validation import _validation_is_short  # noqa: F401 (a fixture of every test here)

from plait.cli.main import main
from plait.mixers import table

Run = Callable[..., "subprocess.CompletedProcess[str]"]
#: A terminal wide enough to keep a row on one line.
TERMINAL = {"COLUMNS": "240", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def plait_in() -> Run:
    """`plait_in(folder, "show", "gpt2-124m")`; no mixer is known that the command was not told. `typed`: at the
    terminal."""

    def run(folder: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        table.MIXERS._registered.clear()
        table._versions.clear()
        out, err, code = StringIO(), StringIO(), 0
        with pytest.MonkeyPatch.context() as shell, redirect_stdout(out), redirect_stderr(err):
            shell.chdir(folder)
            shell.setattr(sys, "argv", ["plait", *arguments])
            shell.setattr(sys, "stdin", StringIO(typed))
            for name, value in TERMINAL.items():
                shell.setenv(name, value)
            try:
                main()
            except SystemExit as left:
                code = int(left.code or 0)
        return subprocess.CompletedProcess(["plait", *arguments], code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def plait(plait_in: Run, tmp_path: Path) -> Run:
    """The same in an empty folder: `plait("show", "gpt2-124m")`."""
    return partial(plait_in, tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Run:
    """The same in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # What the installed `plait` script does, whatever folder scripts are installed in.
        command = [sys.executable, "-c", "from plait.cli.main import main; main()", *arguments]
        environment = {**os.environ, **TERMINAL}
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    return run
