"""The HTML report of a design: the verdict and its reasons, the fronts, the race, the probe, the training, and how to
reproduce it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast
from xml.etree.ElementTree import Element

from plait.core.units import listed, percent, probability, short
from plait.designing.advice import as_long_as_forecast, labelled, limited
from plait.designing.document import DesignDocument, foresight_of, race_of
from plait.designing.page_sections import front_section, front_sheets, probe_section, race_section
from plait.device.quantities import EXACT, Setting
from plait.records.record import Record
from plait.reporting.axes import Axis
from plait.reporting.charts import Panel, Series
from plait.reporting.comparison import curves_figure
from plait.reporting.page import card, commands, grid, note, section, table, tag, tiles
from plait.reporting.plots import line_legend, panel_plot
from plait.reporting.view_model import TRAINING, VALIDATION
from plait.reporting.views import Context, View, view_page

STAGES = {
    "profile": "profile of this machine",
    "search": "search",
    "measure": "measuring models of the front",
    "probe": "probe",
    "race": "race on the text",
    "train": "training the pick",
}


def report_page(document: DesignDocument) -> str:
    return view_page(_view(document), document, "design.json")


def design_view(record: Record, context: Context) -> View:
    return _view(cast(DesignDocument, record.result))


def _view(document: DesignDocument) -> View:
    machine = document["machine"]
    title = f"A model for {listed([f'{limit:g} {metric.unit}' for metric, _, limit in limited(document)])}"
    setting = document["config"]["setting"]
    lead = (
        f"Designed by measurement on {machine['cpu'] or machine['system']} ({machine['cores']} cores), "
        f"{machine['started'][:10]}. Latency and memory: {Setting(**setting).words}, "
        f"batch {setting['batch']}, {setting['threads']} thread{'s' * (setting['threads'] > 1)}, {setting['dtype']}."
    )
    parts = [
        _advice(document),
        _figures(document),
        front_section(document),
        race_section(document),
        probe_section(document),
        _training(document),
        _making(document),
    ]
    return View(title, lead, parts, {"race": lambda: _race_figure(document)}, document["race"]["architectures"],
                front_sheets(document), document["pick"]["spec"], setting["seq"])  # fmt: skip


def _race_figure(d: DesignDocument) -> str:
    race = race_of(d)
    trained = tuple(replace(row, tokens=row.trained_tokens) for row in race.architectures)
    return curves_figure(replace(race, architectures=trained), foresight_of(d), "the text")


def _advice(d: DesignDocument) -> Element:
    """The verdict in one line, then why, then what to do next."""
    verdict, *points = d["points"]
    spec = tag("div", tag("code", d["pick"]["spec"], data_copy="the spec"), class_="taken")
    advice = card(tag("p", verdict, class_="verdict"), spec, tag("ul", *map(_point, points), class_="points"))
    for step in d.get("next", []):
        advice.append(tag("p", f"To {step['to']}:", class_="note"))
        advice.append(commands([step["command"]]))
    advice.set("class", "card advice")
    return advice


def _point(point: str) -> Element:
    label, text = labelled(point)
    return tag("li", tag("b", f"{label}:"), f" {text}") if label else tag("li", text)


def _figures(d: DesignDocument) -> Element:
    pick, trained = d["pick"], d["train"]
    race = race_of(d).architectures
    raced = next(row for row in race if row.name == pick["pattern"])
    forecast = (
        "diverged in the race" if raced.loss is None else f"about {raced.loss:.2f} forecast, which may be far off"
    )
    if raced.interval:
        forecast = "{:.3f} to {:.3f} forecast".format(*raced.interval)
    bits = trained.get("bits_per_character")
    spelled = f"{bits:.3g} bits per character" if bits else f"perplexity {trained['perplexity']:.3g}"
    if (loss := trained.get("race_loss")) is not None:  # absent from designs of earlier versions
        forecast = f"{loss:.3f} on the race's text, {forecast}"
    if raced.loss is not None and not as_long_as_forecast(d):
        forecast += f" at {short(d['budget']['spoken_for'])} tokens, trained on {short(trained['tokens'])}"
    return tiles(
        [
            *(
                (
                    metric.name,
                    f"{entry['measured']:.3g} {metric.unit}",
                    f"{'counted' if metric.predicted == EXACT else 'measured'}, {limit:g} allowed",
                )
                for metric, entry, limit in limited(d)
            ),
            ("parameters in its layers", short(pick[d["size"]]), f"{short(pick['total_params'])} in total"),
            (
                "probability of being the best",
                probability(raced.p_best),
                f"of {len(race)} raced",
            ),
            (
                "validation loss",
                f"{trained['loss']:.3g} nats",
                f"{spelled}; {forecast}",
            ),
        ]
    )


# ---- training and how it was made


def _training(d: DesignDocument) -> Element:
    trained = d["train"]
    lines = [
        Series.of(TRAINING, trained["curve"], number=5, marks=False),
        Series.of(VALIDATION, trained["held_out_curve"], number=1, marks=True),
    ]
    entropy = trained.get("entropy")
    panel = Panel(
        lines,
        Axis(f"steps of {trained['tokens'] // trained['steps']:,} tokens", low=0.0),
        Axis("loss, nats per token (↓ better)"),
        "Loss of the pick while it trains",
        floor=entropy,
        floor_label=f"true entropy {entropy:.3f}" if entropy is not None else "",
        unit="step",
    )
    mfu = trained.get("mfu", trained.get("flop_utilisation"))
    words = (
        f"{trained['steps']:,} steps, {short(trained['tokens'])} tokens of {trained['data']} in "
        f"{trained['seconds']:.0f} s: {trained['tokens_per_second']:,.0f} tokens per second"
        f"{'' if mfu is None else f', {percent(mfu)} MFU'}."
    )
    return section("How it trains", note(words), card(panel_plot(panel), line_legend(panel)))


def _making(d: DesignDocument) -> Element:
    machine, config, profile = d["machine"], d["config"], d["profile"]
    points, own = profile["points"], config.get("sources", {})
    facts = [
        ("rule", d["rule"]),
        ("space", f"{config['space']}, searched by {d['search']['method']}, seed {config['seed']}"),
        *((f"mixer {name}", f"hash of its text {text}") for name, text in own.items()),
        (
            "profile",
            f"{points['layer']} layers, {points['outside']} embeddings and outputs, {points['model']} whole models; "
            f"{points['noisy']} noisy; hash {profile['hash']}, made {profile['made'][:16].replace('T', ' ')}",
        ),
        ("training", f"run {d['train']['run']}, seed {d['train']['seed']}, data {config['data']}"),
        (
            "versions",
            f"plait {machine['plait']} (code {machine['code']}), Python {machine['python']}, torch {machine['torch']}",
        ),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"),
        ("when", f"{machine['started'][:16].replace('T', ' ')} UTC, {machine['seconds']:.0f} s"),
    ]
    stages = [[STAGES[name], f"{seconds:.1f} s"] for name, seconds in d["stages"].items()]
    return section(
        "Provenance",
        grid(
            card(table(("what", "how"), [[what, how] for what, how in facts], fixed=True)),
            card(
                table(("stage", ">this time"), stages, fixed=True),
                note("What an earlier call had stored was not computed again, and took no time here."),
            ),
        ),
        card(commands(d["commands"]), title="Reproduce it, as a whole or step by step"),
    )
