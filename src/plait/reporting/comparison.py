"""A comparison as rows, a figure and a page; learning curves of races are drawn in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element

from plait.core.units import probability, short
from plait.records.comparison import (
    BudgetForecast,
    ComparedArchitecture,
    ComparisonResult,
    RacedArchitecture,
    RaceResult,
)
from plait.records.record import Record
from plait.reporting.axes import Axis, swatch
from plait.reporting.charts import Panel, Series, figure
from plait.reporting.models import ModelSheet
from plait.reporting.page import Child, card, code, legend, note, section, sentence, table, tiles
from plait.reporting.plots import panel_plot
from plait.reporting.views import Context, View, view_page

LOSS, TOKENS = "validation loss, nats per token (↓ better)", "tokens"
CHANCE = "P(best), the probability of the lowest loss"
WORSE, SAME, DIVERGED = "worse", "not distinguishable", "diverged"


@dataclass(frozen=True)
class Ranked:
    """An architecture and how far its loss is above the lowest; `interval` is corrected for the number of pairs, as the
    verdict is, except in records of earlier versions."""

    architecture: ComparedArchitecture
    verdict: str
    difference: float | None = None
    interval: tuple[float, float] | None = None

    def row(self) -> dict[str, Any]:
        """All fields as one flat row."""
        a = self.architecture
        return {
            "name": a.name,
            "loss": a.loss,
            **_ends("loss", a.interval),
            "p_best": a.p_best,
            "lr": a.lr,
            "tokens": a.tokens,
            "params": a.params,
            "flops_per_token": a.flops_per_token,
            "seeds": a.seeds,
            "diverged": a.diverged,
            "difference": self.difference,
            **_ends("difference", self.interval),
            "verdict": self.verdict,
            "spec": a.spec,
        }

    def loss_text(self) -> str:
        if self.architecture.loss is None:
            return "diverged"
        ends = "" if self.architecture.interval is None else " ({:.3f}–{:.3f})".format(*self.architecture.interval)
        return f"{self.architecture.loss:.3f}{ends}"

    def chance_text(self) -> str:
        return "?" if self.architecture.p_best is None else probability(self.architecture.p_best)

    def difference_text(self) -> str:
        if self.difference is None:
            return ""
        ends = "" if self.interval is None else " ({:+.3f}…{:+.3f})".format(*self.interval)
        return f"{self.difference:+.3f}{ends}"


def _ends(name: str, interval: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def ranking(result: ComparisonResult) -> list[Ranked]:
    """The architectures, the lowest loss first; diverged ones last."""
    ordered = sorted(result.architectures, key=lambda row: (row.loss is None, row.loss or 0.0))
    return [_against(result, row, ordered[0].name) for row in ordered]


def _against(result: ComparisonResult, row: ComparedArchitecture, best: str) -> Ranked:
    if row.loss is None:
        return Ranked(row, DIVERGED)
    if row.name == best:
        return Ranked(row, "alone" if len(result.architectures) == 1 else "lowest loss")
    pair = next(pair for pair in result.paired if {pair.a, pair.b} == {row.name, best})
    difference, interval = pair.difference, pair.corrected_interval or pair.interval
    if pair.b == row.name:
        difference = None if difference is None else -difference
        interval = None if interval is None else (-interval[1], -interval[0])
    return Ranked(row, WORSE if pair.verdict == best else SAME, difference, interval)


def verdict_sentence(result: ComparisonResult) -> str:
    """The verdict, with its budget and the difference between the two lowest losses."""
    first, *others = ranking(result)
    name, after = first.architecture.name, f"After {_tokens(result)} tokens"
    if not others:
        loss = "has diverged" if first.architecture.loss is None else f"has a loss of {first.loss_text()}"
        return f"{after} {name} {loss}; there is nothing to compare it with."
    second, apart = others[0], ""
    if second.difference is not None:
        interval = "" if second.interval is None else " ({:.3f} to {:.3f})".format(*second.interval)
        above = f"{second.difference:.3f}{interval} nats per token above {name}"
        apart = f" {second.architecture.name} is {above}."
    same = "" if result.equal == "tokens" else f" (equal {result.equal})"
    return f"{after}{same} {result.verdict}.{apart}"


def _tokens(result: ComparisonResult) -> str:
    """The number of tokens of all, or its range."""
    least, most = short(min(row.tokens for row in result.architectures)), short(result.longest)
    return least if least == most else f"{least} to {most}"


def learning_curves(architectures: Iterable[ComparedArchitecture | RacedArchitecture]) -> list[Series]:
    """Losses over tokens; the last one with the interval shown in the table."""
    curves = []
    for row in architectures:
        points = [(tokens, loss) for tokens, loss in row.curve if loss is not None]
        if not points:
            continue
        losses = [loss for _, loss in points]
        low, high = list(losses), list(losses)
        if row.interval is not None and points[-1][0] == row.tokens:
            low[-1], high[-1] = row.interval
        curves.append(Series(row.name, [tokens for tokens, _ in points], losses, low=low, high=high))
    return curves


def _chances(foresight: Sequence[BudgetForecast]) -> list[Series]:
    """P(best) against tokens."""
    names = list(foresight[0].p_best) if foresight else []
    tokens = [row.tokens for row in foresight]
    return [Series(name, tokens, [row.p_best[name] for row in foresight]) for name in names]


def comparison_figure(result: ComparisonResult) -> str:
    return curves_figure(result, result.foresight, result.data)


def curves_figure(result: ComparisonResult | RaceResult, foresight: Sequence[BudgetForecast], data: str) -> str:
    """Learning curves and, if there is a forecast, P(best) at other budgets: an SVG document."""
    x = Axis(TOKENS, log=True)
    panels = [Panel(learning_curves(result.architectures), x, Axis(LOSS), "learning curves")]
    chances = _chances(foresight)
    if chances:
        y = Axis(CHANCE, low=0.0, high=1.0)
        panels.append(Panel(chances, x, y, "P(best) at other budgets", result.longest, "trained so far"))
    return figure(panels, title=f"{len(result.architectures)} architectures on {data}", below=result.verdict)


def comparison_page(result: ComparisonResult) -> str:
    return view_page(_view(result), result.as_dict(), "comparison.json")


def comparison_view(record: Record, context: Context) -> View:
    return _view(ComparisonResult.from_dict(record.result))


def _view(result: ComparisonResult) -> View:
    ranked = ranking(result)
    lead = (
        f"{len(ranked)} architectures on {result.data}, trained with {ranked[0].architecture.seeds} seeds each, "
        f"at equal {result.equal}; batches of {result.batch} × {result.seq_len} tokens, the same for all."
    )
    parts = [
        _figures(result, ranked[0]),
        section(
            "Validation loss",
            note(reading(result)),
            _table(ranked),
            *(note(sentence(words)) for words in result.notes),
        ),
        *_plots(result),
        _pairs(result),
        _making(result),
    ]
    sheets = [_sheet(row, result) for row in ranked]
    title = f"{result.verdict} after {_tokens(result)} tokens"
    figures = {"curves": lambda: comparison_figure(result)}
    return View(title, lead, parts, figures, [row.row() for row in ranked], sheets, seq=result.seq_len)


def _sheet(row: Ranked, result: ComparisonResult) -> ModelSheet:
    facts = [("validation loss, nats per token", row.loss_text()), ("P(best)", row.chance_text())]
    name = row.architecture.name
    return ModelSheet(name, name, row.architecture.spec, facts, seq=result.seq_len, data=result.data)


def reading(result: ComparisonResult) -> str:
    """One sentence that says how to read the table."""
    seeds = "the noise between seeds is unknown (one seed, or all diverged), so no difference is significant"
    if result.noise is not None:
        seeds = f"standard deviation between seeds {result.noise:.4f}; smaller differences are not distinguishable"
    several = sum(pair.corrected_interval is not None for pair in result.paired) > 1
    corrected = ", those of differences corrected for the number of pairs" if several else ""
    return f"Validation loss in nats per token, mean over seeds, with 95 % intervals{corrected}; {seeds}."


def _figures(result: ComparisonResult, ranked: Ranked) -> Element:
    best = ranked.architecture
    return tiles(
        [
            ("lowest loss", "diverged" if best.loss is None else f"{best.loss:.4f}", best.name),
            ("P(best)", ranked.chance_text(), best.name),
            (
                "noise between seeds",
                "?" if result.noise is None else f"{result.noise:.4f}",
                "standard deviation, nats",
            ),
            ("tokens", short(best.tokens), "of its longest training"),
        ]
    )


def _table(rows: Sequence[Ranked]) -> Element:
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
            code(row.architecture.spec, row.architecture.name),
            row.loss_text(),
            row.chance_text(),
            row.difference_text(),
            row.verdict,
            f"{row.architecture.lr:.3g}",
            short(row.architecture.tokens),
            short(row.architecture.params),
        ]
        for row in rows
    ]
    return table(columns, body, chosen=0, keys=[row.architecture.name for row in rows], name="comparison")


def learning_curve_plot(
    result: ComparisonResult | RaceResult, order: Mapping[str, int], keys: Mapping[str, str] | None = None
) -> Element:
    """`order` gives each name its series number (so its colour), `keys` the key that links it to other parts of the
    page."""
    series = _on_page(learning_curves(result.architectures), order, keys or {})
    return panel_plot(Panel(series, Axis(TOKENS, log=True), Axis(LOSS), "Learning curves", unit=TOKENS))


def chance_plot(
    foresight: Sequence[BudgetForecast], order: Mapping[str, int], longest: float, keys: Mapping[str, str] | None = None
) -> Element:
    """P(best) against the training budget in tokens; `longest` is the longest training so far."""
    series, axes = _on_page(_chances(foresight), order, keys or {}), (Axis(TOKENS, log=True), Axis(CHANCE))
    return panel_plot(Panel(series, *axes, "P(best) against tokens", longest, "trained so far", unit=TOKENS))


def _on_page(series: Sequence[Series], order: Mapping[str, int], keys: Mapping[str, str]) -> list[Series]:
    return [replace(s, number=order[s.name], marks=True, key=keys.get(s.name, s.name)) for s in series]


def _plots(result: ComparisonResult) -> list[Element]:
    order = {row.name: number for number, row in enumerate(result.architectures)}

    def names() -> Element:
        return legend([(swatch(number), name) for name, number in order.items()], {n: n for n in order})

    words = (
        "Each point is the loss of a training that ended there, with its learning rate decayed over the last fifth. "
        "Bars are 95 % intervals over seeds."
    )
    drawn = learning_curve_plot(result, order)
    sections = [section("Learning curves", note(words), card(drawn), names())]
    if result.foresight:
        drawn = chance_plot(result.foresight, order, result.longest)
        sections.append(section("At other budgets", note(sentence(result.foresight_text)), card(drawn), names()))
    return sections


def _pairs(result: ComparisonResult) -> Element:
    columns = ["a", "b", ">a − b, nats per token", ">95 % interval alone", ">corrected", "better"]
    rows: list[list[Child]] = [
        [
            pair.a,
            pair.b,
            "" if pair.difference is None else f"{pair.difference:+.4f}",
            *(
                "" if ends is None else "{:+.4f} … {:+.4f}".format(*ends)
                for ends in (pair.interval, pair.corrected_interval)
            ),
            pair.verdict,
        ]
        for pair in result.paired
    ]
    words = (
        "Paired over the same seeds and validation windows. Verdicts are corrected for the number of pairs (Holm): if "
        "all were equal, at most one comparison in twenty would have a false one. Corrected intervals exclude 0 where "
        "that correction finds a difference; one below the noise between seeds is not distinguishable even so."
    )
    return section("Pairwise differences", note(words), table(columns, rows))


def _making(result: ComparisonResult) -> Element:
    columns = ["architecture", ">learning rate", "rates tried, with their losses"]
    rows: list[list[Child]] = [
        [
            row.name,
            f"{row.lr:.3g}",
            ", ".join(
                f"{rate}: {'diverged' if loss is None else format(loss, '.3f')}" for rate, loss in row.rates.items()
            )
            or "none: the rate was set",
        ]
        for row in result.architectures
    ]
    words = f"{result.cost.trained_seconds:.0f} s of training in total."
    return section("Learning rates and cost", table(columns, rows), note(words))
