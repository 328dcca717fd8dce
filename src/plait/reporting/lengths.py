"""Latency of blocks over sequence length, both axes logarithmic: a power of the length is a straight line. Plain
numbers in, an SVG document out. The PAR Transformer's Figure 1 (Mandava et al. 2020, arXiv:2009.04534), measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.reporting.charts.axes import Axis
from plait.reporting.charts.xy import Series, xy_chart

#: Lines that show what a power looks like.
POWERS = ((1, "∝ N"), (2, "∝ N²"))


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
    return xy_chart(
        [_series(line, lengths) for line in lines],
        title=title,
        below=below,
        x=Axis("sequence length N, tokens", log=True, ticks=lengths),
        y=Axis("latency of a block, ms", log=True),
        powers=POWERS,
    )


def _series(line: BlockLine, lengths: Sequence[int]) -> Series:
    y, low, high = ([1e3 * value for value in values] for values in (line.seconds, line.low, line.high))
    hints = [f"{line.name}\n{n:,} tokens: {y[i]:.3g} ms ({low[i]:.3g} to {high[i]:.3g})" for i, n in enumerate(lengths)]
    return Series(line.name, lengths, y, low=low, high=high, hints=hints, note=line.words)
