"""Series over two axes, in one panel or several: curves, marks, step fronts and intervals. An SVG document as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from plait.reporting.charts.axes import FILE, LEGEND_ROW, Axis, Entry, draw_axes, draw_legend, draw_mark, legend_rows
from plait.reporting.svg import Drawing, Scale, cut

MOST_DOTS = 40  # a curve of more points is drawn without marking each
LEFT, RIGHT, BOTTOM = 72.0, 24.0, 56.0  # beside and below a panel
ALONE, SEVERAL = (664.0, 320.0), (330.0, 240.0)  # width and height of a panel, inside its axes
TITLE_CHARACTER = 8.4


@dataclass(frozen=True)
class Series:
    """Values at places, one name and one colour.

    joined   line, step (as a Pareto front: nothing is known to lie below it) or none
    low/high ends of an interval of each y
    hints    what each mark says when pointed at; else its numbers
    note     a few words in the legend
    faint    hollow marks: what is there beside what counts, grey unless it is like a series
    like     the name of the series whose colour and mark it has
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    joined: str = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hints: Sequence[str] = ()
    note: str = ""
    faint: bool = False
    like: str = ""


@dataclass(frozen=True)
class Panel:
    """Series over one pair of axes. `marker` is an x with a dashed line and words. `powers` are (exponent, words) of
    dashed lines that show what a power law looks like, for two logarithmic axes."""

    series: Sequence[Series]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    title: str = ""
    marker: float | None = None
    marker_label: str = ""
    powers: Sequence[tuple[int, str]] = ()


def xy_chart(
    series: Sequence[Series], *, title: str, x: Axis, y: Axis, below: str = "", marker: float | None = None,
    marker_label: str = "", powers: Sequence[tuple[int, str]] = (),
) -> str:  # fmt: skip
    """One panel."""
    panel = Panel(series, x, y, marker=marker, marker_label=marker_label, powers=powers)
    return figure([panel], title=title, below=below)


def figure(panels: Sequence[Panel], *, title: str, below: str = "", columns: int = 2) -> str:
    """Panels side by side under one title and one legend; `below` are a few words under the title. A series of the
    same name has the same colour in all. What is not finite is left out."""
    wide, high = ALONE if len(panels) < 2 else SEVERAL
    across = max(1, min(columns, len(panels)))
    down = -(-len(panels) // across)
    width = across * (LEFT + wide + RIGHT)
    numbers = _numbers(panels)
    rows = legend_rows(_entries(panels, numbers), width - LEFT - RIGHT)
    head = 48.0 + (18 if below else 0)
    top = head + LEGEND_ROW * len(rows)
    above = 26.0 if any(panel.title for panel in panels) else 0.0
    each = above + high + BOTTOM
    drawing = Drawing(width, top + down * each, title)
    drawing.text(LEFT, 26, cut(title, int((width - LEFT - 12) / TITLE_CHARACTER)), size=15, bold=True)
    if below:
        drawing.text(LEFT, 44, cut(below, int((width - LEFT - 12) / 5.9)), size=11, colour=FILE.pale)
    draw_legend(drawing, rows, LEFT, width - RIGHT, head, FILE)
    for place, panel in enumerate(panels):
        left = LEFT + (place % across) * (LEFT + wide + RIGHT)
        y = top + (place // across) * each + above
        if panel.title:
            drawing.text(left, y - 10, cut(panel.title, int(wide / 6.6)), bold=True, size=12)
        _draw(drawing, panel, numbers, (left, left + wide), (y + high, y))
    return str(drawing)


def front_steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a staircase through points in the order of x: along at the old y, then to the new."""
    steps = list(points[:1])
    for (_, before), (x, y) in pairwise(points):
        steps += [(x, before), (x, y)]
    return steps


def _numbers(panels: Sequence[Panel]) -> dict[str, int]:
    """Colour and mark of each name, in the order of first sight. Nameless series count one by one."""
    names = dict.fromkeys(s.like or s.name for panel in panels for s in panel.series if s.like or not s.faint)
    grey = {s.name: -1 for panel in panels for s in panel.series if s.faint and not s.like}
    return {name: number for number, name in enumerate(names)} | grey


def _entries(panels: Sequence[Panel], numbers: dict[str, int]) -> list[Entry]:
    named: dict[str, Series] = {}
    for panel in panels:
        for series in panel.series:
            named.setdefault(series.name, series)
    return [
        Entry(name, numbers[s.like or name], s.note, line=s.joined != "none", mark=_dotted(s) or s.faint, faint=s.faint)
        for name, s in named.items()
    ]


def _dotted(series: Series) -> bool:
    return series.joined == "none" or len(series.x) <= MOST_DOTS


def _draw(
    drawing: Drawing, panel: Panel, numbers: dict[str, int], across: tuple[float, float], down: tuple[float, float]
) -> None:
    kept = [_kept(series, panel) for series in panel.series]
    xs = [series.x[i] for series, places in zip(panel.series, kept, strict=True) for i in places]
    ys = [
        value
        for series, places in zip(panel.series, kept, strict=True)
        for i in places
        for value in (series.y[i], *(end[i] for end in (series.low, series.high) if len(end)))
        if panel.y.keeps(value)
    ]
    x_of, y_of = panel.x.scale(xs, *across, room=0.03), panel.y.scale(ys, *down)
    draw_axes(drawing, x_of, y_of, panel.x.label, panel.y.label, FILE,
              panel.x.marked(x_of, xs), panel.y.marked(y_of, ys))  # fmt: skip
    for power, words in panel.powers:
        _guide(drawing, x_of, y_of, power, words)
    if panel.marker is not None and x_of.low <= panel.marker <= x_of.high:
        _marker(drawing, x_of, y_of, panel.marker, panel.marker_label)
    # What is faint goes first, so that it covers nothing.
    for series, places in sorted(zip(panel.series, kept, strict=True), key=lambda pair: not pair[0].faint):
        _draw_series(drawing, panel, series, places, numbers[series.like or series.name], x_of, y_of)


def _kept(series: Series, panel: Panel) -> list[int]:
    pairs = zip(series.x, series.y, strict=True)
    return [i for i, (x, y) in enumerate(pairs) if panel.x.keeps(x) and panel.y.keeps(y)]


def _draw_series(
    drawing: Drawing, panel: Panel, series: Series, places: Sequence[int], number: int, x_of: Scale, y_of: Scale
) -> None:
    placed = [(x_of(series.x[i]), y_of(series.y[i])) for i in places]
    if series.joined != "none":
        drawing.path(front_steps(placed) if series.joined == "step" else placed, FILE.colour(number))
    if not _dotted(series):
        return
    for (x, y), i in zip(placed, places, strict=True):
        if len(series.low) and math.isfinite(series.low[i]) and math.isfinite(series.high[i]):
            drawing.line(x, y_of(series.low[i]), x, y_of(series.high[i]), FILE.colour(number), width=1.5)
        hint = series.hints[i] if len(series.hints) else _hint(series, i, panel)
        draw_mark(drawing, number, x, y, FILE, hint=hint, faint=series.faint)


def _hint(series: Series, i: int, panel: Panel) -> str:
    x, y = (f"{axis.label}: {value:.4g}" for axis, value in ((panel.x, series.x[i]), (panel.y, series.y[i])))
    return "\n".join(words for words in (series.name, x, y) if words)


def _marker(drawing: Drawing, x_of: Scale, y_of: Scale, at: float, words: str) -> None:
    drawing.line(x_of(at), y_of.last, x_of(at), y_of.first, FILE.pale, dashed=True)
    near_end = x_of(at) > x_of.first + 0.7 * (x_of.last - x_of.first)
    shift, anchor = (-6, "end") if near_end else (6, "start")
    drawing.text(x_of(at) + shift, y_of.last + 12, words, size=11, colour=FILE.pale, anchor=anchor)


def _guide(drawing: Drawing, x_of: Scale, y_of: Scale, power: int, words: str) -> None:
    """A dashed line of this slope that rises to the frame's upper right corner, as far as it is inside the frame."""
    x, y = x_of.high, y_of.high
    start = max(x_of.low, x * (y_of.low / y) ** (1 / power))
    drawing.line(x_of(start), y_of(y * (start / x) ** power), x_of(x), y_of(y), FILE.pale, dashed=True)
    # Above the flatter line and below the steeper one: outside of the wedge in which most measurements lie.
    at = max(start, (x_of.low * x) ** 0.5)
    shift, anchor = (-7, "end") if power == 1 else (15, "start")
    place = x_of(at) - shift / 2, y_of(y * (at / x) ** power) + shift
    drawing.text(*place, words, size=11, colour=FILE.pale, anchor=anchor)
