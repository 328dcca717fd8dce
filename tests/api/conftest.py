"""The command line in this process: the output of `plait VERB … --json`, to compare with a verb's result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from short_validation import _validation_is_short  # noqa: F401 (a fixture of every test here)

from plait.cli.main import app


@pytest.fixture
def plait_json(tmp_path, monkeypatch, capsys) -> Callable[..., Any]:
    """`plait_json("show", "gpt2-124m")` in an empty folder, where the test is, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_STORE", raising=False)

    def run(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["plait", *arguments, "--json"])
        capsys.readouterr()
        app(standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return run
