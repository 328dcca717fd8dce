"""Runs the examples in the pages as they are written, so that none of them can go stale.

    ```python      is run; the blocks of one page share their names
    ```output      right behind it is what it printed
    ```console     `$ plait …` is run, `$` anything else is not; what follows a command is what it printed

A page's examples run in a scratch folder of their own. In an output `[...]` stands for whatever differs from machine
to machine: part of a line, or any number of lines where it stands alone.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from unittest.mock import patch

FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
ELISION = "[...]"

#: A terminal of known size without colours, and no store but the page's own, whoever runs this and from where.
TERMINAL = {"COLUMNS": "100", "LINES": "60", "TERM": "dumb", "NO_COLOR": "1", "FORCE_COLOR": "1", "PLAIT_STORE": ""}


class StaleExample(Exception):
    """An example that no longer does what its page says and cannot be rewritten without a person."""


def refreshed(page: str) -> str:
    """The page with every output as it is now; outputs that still match stay as written."""
    names: dict[str, object] = {"__name__": "__example__"}
    printed: str | None = None  # by a python block that waits for its output block
    parts, end = [], 0
    with scratch_folder():
        for fence in FENCE.finditer(page):
            language, body = fence["language"], fence["body"]
            if printed and language != "output":
                raise StaleExample(f"this is printed and shown nowhere:\n{printed}")
            if language == "python":
                with patch.object(sys, "argv", ["example"]):  # a script of examples/ reads its arguments
                    printed = captured(partial(exec, compile(body, "<example>", "exec"), names))
            elif language == "output":
                if printed is None:
                    raise StaleExample(f"no python block stands before this output:\n{body}")
                body, printed = settled(body, printed), None
            elif language == "console":
                body = "".join(_run_commands(body))
            parts += [page[end : fence.start("body")], body]
            end = fence.end("body")
    if printed:
        raise StaleExample(f"this is printed and shown nowhere:\n{printed}")
    return "".join([*parts, page[end:]])


def _run_commands(body: str) -> Iterator[str]:
    for command, written in re.findall(r"^(\$ .*\n)((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
        yield command
        words = shlex.split(command[2:], comments=True)
        yield settled(written, plait(*words[1:])) if words[0] == "plait" else written


def plait(*arguments: str) -> str:
    """What the command line prints, errors included. Mixers that it loads from a file are forgotten afterwards."""
    from plait.cli.main import main
    from plait.mixers import table

    # A program that was started as `python -m something` would be called that in usage lines.
    started = patch.object(sys.modules["__main__"], "__package__", None)
    with started, patch.object(sys, "argv", ["plait", *arguments]), patch.dict(table.MIXERS._registered):
        return captured(main)


def settled(written: str, actual: str) -> str:
    """`written` where it describes `actual`, else `actual`."""
    if matches(written, actual):
        return written
    if ELISION in written:
        raise StaleExample(f"written:\n{written}\nbut it prints:\n{actual}")
    return actual


def matches(written: str, actual: str) -> bool:
    lines = (
        r"(?:.*\n)*?" if line == ELISION else re.escape(line).replace(re.escape(ELISION), ".*?") + r"\n"
        for line in written.splitlines()
    )
    return re.fullmatch("".join(lines), actual) is not None


def captured(call: Callable[[], object]) -> str:
    """What `call` prints, without the blanks that tables leave at the ends of lines."""
    out, unhurried = io.StringIO(), patch("plait.cli.output.FIRST_LINE", float("inf"))  # however slow the machine
    with patch.dict(os.environ, TERMINAL), redirect_stdout(out), redirect_stderr(out), suppress(SystemExit), unhurried:
        call()
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().strip("\n").splitlines())


@contextmanager
def scratch_folder() -> Iterator[None]:
    """A folder of its own; mixers that an example loads from a file are forgotten afterwards."""
    from plait.mixers import table

    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, patch.dict(table.MIXERS._registered):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)
