"""Charts, one package for all of plait's pictures: plain numbers in, an SVG document (or, for a page, an element) out.

axes      how a picture looks, axes, ticks, legends
xy        curves, scatter, step fronts, intervals; several panels in one figure
bars      shares with their intervals
heatmap   a cell for each value, and matrices with too many cells for labels
page      the same marks in a page's colours, light and dark

Compute, then draw: nothing here reads a record or a file.
"""

from __future__ import annotations

from plait.reporting.charts.axes import Axis
from plait.reporting.charts.bars import Bar, bars
from plait.reporting.charts.heatmap import Matrix, heat_map, matrices
from plait.reporting.charts.page import Line, Mark, colour, curves, scatter, shape, swatch
from plait.reporting.charts.xy import Panel, Series, figure, xy_chart

__all__ = [
    "Axis",
    "Bar",
    "Line",
    "Mark",
    "Matrix",
    "Panel",
    "Series",
    "bars",
    "colour",
    "curves",
    "figure",
    "heat_map",
    "matrices",
    "scatter",
    "shape",
    "swatch",
    "xy_chart",
]
