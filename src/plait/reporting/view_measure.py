"""The view of a measurement: latency, memory and energy of one model, their uncertainty, and the components of
memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.core.units import percent
from plait.device.quantities import quantity
from plait.records.record import Record, flat
from plait.reporting.page import Child, folded, note, section, table, tiles
from plait.reporting.summaries import mapping, number, pattern_of, spec_of, whole_text
from plait.reporting.views import Context, View, field_table

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
