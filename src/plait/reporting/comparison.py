"""A comparison (`plait compare --json`'s document) as rows, a figure and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from plait.core.units import probability, short
from plait.records.record import Record
from plait.reporting import page_charts
from plait.reporting.axes import Axis
from plait.reporting.charts import Panel, Series, figure
from plait.reporting.models import ModelSheet
from plait.reporting.page import Child, card, code, legend, note, section, sentence, table, tiles
from plait.reporting.plots import curve_plot
from plait.reporting.views import Context, View, view_page

Document = Mapping[str, Any]
LOSS, TOKENS = "validation loss, nats per token (↓ better)", "tokens"
CHANCE = "P(best), the probability of the lowest loss"
WORSE, SAME, DIVERGED = "worse", "not distinguishable", "diverged"


def ranked(document: Document) -> list[dict[str, Any]]:
    """The architectures, the lowest loss first; diverged ones last."""
    rows: Sequence[dict[str, Any]] = document["architectures"]
    return sorted(rows, key=lambda row: (row["loss"] is None, row["loss"] or 0.0))


def comparison_rows(document: Document) -> list[dict[str, Any]]:
    """A flat row per architecture, with its difference from the lowest loss."""
    ordered = ranked(document)
    rows = []
    for row in ordered:
        against = _against(document, row["name"], ordered[0]["name"])
        rows.append(
            {
                "name": row["name"],
                "loss": row["loss"],
                **_ends("loss", row["interval"]),
                "p_best": row["p_best"],
                "lr": row["lr"],
                "tokens": row["tokens"],
                "params": row["params"],
                "flops_per_token": row["flops_per_token"],
                "seeds": row["seeds"],
                "diverged": row["diverged"],
                "difference": against.difference,
                **_ends("difference", against.interval),
                "verdict": against.verdict,
                "spec": row["spec"],
            }
        )
    return rows


def _ends(name: str, interval: Sequence[float] | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


@dataclass(frozen=True)
class _Against:
    """How far a loss is above the lowest."""

    verdict: str
    difference: float | None = None
    interval: Sequence[float] | None = None


def _against(document: Document, name: str, best: str) -> _Against:
    """The loss of `name` against that of `best`."""
    losses = {row["name"]: row["loss"] for row in document["architectures"]}
    if losses[name] is None:
        return _Against(DIVERGED)
    if name == best:
        return _Against("alone" if len(document["architectures"]) == 1 else "lowest loss")
    pair = next(pair for pair in document["paired"] if {pair["a"], pair["b"]} == {name, best})
    sign = 1 if pair["a"] == name else -1
    difference = None if pair["difference"] is None else sign * pair["difference"]
    interval = None if pair["interval"] is None else sorted(sign * end for end in pair["interval"])
    return _Against(WORSE if pair["verdict"] == best else SAME, difference, interval)


def verdict_sentence(document: Document) -> str:
    """The verdict with the budget that it holds for and by how much the lowest two differ."""
    rows, equal = comparison_rows(document), document["equal"]
    same = "" if equal == "tokens" else f" (equal {equal})"
    if len(rows) == 1:
        loss = "has diverged" if rows[0]["loss"] is None else f"has a loss of {loss_text(rows[0])}"
        return f"After {_tokens(rows)} tokens {rows[0]['name']} {loss}; there is nothing to compare it with."
    apart = ""
    if rows[1]["difference"] is not None:
        ends = [rows[1]["difference_low"], rows[1]["difference_high"]]
        interval = "" if None in ends else " ({:.3f} to {:.3f})".format(*ends)
        apart = f" {rows[1]['name']} is {rows[1]['difference']:.3f}{interval} nats per token above {rows[0]['name']}."
    return f"After {_tokens(rows)} tokens{same} {document['verdict']}.{apart}"


def _tokens(rows: Sequence[Mapping[str, Any]]) -> str:
    """Those of all, or from the fewest to the most."""
    least, most = (short(find(row["tokens"] for row in rows)) for find in (min, max))
    return least if least == most else f"{least} to {most}"


def learning_curves(document: Document) -> list[Series]:
    """Losses over tokens; the last one has the interval that the table states."""
    curves = []
    for row in document["architectures"]:
        points = [point for point in row["curve"] if point[1] is not None]
        if not points:
            continue
        losses = [loss for _, loss in points]
        low, high = list(losses), list(losses)
        if row["interval"] is not None and points[-1][0] == row["tokens"]:
            low[-1], high[-1] = row["interval"]
        curves.append(Series(row["name"], [tokens for tokens, _ in points], losses, low=low, high=high))
    return curves


def _chances(document: Document) -> list[Series]:
    """P(best) against tokens."""
    rows = document["foresight"]
    names = list(rows[0]["p_best"]) if rows else []
    tokens = [row["tokens"] for row in rows]
    return [Series(name, tokens, [row["p_best"][name] for row in rows]) for name in names]


def comparison_figure(document: Document) -> str:
    """Learning curves and, where they can be foreseen, P(best) at other budgets: an SVG document."""
    x = Axis(TOKENS, log=True)
    panels = [Panel(learning_curves(document), x, Axis(LOSS), "learning curves")]
    chances = _chances(document)
    if chances:
        longest = max(row["tokens"] for row in document["architectures"])
        y = Axis(CHANCE, low=0.0, high=1.0)
        panels.append(Panel(chances, x, y, "P(best) at other budgets", longest, "trained so far"))
    return figure(panels, title=cut_title(document), below=document["verdict"])


def cut_title(document: Document) -> str:
    return f"{len(document['architectures'])} architectures on {document['data']}"


def comparison_page(document: Document) -> str:
    return view_page(_view(document), document, "comparison.json")


def comparison_view(record: Record, context: Context) -> View:
    return _view(record.result)


def _view(document: Document) -> View:
    ordered = comparison_rows(document)
    lead = (
        f"{cut_title(document)}, trained with {ordered[0]['seeds']} seeds each, at equal {document['equal']}; "
        f"batches of {document['batch']} × {document['seq_len']} tokens, the same for all."
    )
    parts = [
        _figures(document, ordered[0]),
        section(
            "Validation loss",
            note(reading(document)),
            _table(document, ordered),
            *(note(sentence(words)) for words in document["notes"]),
        ),
        *_plots(document),
        _pairs(document),
        _making(document),
    ]
    sheets = [_sheet(row, document) for row in ordered]
    title = f"{document['verdict']} after {_tokens(ordered)} tokens"
    figures = {"curves": lambda: comparison_figure(document)}
    return View(title, lead, parts, figures, ordered, sheets, seq=document["seq_len"])


def _sheet(row: Mapping[str, Any], document: Document) -> ModelSheet:
    facts = [("validation loss, nats per token", loss_text(row)), ("P(best)", chance_text(row))]
    return ModelSheet(row["name"], row["name"], row["spec"], facts, seq=document["seq_len"], data=document["data"])


def reading(document: Document) -> str:
    """One sentence that says how to read the table."""
    noise = document["noise"]
    seeds = "the noise between seeds is unknown (one seed, or all diverged), so no difference is significant"
    if noise is not None:
        seeds = f"standard deviation between seeds {noise:.4f}; smaller differences are not distinguishable"
    return f"Validation loss in nats per token, mean over seeds, with 95 % intervals; {seeds}."


def _figures(document: Document, best: Mapping[str, Any]) -> Element:
    noise = "?" if document["noise"] is None else f"{document['noise']:.4f}"
    loss = "diverged" if best["loss"] is None else f"{best['loss']:.4f}"
    chance = "?" if best["p_best"] is None else probability(best["p_best"])
    return tiles(
        [
            ("lowest loss", loss, best["name"]),
            ("P(best)", chance, best["name"]),
            ("noise between seeds", noise, "standard deviation, nats"),
            ("tokens", short(best["tokens"]), "of its longest training"),
        ]
    )


def _table(document: Document, rows: Sequence[Mapping[str, Any]]) -> Element:
    columns = [
        "architecture",
        ">loss",
        ">P(best)",
        ">above the best",
        "verdict",
        ">learning rate",
        ">tokens",
        ">parameters",
    ]
    body: list[list[Child]] = [
        [
            code(row["spec"], row["name"]),
            loss_text(row),
            chance_text(row),
            difference_text(row),
            row["verdict"],
            f"{row['lr']:.3g}",
            short(row["tokens"]),
            short(row["params"]),
        ]
        for row in rows
    ]
    return table(columns, body, chosen=0, keys=[row["name"] for row in rows], name="comparison")


def loss_text(row: Mapping[str, Any]) -> str:
    if row["loss"] is None:
        return "diverged"
    ends = "" if row["loss_low"] is None else f" ({row['loss_low']:.3f}–{row['loss_high']:.3f})"
    return f"{row['loss']:.3f}{ends}"


def chance_text(row: Mapping[str, Any]) -> str:
    return "?" if row["p_best"] is None else probability(row["p_best"])


def difference_text(row: Mapping[str, Any]) -> str:
    if row["difference"] is None:
        return ""
    ends = "" if row["difference_low"] is None else f" ({row['difference_low']:+.3f}…{row['difference_high']:+.3f})"
    return f"{row['difference']:+.3f}{ends}"


def learning_curve_plot(document: Document, order: Mapping[str, int], keys: Mapping[str, str] | None = None) -> Element:
    """`order` gives each name its series number (so its colour), `keys` the key that links it to other parts of the
    page."""
    return curve_plot(
        _lines(learning_curves(document), order, keys or {}), title="Learning curves", x_label=TOKENS, y_label=LOSS,
        unit=TOKENS, log=True,
    )  # fmt: skip


def chance_plot(
    document: Document, order: Mapping[str, int], longest: float, keys: Mapping[str, str] | None = None
) -> Element:
    """P(best) against the training budget in tokens; `longest` is the longest training so far."""
    return curve_plot(
        _lines(_chances(document), order, keys or {}), title="P(best) against tokens", x_label=TOKENS,
        y_label=CHANCE, unit=TOKENS, log=True, until=longest, until_label="trained so far",
    )  # fmt: skip


def _lines(series: Sequence[Series], order: Mapping[str, int], keys: Mapping[str, str]) -> list[page_charts.Line]:
    return [
        page_charts.Line(
            curve.name,
            list(zip(curve.x, curve.y, strict=True)),
            order[curve.name],
            dots=True,
            key=keys.get(curve.name, curve.name),
            ends={x: (low, high) for x, low, high in zip(curve.x, curve.low, curve.high, strict=False) if low < high},
        )
        for curve in series
    ]


def _plots(document: Document) -> list[Element]:
    order = {row["name"]: number for number, row in enumerate(document["architectures"])}

    def names() -> Element:
        return legend([(page_charts.swatch(number), name) for name, number in order.items()], {n: n for n in order})

    words = (
        "Each point is the loss of a training that ended there, with its learning rate decayed over the last fifth. "
        "Bars are 95 % intervals over seeds."
    )
    drawn = learning_curve_plot(document, order)
    sections = [section("Learning curves", note(words), card(drawn), names())]
    if document["foresight"]:
        drawn = chance_plot(document, order, max(row["tokens"] for row in document["architectures"]))
        words = sentence(document["foresight_text"])
        if why := document.get("screening_left_out"):  # absent from comparisons of earlier versions
            words += f" No screening: {why}."
        sections.append(section("At other budgets", note(words), card(drawn), names()))
    return sections


def _pairs(document: Document) -> Element:
    columns = ["a", "b", ">a − b, nats per token", ">95 % interval", "better"]
    rows: list[list[Child]] = [
        [
            pair["a"],
            pair["b"],
            "" if pair["difference"] is None else f"{pair['difference']:+.4f}",
            "" if pair["interval"] is None else "{:+.4f} … {:+.4f}".format(*pair["interval"]),
            pair["verdict"],
        ]
        for pair in document["paired"]
    ]
    words = (
        "Paired over the same seeds and validation windows. If all were equal, at most one comparison in twenty would "
        "have a false verdict."
    )
    return section("Pairwise differences", note(words), table(columns, rows))


def _making(document: Document) -> Element:
    columns = ["architecture", ">learning rate", "rates tried, with their losses"]
    rows: list[list[Child]] = [
        [
            row["name"],
            f"{row['lr']:.3g}",
            ", ".join(
                f"{rate}: {'diverged' if loss is None else format(loss, '.3f')}" for rate, loss in row["rates"].items()
            )
            or "none: the rate was set",
        ]
        for row in document["architectures"]
    ]
    words = f"{document['cost']['trained_seconds']:.0f} s of training in total."
    return section("Learning rates and cost", table(columns, rows), note(words))
