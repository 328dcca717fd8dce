"""Models over three axes at once, as LiteTransformerSearch's Fig. 15 (Javaheripi et al. 2022, arXiv:2203.02094): a cube
seen from a corner, and beside it the three pairs of axes. A static SVG document that needs nothing else; what is
pointed at says its numbers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.errors import UserError
from plait.reporting.charts.axes import PAGE
from plait.reporting.charts.page import Mark, colour, scatter
from plait.reporting.front import PALETTE, axis_scale, axis_start, hint_of, value_of
from plait.reporting.svg import Drawing, label

WIDTH, HEIGHT, TOP = 1080.0, 900.0, 50.0
PANEL = (WIDTH / 2, (HEIGHT - TOP) / 2)
EDGE = 150.0  # pixels of the cube's edges
COS, SIN = math.cos(math.pi / 6), math.sin(math.pi / 6)
ON_FRONT, BEHIND, PAIRED = 0, None, 1  # series


@dataclass(frozen=True)
class Model:
    """One point: its three values in the order of the axes. `paired`: drawn apart, as a matched pair is."""

    values: tuple[float, float, float]
    hint: str = ""
    on_front: bool = True
    paired: bool = False


def cube_picture(models: Sequence[Model], axes: Sequence[str], title: str) -> str:
    """`axes`: what the three values are, with their units."""
    if len(axes) != 3 or not models:
        raise UserError(f"a picture in three dimensions has three axes; given: {', '.join(axes) or 'none'}.")
    drawing = Drawing(WIDTH, HEIGHT, title, background=PAGE.paper)
    drawing.text(24, 32, title, size=15, bold=True, colour=PAGE.ink)
    _cube(drawing, models, axes)
    for place, (x, y) in enumerate(((1, 0), (2, 0), (1, 2)), start=1):
        left, top = PANEL[0] * (place % 2), TOP + PANEL[1] * (place // 2)
        panel = scatter(
            [Mark(m.values[x], m.values[y], _series(m), m.hint) for m in models],
            title=f"{axes[y]} against {axes[x]}",
            x_label=axes[x],
            y_label=axes[y],
            x_from=axis_start([m.values[x] for m in models]),
            y_from=axis_start([m.values[y] for m in models]),
        )
        drawing.place(panel, left + 8, top, PANEL[0] - 16, PANEL[1])
    return re.sub(r"var\(--(\w+)\)", lambda name: PALETTE.get(name[1], name[0]), str(drawing))


def search_cube(found: dict[str, Any]) -> str:
    """The first three objectives of a search; `found` is the document of `plait search --json`."""
    names = [objective.rpartition(":")[2] for objective in found["objectives"]][:3]
    if len(names) < 3:
        raise UserError(f"a picture in three dimensions needs three objectives; this search had {', '.join(names)}.")
    rows = [*found["front"], *found["over_limit"]]
    scales = [axis_scale(name, [value_of(row, name) for row in rows]) for name in names]
    models = [
        Model(
            (_at(row, names, scales, 0), _at(row, names, scales, 1), _at(row, names, scales, 2)),
            hint_of(row, found),
            on_front=row["within"] is not False,
        )
        for row in rows
    ]
    axes = [
        f"{name.replace('_', ' ')}{f',{unit}' if unit else ''}" for name, (_, unit) in zip(names, scales, strict=True)
    ]
    title = f"{found['space']} by {found['method']}: {len(found['front'])} of {found['on_front']} models on the front"
    return cube_picture(models, axes, title)


def _at(row: dict[str, Any], names: Sequence[str], scales: Sequence[tuple[float, str]], axis: int) -> float:
    return value_of(row, names[axis]) / scales[axis][0]


def _series(model: Model) -> int | None:
    return PAIRED if model.paired else ON_FRONT if model.on_front else BEHIND


def _cube(drawing: Drawing, models: Sequence[Model], axes: Sequence[str]) -> None:
    """The first axis goes up, the second to the right and forward, the third to the left and forward."""
    ends = [(min(m.values[axis] for m in models), max(m.values[axis] for m in models)) for axis in range(3)]

    def share(model: Model, axis: int) -> float:
        low, high = ends[axis]
        return (model.values[axis] - low) / (high - low) if high > low else 0.5

    for corner in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        _edges(drawing, corner)
    for axis, at in enumerate(((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))):
        low, high = ends[axis]
        x, y = _seen(*at)
        anchor = ("middle", "start", "end")[axis]
        words = f"{axes[axis]}: {label(_digits(low))} to {label(_digits(high))}"
        drawing.text(x, y + (-10 if axis == 0 else 18), words, size=12, anchor=anchor, colour=PAGE.pale)
    # From the back to the front, so that what is near covers what is far.
    for model in sorted(models, key=lambda m: share(m, 1) + share(m, 2)):
        up, right, left = (share(model, axis) for axis in range(3))
        x, y = _seen(up, right, left)
        foot = _seen(0.0, right, left)
        drawing.line(x, y, *foot, PAGE.grid)
        drawing.mark("circle", x, y, 5, colour(_series(model)), stroke=PAGE.paper, hint=model.hint)


def _edges(drawing: Drawing, corner: tuple[int, int, int]) -> None:
    """Of one of the three faces behind: floor and two walls share the corner (0, 0, 0)."""
    axes = [axis for axis in range(3) if not corner[axis]]
    points = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]
    outline = []
    for first, second in points:
        place = [0.0, 0.0, 0.0]
        place[axes[0]], place[axes[1]] = float(first), float(second)
        outline.append(_seen(*place))
    for (x1, y1), (x2, y2) in itertools.pairwise(outline):
        drawing.line(x1, y1, x2, y2, PAGE.grid)


def _seen(up: float, right: float, left: float) -> tuple[float, float]:
    """Isometric: pixels of a place in the cube."""
    centre, floor = PANEL[0] / 2, TOP + PANEL[1] / 2 + 10
    return centre + EDGE * (right - left) * COS, floor + EDGE * ((right + left) * SIN - up)


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
