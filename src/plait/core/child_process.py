"""Processes that plait starts: they import what this one does, and nothing that happens to lie in the working folder.

Python puts the working folder first on the path of `python -c` and `python -m`, so that a `numpy.py` there would run in
place of numpy. Here the child's path is its parent's, and `PYTHONSAFEPATH` (Python 3.11) covers those that
`multiprocessing` starts. Nor do those run the user's script again: it needs no `if __name__ == "__main__":`.
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
def own_imports() -> Iterator[None]:
    """Processes that `multiprocessing` starts meanwhile import neither from the working folder nor the main script:
    what they run is in our modules."""
    before = {name: os.environ.get(name) for name in SAFE}
    main = sys.modules["__main__"]
    hidden: dict[str, object] = {}
    for name in ("__file__", "__spec__"):
        if name in main.__dict__:
            hidden[name] = main.__dict__.pop(name)
    main.__spec__ = None
    os.environ.update(SAFE)
    try:
        yield
    finally:
        del main.__spec__
        main.__dict__.update(hidden)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
