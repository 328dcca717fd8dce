"""The real program in a process of its own, as a shell would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def plait(tmp_path: Path) -> Run:
    """`plait("show", "gpt2-124m")` in an empty folder, with a terminal wide enough to keep a row on one line."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # What the installed `plait` script does, whatever folder scripts are installed in.
        program = [sys.executable, "-c", "from plait.cli.main import main; main()"]
        environment = {**os.environ, "COLUMNS": "240", "NO_COLOR": "1"}
        return subprocess.run(
            [*program, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )

    return run
