"""The page of a design: which candidate wins on the user's text."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from plait.core.units import short
from plait.designing.page_order import colours, keys
from plait.reporting import page_charts
from plait.reporting.comparison import chance_plot, learning_curve_plot
from plait.reporting.page import Child, card, code, grid, legend, note, section, table


def race_section(d: dict[str, Any]) -> Element:
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
                f"{row['p_best']:.0%}",
                f"{row['lr']:g}",
            ]
        )
    columns = ("candidate", ">trained tokens", ">nats forecast", ">90 % interval", ">P(best)", ">rate")
    words = (
        f"All candidates train on the same batches of {d['config']['data']}; each curve is carried on to "
        f"{short(d['budget']['spoken_for'])} tokens with its uncertainty, those that are best with negligible "
        f"probability stop, and training goes on where it tells most. It took {found['cost']['share']:.0%} of what "
        f"training all of them to the end would. Noise between seeds: {found['noise'] or 0:.3f} nats."
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
