"""Scaling laws as a self-contained page: what to train at the target, with what certainty, and all figures.

The panels are those of `plait scale fit --svg`, in the page's colours. In addition MAD's findings are tested on these
runs, and the effect of a batch size that grows within a group is simulated (Poli et al. 2024, Figure C.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from plait.analysis.scaling_document import ends, notes, number, shown
from plait.analysis.scaling_findings import findings
from plait.analysis.scaling_laws import CANNOT_SAY, Estimate, Law, Laws
from plait.analysis.scaling_runs import ALL
from plait.analysis.scaling_simulation import CHINCHILLA, pitfall
from plait.reporting.charts import Panel, series_numbers
from plait.reporting.page import Child, card, grid, legend, note, page, section, table, tag, tiles
from plait.reporting.page_charts import swatch
from plait.reporting.plots import panel_plot
from plait.reporting.scaling import frontier_panels, gap_panel, isoflop_panel, loss_panel, pitfall_panel, state_panel

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
        return [table(["", *columns], [[_without_line_breaks(row[0]), *row[1:]] for row in rows])]
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
    columns = ["lower loss", "than", ">P(better)", ">lower by", "verdict"]
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
        "a finding holds."
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
