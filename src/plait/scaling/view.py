"""The report's view of a scaling study: its runs, and the laws that `plait scale fit` would fit to them."""

from __future__ import annotations

from collections.abc import Sequence

from plait.analysis.scaling_laws import Laws, fit_laws
from plait.analysis.scaling_runs import PER_BYTE, runs_of
from plait.analysis.table import Table
from plait.core.errors import UserError
from plait.core.units import short
from plait.records.record import Record
from plait.reporting.axes import Axis, swatch
from plait.reporting.charts import Panel, Series, figure, series_numbers
from plait.reporting.page import Child, card, code, grid, legend, note, section, table
from plait.reporting.plots import panel_plot
from plait.reporting.scaling import laws_parts, laws_title, power_of_ten, scaling_figure
from plait.reporting.views import Context, View
from plait.scaling.run import RunRow, run_row

DRAWS = 100  # of the bootstrap, so that the page loads quickly; `plait scale fit` uses a thousand
BEYOND = 10.0  # the forecast's target, as a multiple of the largest budget trained
FEWEST = 6  # runs, below which no surface is fitted


def scale_view(record: Record, context: Context) -> View:
    rows = _rows(record, context)
    lead = f"{len(rows)} runs on {record.result.get('text')}."
    if not rows:
        return View("A scaling study", "Its trainings are not in the store any more.", [])
    listed = section("The runs", _table(rows, context))
    try:
        laws = _laws(rows) if len(rows) >= FEWEST else None
        why = "" if laws else f"{len(rows)} runs are too few for laws; at least {FEWEST} are needed."
    except (UserError, ValueError, ArithmeticError) as wrong:
        laws, why = None, f"No law was fitted: {wrong}"
    if laws is None:
        return View("A scaling study", lead, [note(why), *_drawn(rows), listed], {"runs": lambda: _figure(rows)}, rows)
    target = power_of_ten(laws.target)
    words = f"Fitted for {target} FLOPs, {BEYOND:g} times the largest run, with {DRAWS} draws; all intervals 90 %."
    return View(
        laws_title(laws),
        f"{lead} {words}",
        [*laws_parts(laws), listed],
        {"laws": lambda: scaling_figure(laws)},
        rows,
    )


def _rows(record: Record, context: Context) -> list[RunRow]:
    rows = []
    for planned in record.config["runs"]:
        run = context.get(str(planned["key"]))
        if run is not None:
            rows.append(run_row(run, planned.get("architecture"), record.result.get(PER_BYTE)))
    return sorted(rows, key=lambda row: (row["architecture"], row["flops"], row["params"]))


def _laws(rows: Sequence[RunRow]) -> Laws:
    runs = runs_of(Table.of("this study", list(rows)))
    return fit_laws(runs, BEYOND * float(runs.flops.max()), draws=DRAWS, seed=0, all_budgets=False)


def _panel(rows: Sequence[RunRow]) -> Panel:
    series = []
    for name in dict.fromkeys(row["architecture"] for row in rows):
        mine = sorted((row for row in rows if row["architecture"] == name), key=lambda row: float(row["flops"]))
        series.append(Series(name, [row["flops"] for row in mine], [row["loss"] for row in mine], "none"))
    return Panel(series, Axis("FLOPs", log=True), Axis("loss, nats per token (↓ better)"), "Loss over FLOPs")


def _figure(rows: Sequence[RunRow]) -> str:
    return figure([_panel(rows)], title="Runs of a scaling study")


def _drawn(rows: Sequence[RunRow]) -> list[Child]:
    panel = _panel(rows)
    numbers = series_numbers([panel])
    return [
        grid(card(panel_plot(panel, numbers))),
        legend([(swatch(number), name) for name, number in numbers.items()]),
    ]


def _table(rows: Sequence[RunRow], context: Context) -> Child:
    cells: list[list[Child]] = [
        [
            code(row["spec"], row["architecture"]),
            power_of_ten(float(row["flops"])),
            short(row["params"]),
            short(row["tokens"]),
            f"{row['loss']:.4f}",
            context.linked(row["key"], row["key"][:8]),
        ]
        for row in rows
    ]
    return table(("model", ">FLOPs", ">parameters", ">tokens", ">loss, nats", "training"), cells, name="scaling-runs")
