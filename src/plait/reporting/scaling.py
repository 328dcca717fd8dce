"""Fitted scaling laws as figures, which are SVG documents, and as a self-contained page.

The figures follow MAD (Poli et al. 2024, arXiv:2403.17844): IsoFLOP curves with their parabolas, N* and D* against the
budget, compute-optimal and state-optimal frontiers and the cost of suboptimal sizes (Figures 4.1 to 4.3 and D.2), batch
sizes that grow within a group (Figure C.1), and probe scores against the loss at scale (Figure 5.1).

The page says what to train at the target, with what certainty, and has all figures. Its panels are those of `plait
scale fit --svg`, in the page's colours. In addition MAD's findings are tested on these
runs, and the effect of a batch size that grows within a group is simulated (Poli et al. 2024, Figure C.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from plait.analysis.scaling_document import ends, notes, number, shown
from plait.analysis.scaling_findings import findings
from plait.analysis.scaling_laws import CANNOT_SAY, Estimate, Law, Laws
from plait.analysis.scaling_runs import ALL
from plait.analysis.scaling_simulation import CHINCHILLA, pitfall
from plait.reporting.axes import Axis, swatch
from plait.reporting.charts import Panel, Series, figure, series_numbers, xy_chart
from plait.reporting.page import Child, card, grid, legend, note, page, section, table, tag, tiles
from plait.reporting.plots import panel_plot

FLOPS, PARAMS, LOSS = "FLOPs", "parameters", "loss, nats per token (↓ better)"
POINTS = 60  # points of a smooth curve


def scaling_figure(laws: Laws) -> str:
    """A panel of IsoFLOP curves per architecture, then the frontiers and the excess loss of suboptimal sizes."""
    panels = [isoflop_panel(laws, law) for law in laws.laws.values() if law.groups]
    panels += [*frontier_panels(laws), loss_panel(laws), gap_panel(laws)]
    state = state_panel(laws)
    if state is not None:
        panels.append(state)
    lowest, highest = laws.runs.flops.min(), laws.runs.flops.max()
    below = f"{len(laws.runs)} runs from {lowest:.3g} to {highest:.3g} FLOPs; bars and bands are 90 % intervals"
    return figure(panels, title="Scaling laws", below=below)


def isoflop_panel(laws: Laws, law: Law) -> Panel:
    """Runs of each budget over model size, the fitted parabola, and its minimum."""
    series = []
    for group in law.groups:
        name = f"{group.flops:.2g} FLOPs".replace("e+", "e")
        params, loss = laws.runs.params[group.runs], laws.runs.loss[group.runs]
        order = np.argsort(params)
        series.append(Series(name, params[order].tolist(), loss[order].tolist(), joined="none"))
        x, y = parabola_curve(params, loss)
        series.append(Series("", x, y, like=name))
    series += _without_parabola(laws, law)
    return Panel(series, Axis(PARAMS, log=True), Axis(LOSS), title="" if law.name == ALL else law.name)


def _without_parabola(laws: Laws, law: Law) -> list[Series]:
    """Runs of budgets with fewer than three sizes, by budget."""
    runs = laws.runs
    drawn = {int(run) for group in law.groups for run in group.runs}
    by_budget: dict[str, list[int]] = {}
    for run in runs.of(law.name).tolist():
        if run not in drawn:
            by_budget.setdefault(f"{runs.flops[run]:.2g} FLOPs".replace("e+", "e"), []).append(run)
    return [
        Series(name, runs.params[places].tolist(), runs.loss[places].tolist(), joined="none")
        for name, places in by_budget.items()
    ]


def parabola_curve(params: np.ndarray, loss: np.ndarray) -> tuple[list[float], list[float]]:
    n = np.log(params)
    fitted = np.polynomial.Polynomial.fit(n, loss, 2)
    x = np.linspace(n.min(), n.max(), POINTS)
    return np.exp(x).tolist(), fitted(x).tolist()


def frontier_panels(laws: Laws) -> list[Panel]:
    """N* and D* against the budget: the parabolas' with their intervals, the surface's as lines up to the target."""
    sizes: list[Series] = []
    tokens: list[Series] = []
    for law in laws.laws.values():
        budgets = _budgets(laws, law)
        optima = [law.surface.optimum(flops, law.cost) for flops in budgets]
        sizes.append(Series(law.name, budgets, [float(optimum[0]) for optimum in optima]))
        tokens.append(Series(law.name, budgets, [float(optimum[1]) for optimum in optima]))
        target = law.frontier_estimates()
        for series, key in ((sizes, "N_star"), (tokens, "D_star")):
            series.append(_marks(law.name, "at the target", [laws.target], [target[key]]))
        good = [group for group in law.groups if group.bracketed]
        n = [Estimate.of(np.exp(group.best_n), np.exp(group.best_n_B)) for group in good]
        at = [group.flops for group in good]
        sizes.append(_marks(law.name, "by a parabola", at, n))
        d = [
            Estimate.of(
                law.cost.tokens(np.asarray(group.flops), np.exp(group.best_n)),
                law.cost.tokens(np.asarray(group.flops), np.exp(group.best_n_B)),
            )
            for group in good
        ]
        tokens.append(_marks(law.name, "by a parabola", at, d))
    x = Axis(FLOPS, log=True)
    panels = [
        Panel(sizes, x, Axis("N*, parameters", log=True), title="Best size"),
        Panel(tokens, x, Axis("D*, tokens", log=True), title="Best number of tokens"),
    ]
    return [_with_target(panel, laws) for panel in panels]


def _marks(name: str, words: str, x: Sequence[float], y: Sequence[Estimate]) -> Series:
    """Estimates with their intervals, in the colour of an architecture, which the legend lists once."""
    hints = [f"{name}, {words}\n{at:.3g} {FLOPS}: {shown(estimate)}" for at, estimate in zip(x, y, strict=True)]
    low, high = ([getattr(estimate, end) for estimate in y] for end in ("low", "high"))
    return Series("", list(x), [estimate.value for estimate in y], "none", low, high, hints, like=name)


def _budgets(laws: Laws, law: Law) -> list[float]:
    least = float(laws.runs.flops[laws.runs.of(law.name)].min())
    return [float(flops) for flops in np.geomspace(min(least, laws.target), max(law.largest, laws.target), POINTS)]


def _with_target(panel: Panel, laws: Laws) -> Panel:
    """The panel with marks of the target and of the largest trained budget."""
    return replace(panel, marker=laws.target, marker_label="target", known_to=float(laws.runs.flops.max()))


def loss_panel(laws: Laws) -> Panel:
    """The compute-optimal frontier."""
    series = []
    for law in laws.laws.values():
        budgets = _budgets(laws, law)
        losses = [float(law.surface.optimum(flops, law.cost)[2]) for flops in budgets]
        series.append(Series(law.name, budgets, losses))
        at = [*(group.flops for group in law.groups), laws.target]
        estimates = [law.frontier_estimates(flops)["loss"] for flops in at]
        series.append(_marks(law.name, "loss at the best size", at, estimates))
    return _with_target(Panel(series, Axis(FLOPS, log=True), Axis(LOSS), "Compute-optimal frontier"), laws)


def gap_panel(laws: Laws) -> Panel:
    """The excess loss of suboptimal sizes at the target."""
    offsets = [float(offset) for offset in np.geomspace(1 / 8, 8, 13)]
    series = []
    for law in laws.laws.values():
        gaps = [law.gap(offset) for offset in offsets]
        values, low, high = ([getattr(gap, end) for gap in gaps] for end in ("value", "low", "high"))
        series.append(Series(law.name, offsets, values, low=low, high=high))
    axes = Axis("size, as a multiple of N*", log=True), Axis("loss above the best, nats per token")
    return Panel(series, *axes, title="Off the frontier, same FLOPs")


def state_panel(laws: Laws) -> Panel | None:
    """Perplexity over the state at the optimum of each group (MAD, Figure 4.3, right)."""
    series = []
    for name, curve in laws.state_curves.items():
        perplexity_BG = np.exp(curve.log_perplexity_BG)
        estimates = [Estimate.of(perplexity_BG[0, g], perplexity_BG[1:, g]) for g in range(perplexity_BG.shape[1])]
        values, low, high = ([getattr(estimate, end) for estimate in estimates] for end in ("value", "low", "high"))
        series.append(Series(name, np.exp(curve.log_state_BG[0]).tolist(), values, "none", low, high))
    axes = Axis("state per sequence, numbers", log=True), Axis("perplexity (↓ better)", log=True)
    return Panel(series, *axes, title="State-optimal frontier") if series else None


def pitfall_panel(curves: Mapping[str, Any]) -> Panel:
    """MAD, Figure C.1: one group with a fixed batch, and with one that grows with the size."""
    params = [float(n) for n in curves["params"]]
    series = [
        Series(
            f"{kind} batch", params, [float(loss) for loss in curves[f"{kind}_loss"]],
            note=f"N* {curves[f'{kind}_best']:.3g}",
        )
        for kind in ("fixed", "growing")
    ]  # fmt: skip
    return Panel(series, Axis(PARAMS, log=True), Axis(LOSS))


def pitfall_figure(curves: Mapping[str, Any], flops: float) -> str:
    title = "A batch that grows inside an IsoFLOP group hides the best size"
    below = f"{flops:.3g} FLOPs, simulated from a known surface and the critical batch"
    return figure([pitfall_panel(curves)], title=title, below=below)


def probe_figure(rows: Sequence[Mapping[str, Any]], budget: float) -> str:
    """MAD, Figure 5.1: compute-optimal loss over the probes' score, one mark per architecture."""
    scores, losses = [float(row["score"]) for row in rows], [float(row["loss"]) for row in rows]
    series = Series(
        "architectures", scores, losses, "none", [float(row["low"]) for row in rows],
        [float(row["high"]) for row in rows], hints=[str(row["architecture"]) for row in rows],
    )  # fmt: skip
    return xy_chart(
        [series], title=f"Probe scores against loss at {budget:.3g} FLOPs", x=Axis("mean probe accuracy"), y=Axis(LOSS)
    )


MOST_COLUMNS = 3  # architectures side by side in a table
SURFACE = 5  # number of surface parameters of a law
PITFALL_FLOPS, PITFALL_BATCH = 2e20, 2**19
LETTERS = {"E": "E", "A": "A", "B": "B", "alpha": "α", "beta": "β", "a": "a", "b": "b", "N_star": "N* at the target",
           "D_star": "D* at the target", "loss": "loss at the target"}  # fmt: skip
LAW = (
    "Fitted: loss = E + A / N^α + B / D^β for N parameters and D tokens. At C FLOPs the best size is N* ∝ C^a, trained "
    "on D* ∝ C^b tokens. Each number has its 90 % interval; square brackets mark what the data do not determine."
)


def scaling_page(laws: Laws, source: str) -> str:
    """The self-contained page."""
    runs = laws.runs
    title = laws_title(laws)
    lead = (
        f"{len(runs)} runs from {source}, {power_of_ten(runs.flops.min())} to "
        f"{power_of_ten(runs.flops.max())} FLOPs; losses in nats per {runs.unit}, all intervals 90 %."
    )
    return page(title, tag("header", tag("h1", title), tag("p", lead, class_="lead")), *laws_parts(laws))


def laws_title(laws: Laws) -> str:
    return f"What to train at {power_of_ten(laws.target)} FLOPs: {_advice(laws)}"


def power_of_ten(value: float) -> str:
    """4e9 instead of 4e+09."""
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")


def laws_parts(laws: Laws) -> list[Child]:
    """All charts and tables of the laws, as parts of a page."""
    curves = [isoflop_panel(laws, law) for law in laws.laws.values() if law.groups]
    state = state_panel(laws)
    return [
        _figures(laws),
        section("Cautions", tag("ul", *(tag("li", text) for text in notes(laws)), class_="points"))
        if notes(laws)
        else "",
        section("The laws", note(LAW), *_laws(laws)),
        _comparisons(laws),
        _figures_section("IsoFLOP curves", "Loss over model size at each budget, with the fitted parabola.", curves),
        _figures_section(
            "Compute- and state-optimal frontiers",
            "Lines are the fitted surface's; marks with 90 % intervals are the parabolas', and the surface's at the "
            "target (dashed). The shaded part is extrapolated beyond all trained budgets. "
            "State-optimal: perplexity over the state at each group's best size, lower and further left is better.",
            [*frontier_panels(laws), loss_panel(laws), *([] if state is None else [state])],
        ),
        _figures_section(
            "Off the frontier", "What another size than the best costs at the same FLOPs.", [gap_panel(laws)]
        ),
        _findings(laws),
        _figures_section(
            "The batch pitfall",
            "Simulated: a batch that grows with the size inside a group makes larger models look worse than they are.",
            [pitfall_panel(pitfall(CHINCHILLA, PITFALL_FLOPS, PITFALL_BATCH))],
        ),
    ]


def _advice(laws: Laws) -> str:
    best = laws.best
    estimates = best.frontier_estimates()
    sizes = f"{number(estimates['N_star'].value)} parameters on {number(estimates['D_star'].value)} {laws.runs.unit}s"
    if estimates["N_star"].wide:
        sizes = f"{CANNOT_SAY} how large"
    if best.name == ALL:
        return sizes
    sure = all(comparison.sure for comparison in laws.comparisons if comparison.better == best.name)
    if not sure and estimates["N_star"].wide:
        return f"{CANNOT_SAY} which model, nor how large"
    return f"{best.name}, {sizes}" if sure else f"{best.name} or another ({CANNOT_SAY}), {sizes}"


def _figures(laws: Laws) -> Element:
    best = laws.best
    estimates = {**best.surface_estimates(), **best.frontier_estimates()}
    whose = "" if best.name == ALL else best.name
    rows = [("best size, parameters", estimates["N_star"]), (f"{laws.runs.unit}s to train it on", estimates["D_star"]),
            ("loss there, nats", estimates["loss"]), ("lowest possible loss, E", estimates["E"])]  # fmt: skip
    return tiles([
        (what, "?" if estimate.wide else number(estimate.value),
         f"{whose}: {CANNOT_SAY}".removeprefix(": ") if estimate.wide else f"{ends(estimate)} {whose}".strip())
        for what, estimate in rows
    ])  # fmt: skip


def _laws(laws: Laws) -> list[Element]:
    """A column per architecture if they fit side by side; otherwise a row per architecture, with separate tables for
    the surface and the target."""
    every, narrow = laws.laws.values(), len(laws.laws) > MOST_COLUMNS
    digits = 3 if narrow else 4
    rows = [[letter, *(shown(_estimates(law)[name], digits) for law in every)] for name, letter in LETTERS.items()]
    rows += [
        [f"loss at {offset:g} N*", *(shown(law.gap(offset), digits, "+") for law in every)] for offset in (0.25, 4.0)
    ]
    if not narrow:
        columns = [f">{'value' if name == ALL else name}" for name in laws.laws]
        cells = [[_without_line_breaks(row[0]), *row[1:]] for row in rows]
        return [table(["", *columns], cells, name="laws", sortable=False)]
    return [_by_architecture(list(laws.laws), part) for part in (rows[:SURFACE], rows[SURFACE:])]


def _by_architecture(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    head = [f">{row[0]}" for row in rows]
    turned = zip(names, *(row[1:] for row in rows), strict=True)
    return table(["", *head], [[name, *map(_two_lines, cells)] for name, *cells in turned])


def _two_lines(cell: str) -> Child:
    """A value, and below it its interval."""
    value, _, interval = cell.partition(" (")
    return tag("span", _without_line_breaks(value), tag("br"), tag("small", _without_line_breaks(f"({interval}")))


def _without_line_breaks(text: str) -> str:
    """The text with non-breaking spaces."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _estimates(law: Law) -> dict[str, Estimate]:
    return {**law.surface_estimates(), **law.frontier_estimates()}


def _comparisons(laws: Laws) -> Child:
    if not laws.comparisons:
        return ""
    rows: list[list[Child]] = [
        [
            comparison.better,
            comparison.worse,
            f"{comparison.probability:.2f}",
            shown(comparison.difference),
            comparison.verdict,
        ]
        for comparison in laws.comparisons
    ]
    columns = ["lower loss", "than", ">P(better)", ">lower by, nats", "verdict"]
    return section("Pairwise differences at the target", table(columns, rows))


def _findings(laws: Laws) -> Child:
    tested = findings(laws)
    if not tested:
        return ""
    rows: list[list[Child]] = [
        [
            str(finding.number),
            finding.statement,
            finding.verdict,
            "" if finding.probability is None else f"{finding.probability:.2f}",
            finding.detail,
        ]
        for finding in tested
    ]
    words = (
        "Findings of Poli et al. 2024, section 4, tested on these runs; P is the fraction of bootstrap draws in which "
        "a finding holds. Verdicts are at the 5 % level for all findings together, and those of pairwise differences "
        "at 5 % for all pairs together: two questions, each with its own error rate."
    )
    return section("MAD's findings here", note(words), table(["", "finding", "verdict", ">P", ""], rows))


def _figures_section(title: str, words: str, panels: Sequence[Panel]) -> Child:
    if not panels:
        return ""
    numbers = series_numbers(panels)
    named = {series.like or series.name for panel in panels for series in panel.series}
    entries = [(swatch(number), name) for name, number in numbers.items() if name in named and name]
    drawn = [card(panel_plot(panel, numbers), title=panel.title) for panel in panels]
    beside = [tag("div")] if len(drawn) == 1 else []  # a single panel has the width of several
    return section(title, note(words), *([legend(entries)] if len(entries) > 1 else []), grid(*drawn, *beside))
