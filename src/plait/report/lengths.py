"""Latency of blocks over sequence length, both axes logarithmic: a power of the length is a straight line. Plain
numbers in, an SVG document out. The PAR Transformer's Figure 1 (Mandava et al. 2020, arXiv:2009.04534), measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plait.report.svg import COLOURS, GRID, INK, PALE, SHAPES, Drawing, Scale, cut, label

WIDTH, HEIGHT = 760.0, 400.0  # of everything but the legend
LEFT, RIGHT, TOP, BOTTOM = 78.0, 36.0, 62.0, 56.0
LEGEND_ROW = 20.0
MARKS = ("circle", *SHAPES)
#: Lines that show what a power looks like.
GUIDES = ((1, "∝ N"), (2, "∝ N²"))


@dataclass(frozen=True)
class BlockLine:
    """One block: seconds at each length, with their intervals, and a few words (its exponents) for the legend."""

    name: str
    seconds: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    words: str = ""


def length_chart(lines: Sequence[BlockLine], lengths: Sequence[int], *, title: str, below: str = "") -> str:
    """`below` stands under the title: where and how it was measured."""
    top = TOP + LEGEND_ROW * len(lines)
    drawing = Drawing(WIDTH, top + HEIGHT - TOP, title)
    every = [1e3 * value for line in lines for value in (*line.low, *line.high, *line.seconds)]
    x_of = Scale(lengths[0] / 1.06, lengths[-1] * 1.06, LEFT, WIDTH - RIGHT, log=True)
    y_of = Scale(min(every) / 1.25, max(every) * 1.25, drawing.height - BOTTOM, top, log=True)
    drawing.text(LEFT, 26, title, size=15, bold=True)
    drawing.text(LEFT, 44, below, size=11, colour=PALE)
    _frame(drawing, x_of, y_of, lengths)
    for power, words in GUIDES:
        _guide(drawing, x_of, y_of, power, words)
    for number, line in enumerate(lines):
        _draw(drawing, line, number, lengths, x_of, y_of)
    return str(drawing)


def _draw(drawing: Drawing, line: BlockLine, number: int, lengths: Sequence[int], x_of: Scale, y_of: Scale) -> None:
    colour, shape = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
    placed = [(x_of(n), y_of(1e3 * seconds)) for n, seconds in zip(lengths, line.seconds, strict=True)]
    drawing.path(placed, colour)
    for (x, y), n, seconds, low, high in zip(placed, lengths, line.seconds, line.low, line.high, strict=True):
        drawing.line(x, y_of(1e3 * low), x, y_of(1e3 * high), colour, width=1.5)
        hint = f"{line.name}\n{n:,} tokens: {1e3 * seconds:.3g} ms ({1e3 * low:.3g} to {1e3 * high:.3g})"
        drawing.mark(shape, x, y, 4.5, colour, stroke="#ffffff", hint=hint)
    y = 62 + LEGEND_ROW * number
    drawing.line(LEFT, y, LEFT + 26, y, colour, width=2)
    drawing.mark(shape, LEFT + 13, y, 4.5, colour, stroke="#ffffff")
    drawing.text(LEFT + 34, y + 4, cut(line.name, 60))
    drawing.text(WIDTH - RIGHT, y + 4, line.words, anchor="end", colour=PALE)


def _frame(drawing: Drawing, x_of: Scale, y_of: Scale, lengths: Sequence[int]) -> None:
    left, right, bottom, top = x_of.first, x_of.last, y_of.first, y_of.last
    for value in _decades(y_of.low, y_of.high):
        drawing.line(left, y_of(value), right, y_of(value), GRID)
        drawing.text(left - 8, y_of(value) + 4, label(value), anchor="end", colour=PALE)
    for value in _apart(lengths, x_of):
        drawing.line(x_of(value), bottom, x_of(value), bottom + 5, PALE)
        drawing.text(x_of(value), bottom + 19, label(value), anchor="middle", colour=PALE)
    drawing.line(left, bottom, right, bottom, PALE)
    drawing.text((left + right) / 2, drawing.height - 14, "sequence length N, tokens", anchor="middle", colour=INK)
    drawing.text(20, (top + bottom) / 2, "latency of a block, ms", anchor="middle", turned=True, colour=INK)


def _apart(lengths: Sequence[int], x_of: Scale, least: float = 44.0) -> list[int]:
    """The measured lengths, as many as can be told apart when they are written, the longest among them."""
    kept: list[int] = []
    for length in reversed(lengths):
        if not kept or x_of(kept[-1]) - x_of(length) >= least:
            kept.append(length)
    return kept


def _decades(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis: powers of ten, with 2 and 5 times them where there are few."""
    steps = (1, 2, 5) if high / low < 10**2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for step in steps if low <= (value := step * 10.0**power) <= high]


def _guide(drawing: Drawing, x_of: Scale, y_of: Scale, power: int, words: str) -> None:
    """A dashed line of this slope that rises to the frame's upper right corner, as far as it is inside the frame."""
    x, y = x_of.high, y_of.high
    start = max(x_of.low, x * (y_of.low / y) ** (1 / power))
    drawing.line(x_of(start), y_of(y * (start / x) ** power), x_of(x), y_of(y), PALE, dashed=True)
    # Above the flatter line and below the steeper one: outside of the wedge in which most measurements lie.
    at = max(start, (x_of.low * x) ** 0.5)
    shift, anchor = (-7, "end") if power == 1 else (15, "start")
    drawing.text(x_of(at) - shift / 2, y_of(y * (at / x) ** power) + shift, words, size=11, colour=PALE, anchor=anchor)
