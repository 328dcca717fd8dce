"""Shared by all commands: arguments for their verb (`passed`), time limits, and output for the terminal or a script:
one JSON document, or tables and character plots."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, TypeVar, cast

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from plait.core.files import finite
from plait.core.progress import OnProgress, Stopped, ignore
from plait.core.result import Result
from plait.core.units import TimeLeft, duration, parse_duration, percent, short

if TYPE_CHECKING:
    from rich.align import AlignMethod
    from rich.console import ConsoleOptions, RenderableType, RenderResult

R = TypeVar("R", bound=Result)

UNLIMITED = 1_000_000  # width of a pipe or file, in which no line is broken
NARROW = 100  # terminal width below which bars are short
LEAST_WIDTH = 24  # characters for a column of long text, such as a spec
LONGEST_WORD = 30  # in a table's text; longer ones, such as paths, may be broken
REPEAT_SECONDS = 1.0
FIRST_LINE, LAST_LINE = 3.0, 120.0  # seconds before the first line of progress in a log, and at most between two


def passed(arguments: Mapping[str, Any], *left_out: str, **changed: Any) -> dict[str, Any]:
    """A command's `arguments` (`dict(locals())` at its beginning) for its verb: without those in `left_out` and those
    not given (None), with some `changed`."""
    kept = {name: value for name, value in arguments.items() if value is not None and name not in left_out}
    return {**kept, **changed}


def print_json(document: Any) -> None:
    """Plain JSON on standard output, whatever the terminal."""
    print(_escaped(json.dumps(finite(document), indent=2, ensure_ascii=False)))


def print_result(result: R, show: Callable[[R], object], *files: object, as_json: bool) -> None:
    """The result as JSON, or as `show` prints it, then where the files are that the user asked for."""
    print_json(result.as_dict()) if as_json else show(result)
    wrote(*files, as_json=as_json)


OVERRUN = 1.02  # factor on the given time beyond which a command reports it


@contextmanager
def within_time(limit: str | None) -> Iterator[None]:
    """Around the work of a command with `--time` (None: no limit): prints by how much it was exceeded."""
    began = time.perf_counter()
    yield
    took = time.perf_counter() - began
    allowed = parse_duration(limit) if limit else math.inf
    if took > OVERRUN * allowed:
        over = f"{took / allowed:.0f} times" if took > 2 * allowed else f"{percent(took / allowed - 1)} more than"
        over += f" the {duration(allowed)} given"
        console(stderr=True).print(f"it took {duration(took)}, {over}", style="yellow", markup=False)


@contextmanager
def resumable(saved: str = "", *, quiet: bool = False) -> Iterator[None]:
    """Around work that the same command resumes: if it is interrupted, says what is saved. `saved`: where the work does
    not say so itself; without it Ctrl-C is not caught."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if not (where := stopped.saved if isinstance(stopped, Stopped) else "") and not saved:
            raise
        if not quiet:
            then = "The same command resumes from there." if where else "The same command resumes."
            console(stderr=True).print(f"interrupted; {where or saved}. {then}")
        raise typer.Exit(130) from None


# ---- names and files may contain escape sequences, which a terminal would execute

#: C0 and C1 control characters except tab and line feed, and characters that change the text direction.
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")  # colour sequences, as in help


def without_control(text: str) -> str:
    """Text with control characters replaced, so that it can neither move the cursor nor set the terminal's title."""
    return CONTROL.sub("\ufffd", text)


def _escaped(text: str) -> str:
    """As JSON escapes, also for C1 characters."""
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class SafeConsole(Console):
    """A console whose styles reach the terminal, and no control characters of the text."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        clean = (part if part.control else Segment(without_control(part.text), part.style) for part in buffer)
        return super()._render_buffer(clean)

    @property
    def file(self) -> IO[str]:
        stream: IO[str] = unguarded(super().file)
        return stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        Console.file.fset(self, new_file)  # type: ignore[attr-defined]


class GuardedStream:
    """Standard output or error for whatever prints without a console: a terminal gets colour sequences only, a
    pipe or file none."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        if CONTROL.search(text):
            parts = _COLOUR.split(text) if self.unguarded.isatty() else [text]
            text = "".join(part if n % 2 else without_control(part) for n, part in enumerate(parts))
        return self.unguarded.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def guard_streams() -> None:
    """Guard standard output and error of this process from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, GuardedStream):
            setattr(sys, name, GuardedStream(stream))


def unguarded(stream: Any) -> Any:
    return stream.unguarded if isinstance(stream, GuardedStream) else stream


def console(stderr: bool = False) -> Console:
    """The console; without a terminal (a pipe, a file) lines may be long."""
    terminal = SafeConsole(highlight=False, stderr=stderr)
    return terminal if terminal.is_terminal else SafeConsole(highlight=False, stderr=stderr, width=UNLIMITED)


def wrote(*files: object, as_json: bool) -> None:
    """Say where files that the user asked for are (None: not asked for): with --json on standard error."""
    for file in files:
        if file is not None:
            console(stderr=as_json).print(f"wrote {file}", markup=False, soft_wrap=True)


def paragraph(out: Console, text: str, style: str = "") -> None:
    """Prose: broken between words in a terminal, one line in a pipe or file."""
    out.print(text, style=style, markup=False, soft_wrap=not out.is_terminal)


class FittingTable(Table):
    """A table that breaks no number and no short word in a narrow terminal: headings wrap first, then text, between
    words; if that is not enough, each row becomes a block with a line per column."""

    GAP = 2  # between two columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - self.GAP * (len(self.columns) - 1)
        fitting = _fitting_widths([_widths(column, console, options) for column in self.columns], room)
        if fitting is None:
            yield from self._blocks()
            return
        for column, width in zip(self.columns, fitting, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _blocks(self) -> Iterator[RenderableType]:
        if self.title:
            yield self.title
        for number, cells in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            block = Table(show_header=False, pad_edge=False, box=None)
            block.add_column(style=self.header_style, overflow="fold")
            block.add_column(overflow="fold")
            for column, cell in zip(self.columns, cells, strict=True):
                if cell:
                    block.add_row(column.header, cell)
            if number:
                yield ""
            yield block


def _widths(column: Column, console: Console, options: ConsoleOptions) -> list[int]:
    """Widths of a column, the best first: whole; with long text broken; with the heading broken; with both broken."""
    unlimited = options.update_width(UNLIMITED)
    heading = console.measure(column.header, options=unlimited)
    cells = [console.measure(cell, options=unlimited) for cell in column.cells]
    longest = max((cell.maximum for cell in cells), default=0)
    whole = max(heading.maximum, longest)
    if column.no_wrap:
        return [whole] * 4
    word = longest
    if column.justify == "left":
        word = max((min(cell.minimum, LONGEST_WORD) for cell in cells), default=0)
        word = max(word, min(longest, LEAST_WIDTH * 2 // 3))
    comfortable = min(longest, max(word, LEAST_WIDTH))
    return [whole, max(heading.maximum, comfortable), max(heading.minimum, longest), max(heading.minimum, word)]


def _fitting_widths(widths: Sequence[Sequence[int]], room: int) -> list[int] | None:
    """A width for each column, in sum at most `room`, with as few breaks as possible; None if there is none."""
    whole = [column[0] for column in widths]
    for least in zip(*widths, strict=True):
        if (left := room - sum(least)) >= 0:
            shown = list(least)
            for _ in range(min(left, sum(whole) - sum(least))):  # the narrowest broken one gets the next character
                growing = (at for at in range(len(shown)) if shown[at] < whole[at])
                shown[min(growing, key=shown.__getitem__)] += 1
            return shown
    return None


def table(title: str | None = None, **columns: str) -> Table:
    """A table whose columns are given as name='left' or name='right'; underscores become spaces."""
    grid = FittingTable(title=title, title_justify="left", header_style="bold", pad_edge=False, box=None)
    for name, justify in columns.items():
        grid.add_column(name.replace("_", " "), justify=justify, overflow="fold")  # type: ignore[arg-type]
    return grid


def fits(out: Console, grid: Table) -> bool:
    """Whether a table is shown without breaking its cells. rich measures within the console's own width, in which
    everything fits."""
    return out.measure(grid, options=out.options.update_width(UNLIMITED)).maximum <= out.width


def print_rows(columns: Mapping[str, str], rows: Sequence[Mapping[str, str]], long: Collection[str]) -> None:
    """A table with columns of `long` text, which may wrap; each on its own line below its row if the terminal
    is too narrow. Cells are markup."""
    out = console()
    narrow = {name: side for name, side in columns.items() if name not in long}
    widths = {name: max(cell_len(name), *(Text.from_markup(row[name]).cell_len for row in rows)) for name in narrow}
    left = out.width - sum(width + 2 for width in widths.values())
    if left >= LEAST_WIDTH * (len(columns) - len(narrow)):
        grid = table(**columns)
        for name, column in zip(columns, grid.columns, strict=True):
            column.no_wrap = name not in long
        for row in rows:
            grid.add_row(*(row[name] for name in columns))
        out.print(grid)
        return
    for row in [{name: f"[bold]{name.replace('_', ' ')}[/]" for name in columns}, *rows]:
        cells = {name: Text.from_markup(row[name]) for name in columns}
        for name, side in narrow.items():
            cells[name].align(cast("AlignMethod", side), widths[name])
        gap = "  " if left >= 0 else " "
        out.print(Text(gap).join(cells[name] for name in narrow))
        for text in (cells[name] for name in columns if name in long and cells[name]):
            out.print(Padding(text, (0, 0, 0, 4)))


def count(number: float) -> str:
    """A whole number with thousands separators: 12,345,678."""
    return f"{round(number):,}"


def plain(text: str) -> str:
    """Text with its brackets escaped, which rich would read as markup."""
    return text.replace("[", r"\[")


class ProgressLines:
    """Progress in a pipe or a batch log: a line after a few seconds, then at increasing intervals."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic, first: float | None = None) -> None:
        self._out, self._clock, self._began = out, clock, clock()
        self._wait = FIRST_LINE if first is None else first
        self._next = self._began + self._wait
        self._left = TimeLeft(clock)

    def tell(self, what: str, share: float | None = None, more: str = "") -> None:
        """Print what is being done, the share of it that is done (0 to 1), the time left and `more`, if a line is
        due."""
        now = self._clock()
        self._left.update(share)
        if now < self._next:
            return
        self._wait = min(LAST_LINE, 1.5 * self._wait)
        self._next = now + self._wait
        done = f", {math.floor(100 * share + 1e-9)} %" if share is not None else ""  # 100 % only at the end
        left = f", {words}" if (words := time_left(self._left)) else ""
        passed = f"after {duration(now - self._began)}{left}"
        print(f"plait: {what.rstrip()}{done} {passed}{f'; {more}' if more else ''}", file=self._out, flush=True)


def time_left(left: TimeLeft) -> str:
    """Such as "about 3 m left", or empty if it is too early to tell."""
    return "" if left.seconds is None else f"about {duration(left.seconds)} left"


@contextmanager
def _repeated(lines: ProgressLines) -> Iterator[Callable[[str, float | None], None]]:
    """`lines.tell`, called again with the same until there is news: one long step also gets its lines."""
    latest: list[tuple[str, float | None]] = []
    ended, lock = threading.Event(), threading.Lock()

    def tell(what: str, share: float | None) -> None:
        with lock:
            latest[:] = [(what, share)]
            lines.tell(what, share)

    def repeat() -> None:
        while not ended.wait(REPEAT_SECONDS):
            with lock:
                for what, share in latest:
                    lines.tell(what, share)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[OnProgress]:
    """A bar on standard error that disappears when all is done; occasional lines if that is not a terminal."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    errors = SafeConsole(file=unguarded(sys.stderr))  # the current stream: the harness's output is captured
    if not errors.is_terminal:
        with _repeated(ProgressLines(sys.stderr)) as tell:
            yield lambda what, done, total: tell(what, done / total if total else None)
        return
    if quiet:
        yield ignore
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    left = TimeLeft()
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=errors, transient=True) as bars:
        shown = bars.add_task("", total=None, left="")

        def update(what: str, done: float, total: float | None) -> None:
            left.update(done / total if total else None)
            bars.update(shown, description=plain(what), completed=done, total=total, left=time_left(left))

        yield update


WIDE, HIGH = 68, 18

#: Position (x, y) and character.
Mark = tuple[float, float, str]


def character_plot(marks: Sequence[Mark], x_label: str, y_label: str) -> str:
    """A scatter: sizes on a logarithmic axis across, losses upwards. Later marks are drawn over earlier ones. Values
    that are not finite, or x not above 0, are left out."""
    kept = [(math.log(x), y, mark) for x, y, mark in marks if x > 0 and math.isfinite(x) and math.isfinite(y)]
    if not kept:
        return "nothing to draw"
    across, up = [x for x, _, _ in kept], [y for _, y, _ in kept]
    left, low = min(across), min(up)
    wide, high = (max(across) - left) or 1.0, (max(up) - low) or 1.0
    rows = [[" "] * WIDE for _ in range(HIGH)]
    for x, y, mark in kept:
        column, row = round((x - left) / wide * (WIDE - 1)), round((y - low) / high * (HIGH - 1))
        rows[HIGH - 1 - row][column] = mark
    labels = {0: f"{max(up):.4g}", HIGH - 1: f"{low:.4g}"}
    lines = [f"{labels.get(place, ''):>8} │{''.join(row).rstrip()}" for place, row in enumerate(rows)]
    ends = short(math.exp(left)), short(math.exp(max(across)))
    middle = f"{ends[0]}{x_label:^{WIDE - len(ends[0]) - len(ends[1])}}{ends[1]}"
    return "\n".join([f"{y_label:>8}", *lines, " " * 9 + "└" + "─" * WIDE, " " * 10 + middle])
