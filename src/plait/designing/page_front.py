"""The page of a design: what this machine can run, and what is known of each model."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from plait.core.units import short
from plait.designing.advice import limited
from plait.designing.document import DesignDocument, Row
from plait.designing.page_sections import colours, keys, score_text
from plait.device.quantities import in_rows
from plait.reporting import page_charts
from plait.reporting.models import ModelSheet
from plait.reporting.page import Child, card, code, folded, grid, legend, note, section, table
from plait.reporting.plots import Limit, scatter_plot

MILLION = 1e6
MEASURED, PREDICTED = "measured, not raced", "predicted only"


def front_section(d: DesignDocument) -> Element:
    limits = {each.name: Limit(limit, each.name, each.unit) for each, _, limit in limited(d)}
    found = d["search"]
    drawn = []
    for name, each in in_rows(d["predicted_front"]).items():
        marks = _marks(d, each.column)
        measured = sum(mark.measured for mark in marks)
        told = f"{len(marks):,} of the {found['on_front']:,} models on the front and the candidates drawn, "
        plot = scatter_plot(
            marks,
            title=f"Parameters of the layers against {each.name}",
            x_label=f"{each.name}, {each.unit} (↓ better)",
            y_label="million parameters in the layers",
            limit=limits.get(name),
            of=f"{told}{measured} measured, {len(marks) - measured} predicted only",
        )
        drawn.append(card(plot, title=f"Size against {each.name}"))
    entries = [(page_charts.swatch(number), name) for name, number in colours(d).items()]
    entries += [(page_charts.swatch(None), MEASURED), (page_charts.swatch(None, hollow=True), PREDICTED)]
    return section(
        "What this machine can run",
        note(
            f"{found['evaluated']:,} candidates of {found['space']} were compared; {found['on_front']:,} of them are "
            "on the Pareto front of size, latency, memory and KV cache. Filled marks were measured, hollow ones are "
            "predicted; lines are 95 % prediction intervals. The dotted line is the largest model within a limit; move "
            "the slider to change the limit. The pick is circled. Click a model to see its drawing and cost; drag over "
            "a chart to zoom."
        ),
        grid(*drawn),
        legend(entries, keys(d)),
        _candidates(d),
        folded("Models measured across the front", _measured(d)),
    )


def front_sheets(d: DesignDocument) -> list[ModelSheet]:
    """What opens for each model that is drawn."""
    rows = {row["spec"]: row for row in d["predicted_front"]}
    rows |= {row["spec"]: row for row in [*d["search"]["front"], *d["search"]["over_limit"], *d["candidates"]]}
    seq, data = d["config"]["setting"]["seq"], d["config"]["data"]
    return [
        ModelSheet(spec, row.get("pattern", "a model of the front"), spec, _facts(row), seq, data)
        for spec, row in rows.items()
    ]


def _facts(row: Row) -> list[tuple[str, str]]:
    found = []
    for each in in_rows([row]).values():
        entry = row[each.column]
        if entry["measured"] is not None:
            found.append((f"{each.name}, measured", f"{entry['measured']:.3g} {each.unit}"))
        if entry["interval"] is not None:
            low, high = entry["interval"]
            found.append((f"{each.name}, predicted", f"{entry['predicted']:.3g} ({low:.3g} to {high:.3g}) {each.unit}"))
    return found


def _marks(d: DesignDocument, column: str) -> list[page_charts.Mark]:
    """Those probed, those measured from all over the front, those predicted only; each spec once."""
    names, size = colours(d), d["size"]
    marks: dict[str, page_charts.Mark] = {}
    for row in d["predicted_front"]:
        x, y, words = row[column]["predicted"], row[size] / MILLION, _hint(row, size)
        marks[row["spec"]] = page_charts.Mark(
            x, y, hint=words, measured=False, key=row["spec"], name="a predicted model", group=PREDICTED
        )
    for row in [*d["search"]["front"], *d["candidates"]]:
        entry, pattern = row[column], row.get("pattern")
        if entry["measured"] is None:  # it did not fit into memory, say
            continue
        marks[row["spec"]] = page_charts.Mark(
            entry["measured"],
            row[size] / MILLION,
            series=names.get(pattern) if pattern else None,
            hint=_hint(row, size),
            chosen=row["spec"] == d["pick"]["spec"],
            span=tuple(entry["interval"]) if pattern and entry["interval"] else None,
            key=row["spec"],
            name=pattern or "a measured model",
            group=pattern if pattern in names else MEASURED,
        )
    return list(marks.values())


def _hint(row: Row, size: str) -> str:
    lines = [row["pattern"]] if "pattern" in row else []
    lines += [row["spec"], f"{row[size]:,} parameters in its layers"]
    for each in in_rows([row]).values():
        entry, unit = row[each.column], each.unit
        if entry["interval"] is None:
            continue
        low, high = entry["interval"]
        predicted = f"predicted {entry['predicted']:.3g} ({low:.3g} to {high:.3g}) {unit}"
        measured = "" if entry["measured"] is None else f"measured {entry['measured']:.3g} {unit}, "
        lines.append(measured + predicted)
    return "\n".join(lines)


def _candidates(d: DesignDocument) -> Element:
    scores = {row["name"]: row for row in d["probe"]["architectures"]}
    rows: list[list[Child]] = []
    pick = None
    order = colours(d)
    ordered = sorted(d["candidates"], key=lambda one: order[one["pattern"]])
    for number, row in enumerate(ordered):
        pick = number if row["pattern"] == d["pick"]["pattern"] else pick
        rows.append(
            [
                code(row["spec"], row["pattern"]),
                short(row[d["size"]]),
                *_numbers(d, row),
                f"{row['state'] / 1e6:.3g}",
                *([score_text(scores[row["pattern"]]["mean"])] if scores else []),
            ]
        )
    columns = ("model", ">params", *_columns(d), ">state MB", *([">probe"] if scores else []))
    told = note("Milliseconds with ≈ were measured while the machine was busy; state is that of one sequence.")
    made = table(columns, rows, chosen=pick, keys=[row["spec"] for row in ordered], name="candidates")
    return card(made, told, title="The models that were raced, the best first")


def _measured(d: DesignDocument) -> Element:
    measured = [*d["search"]["front"], *d["search"]["over_limit"]]
    rows: list[list[Child]] = [
        [
            code(row["spec"]),
            short(row[d["size"]]),
            *_numbers(d, row),
            {True: "within", False: "; ".join(row["exceeded"]), None: ""}[row["within"]],
        ]
        for row in measured
    ]
    columns = ("model", ">params", *_columns(d), "limits")
    return table(columns, rows, keys=[row["spec"] for row in measured], name="measured-models")


def _columns(d: DesignDocument) -> list[str]:
    return [
        column
        for each in in_rows(d["candidates"]).values()
        for column in (f">{each.heading}", f">predicted {each.heading}")
    ]


def _numbers(d: DesignDocument, row: Row) -> list[str]:
    cells = []
    for each in in_rows(d["candidates"]).values():
        entry = row.get(each.column, {})
        noisy = "≈ " if entry.get("noisy") else ""
        values = ((noisy, entry.get("measured")), ("", entry.get("predicted")))
        cells += ["–" if value is None else f"{mark}{value:.3g}" for mark, value in values]
    return cells
