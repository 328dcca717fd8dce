"""Processes that plait starts: they import what this one does, and nothing that happens to lie in the working folder.

Python puts the working folder first on the path of `python -c` and `python -m`, so that a `numpy.py` there would run in
place of numpy. Here the child's path is its parent's, and `PYTHONSAFEPATH` (Python 3.11) covers those that
`multiprocessing` starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SAFE = {"PYTHONSAFEPATH": "1"}
# Only built-in modules are imported before the path is set.
_PROGRAM = "import sys; sys.path[:] = {path}; from {module} import {function}; {function}()"


def python_command(module: str, function: str) -> list[str]:
    """The command line of a Python process that calls a function of one of our modules."""
    path = json.dumps([entry for entry in sys.path if entry])  # "" is the working folder
    return [sys.executable, "-c", _PROGRAM.format(path=path, module=module, function=function)]


@contextmanager
def safe_path() -> Iterator[None]:
    """Processes started meanwhile, by whatever means, leave the working folder out of their path."""
    before = {name: os.environ.get(name) for name in SAFE}
    os.environ.update(SAFE)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
