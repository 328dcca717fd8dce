"""The page of a design: what the candidates can do, by the probe, and which of them wins on the user's text; how each
is called and coloured in all of its sections."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from plait.core.units import percent, probability, short
from plait.designing.document import DesignDocument
from plait.probing.verdict import SummaryRow
from plait.reporting import charts, page_charts
from plait.reporting.comparison import chance_plot, learning_curve_plot
from plait.reporting.page import Child, card, code, folded, grid, legend, note, section, table


def colours(d: DesignDocument) -> dict[str, int]:
    """The number of every pattern's colour, the best in the race first."""
    return {row["name"]: number for number, row in enumerate(d["race"]["architectures"])}


def keys(d: DesignDocument) -> dict[str, str]:
    """What links a pattern in one section with it in the others: the spec that was measured."""
    return {row["pattern"]: row["spec"] for row in d["candidates"]}


def probe_section(d: DesignDocument) -> Element:
    found, names, key_of = d["probe"], colours(d), keys(d)
    if found.get("left_out"):  # absent from designs of earlier versions
        words = f"The probe was left out: {found['left_out']}. It would say what a pattern can do, and decides nothing."
        return section("What they can do", note(words))

    def panel(title: str, task: str | None) -> Element:
        rows = []
        for row in found["architectures"]:
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

    few, many = min(found["seeds"].values()), max(found["seeds"].values())
    seeds = str(few) if few == many else f"{few} to {many}"
    words = (
        f"Each pattern at the probe's size, with the same number of parameters per layer, trained on "
        f"{len(found['tasks'])} "
        f"synthetic tasks with {seeds} seed{'s' * (many > 1)} each: {found['runs']} trainings, {found['steps']:,} "
        "steps."
    )
    words += " Whiskers are 95 % intervals of test accuracy." if many > 1 else " One seed: no intervals, no verdict."
    if found["scale"] < 1:
        words += f" To fit the time they were cut to {percent(found['scale'])} of their steps: give more --time."
    notes = [note(f"{row['name']}: {row['note']}.") for row in found["architectures"] if row["note"]]
    panels = [panel("mean", None), *(panel(task, task) for task in found["tasks"])]
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
    made = table(columns, rows, keys=[keys(d)[row["name"]] for row in others], name="probe")
    return folded("Paired differences of the mean, and the architectures as probed", made)


def _ends(interval: Sequence[float] | None) -> str:
    return "{:+.3f} to {:+.3f}".format(*interval) if interval else ""


def score_text(found: SummaryRow) -> str:
    ends = " ({:.2f}–{:.2f})".format(*found["interval"]) if found["interval"] else ""
    return f"{found['accuracy']:.2f}{ends}"


def race_section(d: DesignDocument) -> Element:
    found, names, key_of = d["race"], colours(d), keys(d)
    document = {**found, "foresight": d["foresight"]}
    drawn = [card(learning_curve_plot(document, names, key_of), title="Learning curves")]
    if d["foresight"]:
        longest = max(row["trained_tokens"] for row in found["architectures"])
        drawn.append(card(chance_plot(document, names, longest, key_of), title="At which budget"))
    rows: list[list[Child]] = []
    chosen = None
    for number, row in enumerate(found["architectures"]):
        chosen = number if row["name"] == d["pick"]["pattern"] else chosen
        ends = "{:.3f} to {:.3f}".format(*row["interval"]) if row["interval"] else ""
        rows.append(
            [
                code(row["spec"], row["name"]),
                short(row["trained_tokens"]),
                "diverged" if row["loss"] is None else f"{row['loss']:.3f}",
                ends,
                probability(row["p_best"]),
                f"{row['lr']:g}",
            ]
        )
    noise = "The noise between seeds is not known."
    if found["noise"] is not None:
        noise = f"Noise between seeds: {found['noise']:.3f} nats; no difference below it is called one."
    columns = ("candidate", ">trained tokens", ">nats forecast", ">90 % interval", ">P(best)", ">rate")
    words = (
        f"All candidates train on the same batches of {d['config']['data']}. Each learning curve is extrapolated to "
        f"{short(d['budget']['spoken_for'])} tokens with its uncertainty. Candidates with a negligible probability of "
        "being the best stop; training continues where it is most informative. The race cost "
        f"{percent(found['cost']['share'])} of training all candidates to the end. {noise}"
    )
    entries = [(page_charts.swatch(number), name) for name, number in names.items()]
    made = table(
        columns, rows, chosen=chosen, keys=[key_of[row["name"]] for row in found["architectures"]], name="race"
    )
    told = [note(f"{text[0].upper()}{text[1:]}.") for text in (d["foresight_text"], *found.get("notes", [])) if text]
    return section(
        "Which one wins on this text",
        note(words),
        grid(*drawn),
        legend(entries, key_of),
        *told,
        card(made, title=found["verdict"]),
    )
