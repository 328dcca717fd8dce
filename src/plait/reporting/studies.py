"""Figures of the papers' studies, from plain numbers; each returns an SVG document.

Fronts against a baseline, proxies against their cost, shapes at equal size, rank correlations, accuracy by difficulty
and by latency, loss curves; latency over sequence length on logarithmic axes (PAR's Fig. 1, measured); and the
probability of each choice in every layer of a supernet (PAR's Fig. 2), one panel per search: layers are columns,
choices rows, darker cells are more likely choices, and the letters below are the architecture found.

LTS is LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094), MAD Mechanistic Architecture Design (Poli et
al. 2024, arXiv:2403.17844), PAR the PAR Transformer (Mandava et al. 2020, arXiv:2009.04534).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait.analysis.accuracy import DifficultyCurve
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError
from plait.reporting.axes import Axis
from plait.reporting.charts import Panel, Series, figure, xy_chart
from plait.reporting.heat_maps import heat_map
from plait.reporting.svg import CHARACTER, GRID, INK, PALE, Drawing, cut, shade, shades

MOST_SIZES = 7  # colours for groups of one size


@dataclass(frozen=True)
class Models:
    """A set of models: names, qualities, and costs by name. `lower`: lower quality values are better."""

    name: str
    labels: Sequence[str]
    quality: Sequence[float]
    costs: Mapping[str, Sequence[float]]


def front_figure(sets: Sequence[Models], quality: str, *, lower: bool, title: str) -> str:
    """LTS, Figs. 8 and 16: quality over each cost, a panel per cost. Marks are models; the steps are the front of each
    set, and hollow marks are models that another of their set dominates."""
    panels = []
    for cost in sets[0].costs:
        series = [drawn for some in sets for drawn in _front_series(some, cost, quality, lower)]
        panels.append(Panel(series, Axis(cost), Axis(quality)))
    return figure(panels, title=title)


def _front_series(some: Models, cost: str, quality: str, lower: bool) -> list[Series]:
    x, y = np.asarray(some.costs[cost], np.float64), np.asarray(some.quality, np.float64)
    on_front = pareto_front(np.column_stack([x, y if lower else -y]))
    order = np.argsort(x, kind="stable")
    hints = [
        f"{some.name}: {label}\n{cost}: {a:g}\n{quality}: {b:g}" for label, a, b in zip(some.labels, x, y, strict=True)
    ]
    front, rest = order[on_front[order]], order[~on_front[order]]

    def series(name: str, places: np.ndarray, joined: str) -> Series:
        xs, ys, shown = x[places].tolist(), y[places].tolist(), [hints[i] for i in places.tolist()]
        return Series(name, xs, ys, joined, hints=shown, faint=joined == "none", like=some.name)

    dominated = [series(f"{some.name}, dominated", rest, "none")] if len(rest) else []
    return [series(some.name, front, "step"), *dominated]


@dataclass(frozen=True)
class ProxyCost:
    """How well a proxy ranks (Spearman, with its interval), and its cost as a fraction of full training."""

    name: str
    src: float
    low: float
    high: float
    cost: float


def proxy_cost_figure(proxies: Sequence[ProxyCost], *, title: str, below: str = "") -> str:
    """LTS, Fig. 13a: rank correlation over the cost of a proxy. Free proxies are on the dashed line."""
    costs = [proxy.cost for proxy in proxies if proxy.cost > 0]
    free = 10.0 ** math.floor(math.log10(min(costs, default=1e-3)) - 0.5)  # position of cost 0 on the logarithmic axis
    series = [
        Series(
            proxy.name, [proxy.cost or free], [proxy.src], "none", [proxy.low], [proxy.high],
            [f"{proxy.name}\nSRC {proxy.src:.3f} ({proxy.low:.3f} to {proxy.high:.3f})\n"
             + (f"{100 * proxy.cost:.2g} % of the FLOPs of training" if proxy.cost else "costs nothing")],
        )
        for proxy in proxies
    ]  # fmt: skip
    ticks = [10.0**power for power in range(round(math.log10(free)) + 1, 1)]
    x = Axis("FLOPs, as a fraction of full training", log=True, low=free, high=1.0, ticks=ticks)
    y = Axis("Spearman's rank correlation", high=1.0)
    nothing = free if any(not proxy.cost for proxy in proxies) else None
    return xy_chart(series, title=title, below=below, x=x, y=y, marker=nothing, marker_label="free")


def aspect_figure(
    aspect: Sequence[float],
    size: Sequence[float],
    metrics: Mapping[str, Sequence[float]],
    groups: Sequence[Sequence[int]],
) -> str:
    """LTS, Fig. 13 of the second version (14 of the first): the first metric over the aspect ratio d_model / n_layer,
    and over every other metric. A colour is a group of equal size, those whose shapes
    differ most; the other models are hollow."""
    first, *others = metrics
    widest = sorted(groups, key=lambda group: -max(aspect[i] for i in group) / min(aspect[i] for i in group))
    chosen = sorted(widest[:MOST_SIZES], key=lambda group: size[group[0]])
    alone = sorted(set(range(len(aspect))) - {i for group in chosen for i in group})
    named = [(f"{_millions(size[group[0]])} parameters", group) for group in chosen]
    panels = []
    for name, values in (("aspect ratio, d_model / n_layer", aspect), *((other, metrics[other]) for other in others)):
        series = [
            Series(words, [values[i] for i in group], [metrics[first][i] for i in group], "none")
            for words, group in named
        ]
        if alone:
            rest = [values[i] for i in alone], [metrics[first][i] for i in alone]
            series.append(Series("other sizes", *rest, joined="none", faint=True))
        panels.append(Panel(series, Axis(name, log=values is aspect), Axis(first)))
    return figure(panels, title=f"{first} by shape, at equal size", columns=3 if len(panels) == 3 else 2)


def _millions(number: float) -> str:
    return f"{number / 1e6:.3g} M" if number >= 1e5 else f"{number:,.0f}"


def src_figure(cells: Sequence[Mapping[str, object]], subsets: str = "") -> str:
    """LTS, Fig. 19: rank correlations as a heat map. Cells have `subset`, `proxy`, `truth` and `src`. Of one subset:
    proxies down and truths across; of several: pairs of both down and subsets across."""
    several = len({cell["subset"] for cell in cells}) > 1
    names = [
        (f"{cell['proxy']}, {cell['truth']}", cell["subset"]) if several else (cell["proxy"], cell["truth"])
        for cell in cells
    ]
    correlations = {(str(row), str(column)): cell["src"] for (row, column), cell in zip(names, cells, strict=True)}
    down, across = (list(dict.fromkeys(pair[side] for pair in correlations)) for side in (0, 1))
    values = np.array([[correlations.get((row, column), math.nan) for column in across] for row in down], np.float64)
    x_label = subsets if several else ""
    title = "Spearman's rank correlation"
    return heat_map(values, title=title, x_label=x_label, y_label="", x_ticks=across, y_ticks=down, low=-1.0)


def difficulty_figure(task: str, curves: Sequence[DifficultyCurve]) -> str:
    """MAD, Figs. B.2 to B.7: accuracy on one task over each variable of its difficulty, a panel per variable. Where an
    architecture has several seeds, a bar goes from the lowest to the highest."""
    panels = []
    for variable in dict.fromkeys(curve.variable for curve in curves):
        mine = [curve for curve in curves if curve.variable == variable]
        values = sorted({value for curve in mine for value in curve.values})
        far = values[0] > 0 and values[-1] / values[0] >= 8
        series = [Series(c.architecture, c.values, c.accuracy, low=c.low, high=c.high) for c in mine]
        axis = Axis(variable.replace("_", " "), log=far, ticks=values if len(values) <= 12 else None)
        panels.append(Panel(series, axis, Axis("test accuracy (↑ better)", low=0.0, high=1.0)))
    return figure(panels, title=f"{task}: accuracy by difficulty")


def accuracy_figure(models: Sequence[str], latency: Sequence[float], accuracy: Mapping[str, Sequence[float]]) -> str:
    """Accuracy over latency, a panel per task. `accuracy` has one value per model in per cent, or nan."""
    panels = [
        Panel(
            [Series(model, [ms], [value], "none") for model, ms, value in zip(models, latency, values, strict=True)],
            Axis("latency, ms (↓ better)"), Axis("accuracy, % (↑ better)"), title=task,
        )
        for task, values in accuracy.items()
    ]  # fmt: skip
    return figure(panels, title="Accuracy by latency", columns=3 if len(panels) > 4 else 2)


def loss_figure(curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str) -> str:
    """PAR, Fig. 6: training losses of several runs over steps."""
    series = [Series.of(name, points) for name, points in curves.items()]
    return xy_chart(series, title=title, x=Axis("optimizer step"), y=Axis("loss, nats per token (↓ better)"))


#: Reference lines of power laws.
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
    """`below` is the subtitle: where and how it was measured."""
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


CELL, ROW = 22.0, 16.0
NUMBERED = 4  # every fourth layer is numbered
LONGEST_LABEL = 34  # characters
TITLE_ROOM = 74.0
BELOW_CELLS = 36.0  # the letters and the layers' numbers
BETWEEN = 34.0
LEGEND = 290.0  # its width


@dataclass(frozen=True)
class LayerChoices:
    """One search: the probability of each choice in each layer, and the letter of the choice taken."""

    title: str
    probabilities: Sequence[Sequence[float]]
    letters: Sequence[str]


def mixture_chart(choices: Sequence[Sequence[str]], panels: Sequence[LayerChoices], *, title: str) -> str:
    """An SVG document. `choices` names the choices of every layer; a cell is empty if a layer lacks one."""
    for panel in panels:
        _check(choices, panel)
    names = list(dict.fromkeys(name for layer in choices for name in layer))
    left = 24 + CHARACTER * min(LONGEST_LABEL, max(map(len, names), default=0))
    across, down = CELL * len(choices), ROW * len(names)
    panel_height = down + BELOW_CELLS + BETWEEN
    # With few layers, titles and legend are wider than the cells.
    titles = CHARACTER * max([1.3 * len(title), *(len(panel.title) for panel in panels)])
    drawing = Drawing(left + max(across, titles, LEGEND) + 24, TITLE_ROOM + panel_height * len(panels), title)
    drawing.text(left, 26, title, size=15, bold=True)
    _legend(drawing, left, 38)
    for number, panel in enumerate(panels):
        _draw(drawing, choices, names, panel, left, TITLE_ROOM + panel_height * number)
    return str(drawing)


def _check(choices: Sequence[Sequence[str]], panel: LayerChoices) -> None:
    if [len(layer) for layer in choices] != [len(row) for row in panel.probabilities]:
        raise UserError(f"{panel.title}: there should be one probability for every choice of each layer.")
    if len(panel.letters) != len(choices):
        raise UserError(f"{panel.title}: {len(choices)} layers, but {len(panel.letters)} letters.")


def _draw(
    drawing: Drawing,
    choices: Sequence[Sequence[str]],
    names: Sequence[str],
    panel: LayerChoices,
    left: float,
    top: float,
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
