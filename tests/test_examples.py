"""The scripts in examples/ run as they are, in an empty folder, and say something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
PART_OF_ANOTHER = {"moving_average.py"}
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in PART_OF_ANOTHER)
QUICK = {"results_as_tables.py"}


def test_each_has_its_line() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in SCRIPTS if f"[{name}]({name})" not in page] == []


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS]
)
def test_it_runs(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PLAIT_STORE"}
    command = [sys.executable, str(FOLDER / name)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) >= 2
