"""How results reach the terminal or a script: one JSON document, or tables."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from plait.core.progress import OnProgress, ignore

FIRST_LINE, LAST_LINE = 4.0, 120.0  # seconds to the first line of progress in a log, and at most between two


def print_json(document: Any) -> None:
    """Plain JSON on standard output, whatever the terminal."""
    print(json.dumps(_finite(document), indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    """JSON has no nan and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def console(stderr: bool = False) -> Console:
    """The terminal; where there is none (a pipe, a file) lines may be long."""
    made = Console(highlight=False, stderr=stderr)
    return made if made.is_terminal else Console(highlight=False, stderr=stderr, width=160)


def table(title: str | None = None, **columns: str) -> Table:
    """A table whose columns are given as name='left' or name='right'; underscores become spaces."""
    made = Table(title=title, title_justify="left", header_style="bold", pad_edge=False, box=None)
    for name, justify in columns.items():
        made.add_column(name.replace("_", " "), justify=justify, overflow="fold")  # type: ignore[arg-type]
    return made


def count(number: float) -> str:
    """A whole number with thousands separators: 12,345,678."""
    return f"{round(number):,}"


def plain(text: str) -> str:
    """Text whose brackets rich shows instead of reading them."""
    return text.replace("[", r"\[")


class ProgressLines:
    """Progress in a pipe or a batch log: a line after a few seconds, and each one later than the one before."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic, first: float | None = None) -> None:
        self._out, self._clock, self._began = out, clock, clock()
        self._wait = FIRST_LINE if first is None else first
        self._next = self._began + self._wait

    def tell(self, what: str, share: float | None = None, more: str = "") -> None:
        """What is being done, how much of it is (0 to 1), and what else there is to say."""
        now = self._clock()
        if now < self._next:
            return
        self._wait = min(LAST_LINE, 1.5 * self._wait)
        self._next = now + self._wait
        passed = now - self._began
        left = f", {100 * share:.0f} %" if share is not None else ""
        print(f"plait: {what}{left} after {passed:.0f} s{f'; {more}' if more else ''}", file=self._out, flush=True)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[OnProgress]:
    """A bar on standard error that disappears when all is done; a line now and then where that is no terminal."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    errors = Console(file=sys.stderr)  # as it is now: the harness's prints are caught while it runs
    if not errors.is_terminal:
        lines = ProgressLines(sys.stderr)
        yield lambda what, done, total: lines.tell(what, done / total if total else None)
        return
    if quiet:
        yield ignore
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=errors, transient=True) as bars:
        shown = bars.add_task("", total=None)
        yield lambda what, done, total: bars.update(shown, description=plain(what), completed=done, total=total)
