"""Runs the notebook of examples/ and writes it with its outputs: `make notebook`.

What it was run with is in its metadata, so that a test can tell in a moment whether cells were edited since, or plait
is another version.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "tour.ipynb"


def read(path: Path = NOTEBOOK) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def code(document: dict[str, Any]) -> list[str]:
    """The cells that are run."""
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def stamp(document: dict[str, Any]) -> dict[str, str]:
    """What decides the outputs, as far as the notebook and the version do."""
    import plait

    return {"version": plait.__version__, "code": hashlib.sha256("\n\n".join(code(document)).encode()).hexdigest()[:16]}


def executed(document: dict[str, Any]) -> dict[str, Any]:
    """The notebook with its outputs as they are now, run in an empty folder."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.reads(json.dumps(document), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}, record_timing=False)
        client.execute(env={**os.environ, "PLAIT_STORE": "", "JUPYTER_PLATFORM_DIRS": "1"})
    for cell in notebook.cells:
        cell.metadata.clear()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "plait": stamp(document),
    }
    result: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return result


def main() -> None:
    document = executed(read())
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{NOTEBOOK.relative_to(ROOT)}: {len(code(document))} cells run", file=sys.stderr)


if __name__ == "__main__":
    main()
