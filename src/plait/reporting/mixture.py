"""A picture of a supernet's choices: how likely each is in every layer, one panel a search.

PAR draws the same for one search (Mandava et al. 2020, arXiv:2009.04534, Fig. 2). Layers stand side by side, choices
below each other, a cell is the darker the likelier its choice; the letters below are the architecture that was found.
Compute, then draw: everything here is plain numbers and words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.errors import UserError
from plait.reporting.svg import CHARACTER, GRID, INK, PALE, Drawing, cut, shade, shades

CELL, ROW = 22.0, 16.0
NUMBERED = 4  # every so many layers have their number below
LONGEST_LABEL = 34  # characters
TITLE_ROOM = 74.0
BELOW_CELLS = 36.0  # the letters and the layers' numbers
BETWEEN = 34.0
LEGEND = 290.0  # its width


@dataclass(frozen=True)
class Panel:
    """One search: what each choice of each layer got, and the letter of the layer that was taken."""

    title: str
    probabilities: Sequence[Sequence[float]]
    letters: Sequence[str]


def mixture_chart(choices: Sequence[Sequence[str]], panels: Sequence[Panel], *, title: str) -> str:
    """An SVG document. `choices` names the choices of every layer; a cell is empty where a layer lacks one."""
    for panel in panels:
        _check(choices, panel)
    names = list(dict.fromkeys(name for layer in choices for name in layer))
    left = 24 + CHARACTER * min(LONGEST_LABEL, max(map(len, names), default=0))
    across, down = CELL * len(choices), ROW * len(names)
    each = down + BELOW_CELLS + BETWEEN
    # Few layers make for a narrow picture, whose titles and legend are wider than its cells.
    titles = CHARACTER * max([1.3 * len(title), *(len(panel.title) for panel in panels)])
    drawing = Drawing(left + max(across, titles, LEGEND) + 24, TITLE_ROOM + each * len(panels), title)
    drawing.text(left, 26, title, size=15, bold=True)
    _legend(drawing, left, 38)
    for number, panel in enumerate(panels):
        _draw(drawing, choices, names, panel, left, TITLE_ROOM + each * number)
    return str(drawing)


def _check(choices: Sequence[Sequence[str]], panel: Panel) -> None:
    if [len(layer) for layer in choices] != [len(row) for row in panel.probabilities]:
        raise UserError(f"{panel.title}: there should be one probability for every choice of each layer.")
    if len(panel.letters) != len(choices):
        raise UserError(f"{panel.title}: {len(choices)} layers, but {len(panel.letters)} letters.")


def _draw(
    drawing: Drawing, choices: Sequence[Sequence[str]], names: Sequence[str], panel: Panel, left: float, top: float
) -> None:
    bottom = top + ROW * len(names)
    drawing.text(left, top - 7, panel.title)
    for row, name in enumerate(names):
        words = cut(name, LONGEST_LABEL)
        drawing.text(left - 8, top + ROW * (row + 0.5) + 4, words, anchor="end", size=11, colour=PALE)
    for layer, (offered, likely) in enumerate(zip(choices, panel.probabilities, strict=True)):
        x = left + CELL * layer
        for name, probability in zip(offered, likely, strict=True):
            y = top + ROW * names.index(name)
            hint = f"layer {layer + 1}, {name}: {probability:.3f}"
            drawing.rect(x, y, CELL, ROW, shade(probability), stroke="#ffffff", hint=hint)
        drawing.text(x + CELL / 2, bottom + 14, panel.letters[layer], anchor="middle", bold=True)
        if (layer + 1) % NUMBERED == 0 or layer == 0:
            drawing.text(x + CELL / 2, bottom + 29, str(layer + 1), anchor="middle", size=10, colour=PALE)
    drawing.rect(left, top, CELL * len(choices), bottom - top, "none", stroke=GRID)
    for end in (len(choices) // 3, 2 * len(choices) // 3):
        x = left + CELL * end
        drawing.line(x, top - 3, x, bottom + 18, INK, dashed=True)


def _legend(drawing: Drawing, x: float, y: float) -> None:
    drawing.text(x, y + 9, "0", size=11, colour=PALE)
    drawing.bitmap(x + 11, y, 96, 10, shades(np.linspace(0, 1, 64)[None, :]))
    drawing.text(x + 111, y + 9, "1  probability · dashed: thirds", size=11, colour=PALE)
