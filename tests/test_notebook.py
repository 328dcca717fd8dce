"""examples/tour.ipynb is executed, with this version, and as its cells are now; `make notebook` runs it again."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import plait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
notebook = importlib.import_module("notebook")


def test_it_is_not_stale() -> None:
    document = notebook.read()
    assert document["metadata"]["plait"] == notebook.stamp(document), "edited or of another version: `make notebook`"
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        (shown,) = cell["outputs"]
        assert "<table" in "".join(shown["data"]["text/html"]), cell["source"]


def test_what_it_calls_is_there() -> None:
    called = set(re.findall(r"plait\.(\w+)", "\n".join(notebook.code(notebook.read()))))
    assert {"architecture", "cost", "search", "train", "compare", "verify"} <= called <= {*plait.DOOR, *plait.GROUPS}


def test_an_edited_cell_is_noticed() -> None:
    document = notebook.read()
    next(cell for cell in document["cells"] if cell["cell_type"] == "code")["source"].append("\n1")
    assert document["metadata"]["plait"] != notebook.stamp(document)


@pytest.mark.slow
def test_run_again_it_shows_the_same() -> None:
    for needed in ("nbformat", "nbclient", "ipykernel", "pandas"):
        pytest.importorskip(needed)
    before = notebook.read()
    after = notebook.executed(before)
    counted = {"architecture": 0, "cost": 1, "show": 2, "verify": 6}  # exact whoever runs it
    for name, place in counted.items():
        old, new = (
            [c for c in d["cells"] if c["cell_type"] == "code"][place]["outputs"][0]["data"] for d in (before, after)
        )
        assert new["text/html"] == old["text/html"], name
    assert [len(cell.get("outputs", [])) for cell in after["cells"]] == [
        len(c.get("outputs", [])) for c in before["cells"]
    ]
