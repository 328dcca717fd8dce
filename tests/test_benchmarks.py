"""Benchmarks are run by hand and rarely: what they import must be there all the same."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_it_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "plait":
            if "triton" in str(node.module):
                continue  # needs Triton, which is not everywhere
            module = import_module(str(node.module))
            for alias in node.names:
                if "triton" not in alias.name and not hasattr(module, alias.name):
                    import_module(f"{node.module}.{alias.name}")
