"""Sections of a design's page: the fronts on this machine with details of each model, the candidates' skills in the
probe, and the race on the user's text. Every candidate has the same name and colour in all sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from plait.core.units import percent, probability, short
from plait.designing.advice import forecast_at, limited, other_budgets
from plait.designing.document import DesignDocument, Row, foresight_of, race_of
from plait.device.quantities import in_rows
from plait.probing.verdict import SummaryRow
from plait.reporting import charts
from plait.reporting.axes import swatch
from plait.reporting.comparison import chance_plot, learning_curve_plot
from plait.reporting.models import ModelSheet
from plait.reporting.page import Child, card, code, folded, grid, legend, note, section, table
from plait.reporting.plots import Limit, Mark, scatter_plot


def colours(d: DesignDocument) -> dict[str, int]:
    """The colour number of every pattern, the best in the race first."""
    return {row.name: number for number, row in enumerate(race_of(d).architectures)}


def keys(d: DesignDocument) -> dict[str, str]:
    """The key that links a pattern across sections: the spec that was measured."""
    return {row["pattern"]: row["spec"] for row in d["candidates"]}


def probe_section(d: DesignDocument) -> Element:
    probe, names, key_of = d["probe"], colours(d), keys(d)
    if probe.get("left_out"):  # absent from designs of earlier versions
        words = f"The probe was left out: {probe['left_out']}. It would say what a pattern can do, and decides nothing."
        return section("What they can do", note(words))

    def panel(title: str, task: str | None) -> Element:
        rows = []
        for row in probe["architectures"]:
            score = row["tasks"][task] if task else row["mean"]
            rows.append(
                charts.Bar(
                    row["name"],
                    score["accuracy"],
                    (score["interval"][0], score["interval"][1]) if score["interval"] else None,
                    names[row["name"]],
                    hint=f"{row['name']}\n{title}: {score_text(score)}\n{row['spec']}",
                    chosen=row["name"] == d["pick"]["pattern"],
                    key=key_of[row["name"]],
                )
            )
        return card(charts.bars(rows, title=f"{title}: accuracy of every pattern"), title=title)

    few, many = min(probe["seeds"].values()), max(probe["seeds"].values())
    seeds = str(few) if few == many else f"{few} to {many}"
    words = (
        f"Each pattern at the probe's size, with the same number of parameters per layer, trained on "
        f"{len(probe['tasks'])} "
        f"synthetic tasks with {seeds} seed{'s' * (many > 1)} each: {probe['runs']} trainings, {probe['steps']:,} "
        "steps."
    )
    words += " Whiskers are 95 % intervals of test accuracy." if many > 1 else " One seed: no intervals, no verdict."
    if probe["scale"] < 1:
        words += f" To fit the time they were cut to {percent(probe['scale'])} of their steps: give more --time."
    notes = [note(f"{row['name']}: {row['note']}.") for row in probe["architectures"] if row["note"]]
    panels = [panel("mean", None), *(panel(task, task) for task in probe["tasks"])]
    words += " This says what a pattern can do, not what its loss will be: it decided nothing."
    return section("What they can do", note(words), grid(*panels), *notes, _differences(d))


def _differences(d: DesignDocument) -> Element:
    words = {1: "the pick is better", 0: "not distinguishable", -1: "the pick is worse"}
    others = [row for row in d["probe"]["architectures"] if row["name"] != d["pick"]["pattern"]]
    rows: list[list[Child]] = [
        [
            code(row["spec"], row["name"]),
            f"{row['pick_ahead_by']['value']:+.3f}",
            _ends(row["pick_ahead_by"]["interval"]),
            words[row["pick_ahead_by"]["sign"]],
        ]
        for row in others
    ]
    columns = ("against, as probed", ">pick ahead by", ">95 % interval", "verdict")
    differences = table(columns, rows, keys=[keys(d)[row["name"]] for row in others], name="probe")
    return folded("Paired differences of the mean, and the architectures as probed", differences)


def _ends(interval: Sequence[float] | None) -> str:
    return "{:+.3f} to {:+.3f}".format(*interval) if interval else ""


def score_text(summary: SummaryRow) -> str:
    ends = " ({:.2f}–{:.2f})".format(*summary["interval"]) if summary["interval"] else ""
    return f"{summary['accuracy']:.2f}{ends}"


def race_section(d: DesignDocument) -> Element:
    race, names, key_of = race_of(d), colours(d), keys(d)
    drawn = [card(learning_curve_plot(race, names, key_of), title="Learning curves")]
    if d["foresight"]:
        drawn.append(card(chance_plot(foresight_of(d), names, race.longest, key_of), title="At which budget"))
    rows: list[list[Child]] = []
    chosen = None
    for number, row in enumerate(race.architectures):
        chosen = number if row.name == d["pick"]["pattern"] else chosen
        rows.append(
            [
                code(row.spec, row.name),
                short(row.trained_tokens),
                short(row.tokens),
                "diverged" if row.loss is None else f"{row.loss:.3f}",
                "{:.3f} to {:.3f}".format(*row.interval) if row.interval else "",
                probability(row.p_best),
                f"{row.lr:.3g}",
            ]
        )
    noise = "The noise between seeds is not known."
    if race.noise is not None:
        noise = f"Noise between seeds: {race.noise:.3f} nats; no difference below it is called one."
    columns = ("candidate", ">trained tokens", ">forecast at", ">nats forecast", ">90 % interval", ">P(best)",
               ">learning rate")  # fmt: skip
    words = (
        f"All candidates train on the same batches of {d['config']['data']}. Each learning curve is extrapolated to "
        f"{forecast_at(d)} with its uncertainty. Candidates with a negligible probability of "
        "being the best stop; training continues where it is most informative. The race cost "
        f"{percent(race.cost.share)} of training all candidates to the end. {noise}"
    )
    entries = [(swatch(number), name) for name, number in names.items()]
    candidates = table(columns, rows, chosen=chosen, keys=[key_of[row.name] for row in race.architectures], name="race")
    left_out = race.screening_left_out  # empty in designs of earlier versions
    texts = (other_budgets(d), *race.notes, f"no screening: {left_out}" if left_out else "")
    told = [note(f"{_sentence(text, names)}.") for text in texts if text]
    return section(
        "Which one wins on this text",
        note(words),
        grid(*drawn),
        legend(entries, key_of),
        *told,
        card(candidates, title=race.verdict),
    )


def _sentence(text: str, names: Iterable[str]) -> str:
    """With a capital, unless it begins with the name of a candidate."""
    return text if text.startswith(tuple(names)) else text[0].upper() + text[1:]


MILLION = 1e6
MEASURED, PREDICTED = "measured, not raced", "predicted only"


def front_section(d: DesignDocument) -> Element:
    limits = {metric.name: Limit(limit, metric.name, metric.unit) for metric, _, limit in limited(d)}
    search = d["search"]
    drawn = []
    for name, metric in in_rows(d["predicted_front"]).items():
        marks = _marks(d, metric.column)
        measured = sum(mark.measured for mark in marks)
        told = f"{len(marks):,} of the {search['on_front']:,} models on the front and the candidates drawn, "
        plot = scatter_plot(
            marks,
            title=f"Parameters of the layers against {metric.name}",
            x_label=f"{metric.name}, {metric.unit} (↓ better)",
            y_label="million parameters in the layers",
            limit=limits.get(name),
            of=f"{told}{measured} measured, {len(marks) - measured} predicted only",
        )
        drawn.append(card(plot, title=f"Size against {metric.name}"))
    entries = [(swatch(number), name) for name, number in colours(d).items()]
    entries += [(swatch(None), MEASURED), (swatch(None, hollow=True), PREDICTED)]
    return section(
        "What this machine can run",
        note(
            f"{search['evaluated']:,} candidates of {search['space']} were compared; {search['on_front']:,} of them "
            "are on the Pareto front of size, latency, memory and KV cache. Filled marks were measured, hollow ones "
            "are predicted; lines are 95 % prediction intervals. The dotted line is the largest model within a limit; "
            "move the slider to change the limit. The pick is circled. Click a model to see its drawing and cost; "
            "drag over a chart to zoom."
        ),
        grid(*drawn),
        legend(entries, keys(d)),
        _candidates(d),
        folded("Models measured across the front", _measured(d)),
    )


def front_sheets(d: DesignDocument) -> list[ModelSheet]:
    """The detail sheets that open when a model is clicked."""
    rows = {row["spec"]: row for row in d["predicted_front"]}
    rows |= {row["spec"]: row for row in [*d["search"]["front"], *d["search"]["over_limit"], *d["candidates"]]}
    seq, data = d["config"]["setting"]["seq"], d["config"]["data"]
    return [
        ModelSheet(spec, row.get("pattern", "a model of the front"), spec, _facts(row), seq, data)
        for spec, row in rows.items()
    ]


def _facts(row: Row) -> list[tuple[str, str]]:
    facts = []
    for metric in in_rows([row]).values():
        entry = row[metric.column]
        if entry["measured"] is not None:
            facts.append((f"{metric.name}, measured", f"{entry['measured']:.3g} {metric.unit}"))
        if entry["interval"] is not None:
            low, high = entry["interval"]
            facts.append(
                (f"{metric.name}, predicted", f"{entry['predicted']:.3g} ({low:.3g} to {high:.3g}) {metric.unit}")
            )
    return facts


def _marks(d: DesignDocument, column: str) -> list[Mark]:
    """Marks of the probed models, of those measured from all over the front, and of those only predicted; each spec
    once."""
    names, size = colours(d), d["size"]
    marks: dict[str, Mark] = {}
    for row in d["predicted_front"]:
        x, y, words = row[column]["predicted"], row[size] / MILLION, _hint(row, size)
        marks[row["spec"]] = Mark(
            x, y, hint=words, measured=False, key=row["spec"], name="a predicted model", group=PREDICTED
        )
    for row in [*d["search"]["front"], *d["candidates"]]:
        entry, pattern = row[column], row.get("pattern")
        if entry["measured"] is None:  # for example, it did not fit into memory
            continue
        marks[row["spec"]] = Mark(
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
    for metric in in_rows([row]).values():
        entry, unit = row[metric.column], metric.unit
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
    ordered = sorted(d["candidates"], key=lambda row: order[row["pattern"]])
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
    candidates = table(columns, rows, chosen=pick, keys=[row["spec"] for row in ordered], name="candidates")
    return card(candidates, told, title="The models that were raced, the lowest forecast first")


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
        for metric in in_rows(d["candidates"]).values()
        for column in (f">{metric.heading}", f">predicted {metric.heading}")
    ]


def _numbers(d: DesignDocument, row: Row) -> list[str]:
    cells = []
    for metric in in_rows(d["candidates"]).values():
        entry = row.get(metric.column, {})
        noisy = "≈ " if entry.get("noisy") else ""
        values = ((noisy, entry.get("measured")), ("", entry.get("predicted")))
        cells += ["–" if value is None else f"{mark}{value:.3g}" for mark, value in values]
    return cells
