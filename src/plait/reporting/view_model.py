"""Views of one model: of a training (loss curves, result, recipe), and of a measurement (latency, memory and energy
with their uncertainty, and the components of memory)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plait.core.units import percent, short
from plait.device.quantities import quantity
from plait.records.record import Record, flat
from plait.reporting.axes import Axis
from plait.reporting.charts import Panel, Series
from plait.reporting.page import Child, card, folded, note, section, table, tiles
from plait.reporting.plots import line_legend, panel_plot
from plait.reporting.studies import loss_figure
from plait.reporting.summaries import (
    loss_text,
    mapping,
    number,
    number_text,
    pattern_of,
    sequence,
    spec_of,
    time_text,
    whole_text,
)
from plait.reporting.views import Context, View, field_table

TRAINING = "training, mean since the last point"
VALIDATION = "validation, on a part of its text"  # the result's loss is that of all of it
LOSS_AXIS = "loss, nats per token (↓ better)"
MOST_POINTS = 600


def curve_points(points: object) -> list[tuple[float, float]]:
    """Pairs of finite numbers, thinned if there are many."""
    pairs = []
    for point in sequence(points):
        pair = sequence(point)[:2]
        x, y = (number(pair[0]), number(pair[1])) if len(pair) == 2 else (None, None)
        if x is not None and y is not None:
            pairs.append((x, y))
    every = max(1, math.ceil(len(pairs) / MOST_POINTS))
    return pairs if every == 1 else [*pairs[:-1:every], pairs[-1]]


def curve_of(record: Record) -> list[tuple[float, float]]:
    """The validation curve, or the training curve if there is none, over tokens."""
    result = record.result
    points = curve_points(result.get("held_out_curve")) or curve_points(result.get("curve"))
    per_step = (number(result.get("tokens")) or 0.0) / max(1.0, number(result.get("steps")) or 1.0)
    return [(per_step * step, loss) for step, loss in points]


def loss_plot(training: Sequence[tuple[float, float]], held_out: Sequence[tuple[float, float]], x_label: str) -> Child:
    lines = [Series.of(TRAINING, training, number=5, marks=False)] if training else []
    lines += [Series.of(VALIDATION, held_out, number=1, marks=len(held_out) <= 60)] if held_out else []
    if not lines:
        return note("No loss has been logged so far.")
    panel = Panel(lines, Axis(x_label, low=0.0), Axis(LOSS_AXIS), "Loss while it trains", unit="step")
    return card(panel_plot(panel), line_legend(panel))


def train_view(record: Record, context: Context) -> View:
    result, spec = record.result, spec_of(record)
    training, held_out = curve_points(result.get("curve")), curve_points(result.get("held_out_curve"))
    tokens, steps = number(result.get("tokens")), number(result.get("steps"))
    recipe = mapping(record.config.get("recipe"))
    per_step = f"steps of {tokens / steps:,.0f} tokens" if tokens and steps else "steps"
    lead = f"Trained on {result.get('data')}" + (
        f", {whole_text(steps)} steps, {short(tokens or 0)} tokens." if steps else "."
    )
    parts: list[Child] = [
        train_tiles(result),
        section("Loss", loss_plot(training, held_out, per_step)),
        folded("Recipe", field_table(flat(recipe), "recipe")) if recipe else "",
    ]
    curves = {name: points for name, points in ((TRAINING, training), (VALIDATION, held_out)) if points}
    rows = [{"curve": name, "step": x, "loss": y} for name, points in curves.items() for x, y in points]
    return View(
        pattern_of(spec) or "A training",
        lead,
        parts,
        {"loss": lambda: loss_figure(curves, title=f"Loss of {pattern_of(spec)[:60]}")} if curves else {},
        rows,
        spec=spec,
        seq=int(number(recipe.get("seq_len", recipe.get("length"))) or 1024),
    )


def train_tiles(result: Mapping[str, Any]) -> Child:
    mfu, bits = number(result.get("mfu")), number(result.get("bits_per_character"))
    spelled = f"perplexity {number_text(result.get('perplexity'), 3)}" if number(result.get("perplexity")) else ""
    speed = number(result.get("tokens_per_second"))
    figures = [
        ("validation loss", loss_text(result.get("loss")), "nats per token"),
        ("perplexity", number_text(result.get("perplexity")), f"{bits:.3g} bits per character" if bits else spelled),
        ("tokens", short(number(result.get("tokens")) or 0), f"{whole_text(result.get('steps'))} steps"),
        ("parameters", short(number(result.get("params")) or 0), ""),
        ("time", time_text(result.get("seconds")), f"{speed:,.0f} tokens per second" if speed else ""),
        ("MFU", percent(mfu) if mfu is not None else "", "of the device's peak"),
    ]
    return tiles([row for row in figures if row[1] and row[1] != "0"])


def track_view(record: Record, context: Context) -> View:
    """One annealed training of a comparison or a race, at one budget, rate and seed."""
    result, config, spec = record.result, record.config, spec_of(record)
    recipe = mapping(config.get("recipe"))
    windows = [loss for loss in (number(window) for window in sequence(result.get("windows"))) if loss is not None]
    lead = (
        f"A training of a comparison or a race: {whole_text(result.get('tokens'))} tokens, rate "
        f"{number_text(recipe.get('lr'))}, seed {config.get('seed', 0)}."
    )
    tiled = [
        ("validation loss", loss_text(result.get("loss")) or "diverged", "nats per token"),
        ("tokens", short(number(result.get("tokens")) or 0), ""),
        ("time", time_text(result.get("seconds")), ""),
        ("validation windows", str(len(windows)) if windows else "", "the same for all"),
    ]
    rows = [{"window": at, "loss": loss} for at, loss in enumerate(windows)]
    seq = int(number(recipe.get("seq_len")) or 1024)
    return View(
        pattern_of(spec) or "A training", lead, [tiles([t for t in tiled if t[1]])], rows=rows, spec=spec, seq=seq
    )


#: Components of peak memory, in order.
MEMORY = {"weights": "weights", "state": "state of the sequences", "activations": "activations and the rest"}


def measure_view(record: Record, context: Context) -> View:
    result, config, spec = record.result, record.config, spec_of(record)
    measured = {name: mapping(result.get(name)) for name in ("latency", "memory", "energy")}
    shown = [_timing(measured["latency"]), _memory(measured["memory"]), _energy(measured["energy"])]
    parts: list[Child] = [tiles([tile for tile in shown if tile[1]])]
    if measured["latency"].get("noisy"):
        parts.append(note("The machine was busy during the measurement: the latency is only a rough estimate."))
    peak = number(measured["memory"].get("peak"))
    rows: list[list[Child]] = [
        [words, quantity("memory").shown(part), percent(part / peak)]
        for name, words in MEMORY.items()
        if peak and (part := number(measured["memory"].get(name))) is not None
    ]
    if rows:
        parts.append(section("Peak memory by part", table(("part", ">at the peak", ">share"), rows, name="memory")))
    fields = {name: value for name, value in flat(result).items() if not isinstance(value, (list, dict))}
    parts.append(folded("All numbers, in seconds, bytes and joules", field_table(fields, "result")))
    seq = int(number(config.get("seq")) or 1024)
    batch = int(number(config.get("batch")) or 1)
    what = {
        "decode": f"Decode of one token after {seq:,}",
        "both": f"A prompt of {seq:,} tokens and an answer of {int(number(config.get('answer')) or 0):,}",
    }.get(str(config.get("mode")), f"Prefill of {seq:,} tokens")
    lead = f"{what}, batch {batch}, {config.get('dtype') or 'float32'}, on {config.get('device') or 'cpu'}."
    return View(pattern_of(spec) or "A measurement", lead, parts, rows=[fields], spec=spec, seq=seq)


def _timing(timing: Mapping[str, Any]) -> tuple[str, str, str]:
    seconds, low, high = (number(timing.get(name)) for name in ("seconds", "low", "high"))
    if seconds is None:
        return "latency", "", ""
    ends = f"95 % interval {1e3 * low:.3g} to {1e3 * high:.3g} ms" if low is not None and high is not None else ""
    repeats = f"{whole_text(timing['repeats'])} repeats" if timing.get("repeats") else ""
    return "latency", quantity("latency").shown(seconds), ", ".join(part for part in (ends, repeats) if part)


def _memory(memory: Mapping[str, Any]) -> tuple[str, str, str]:
    peak = number(memory.get("peak"))
    return "peak memory", "" if peak is None else quantity("memory").shown(peak), "weights, state, activations"


def _energy(energy: Mapping[str, Any]) -> tuple[str, str, str]:
    joules = number(energy.get("joules"))
    return "energy", "" if joules is None else quantity("energy").shown(joules), "of one call"
