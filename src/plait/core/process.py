"""The command line of Python programs that plait starts: they import what this one does, and nothing that happens to
lie in the working folder.

Python puts the working folder first on the path of `python -c` and `python -m`, so that a `numpy.py` there would run in
place of numpy. `python_command` sets the path of the child to ours; `SAFE` has the same effect, on Python 3.11 and
newer.

Ctrl-C in a terminal reaches children as well. They leave it to this process, which then ends them, from their first
moment on: while they import, they would print a traceback each.
"""

from __future__ import annotations

import json
import sys

SAFE = {"PYTHONSAFEPATH": "1"}
# Only built-in modules are imported before the path is set; `signal` itself is none.
_PROGRAM = (
    "import _signal, sys; _signal.signal(_signal.SIGINT, _signal.SIG_IGN); "
    "sys.path[:] = {path}; from {module} import {function}; {function}()"
)


def python_command(module: str, function: str) -> list[str]:
    """The command line of a Python process that calls a function of one of our modules."""
    path = json.dumps([entry for entry in sys.path if entry])  # "" is the working folder
    return [sys.executable, "-c", _PROGRAM.format(path=path, module=module, function=function)]
