"""Two or more records side by side: the differences of their configs, their results, and their curves in one chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait.core.units import short
from plait.records.record import Record, flat
from plait.reporting.models import drawing_of
from plait.reporting.page import Child, card, grid, note, section, table, tag
from plait.reporting.page_charts import Line
from plait.reporting.plots import curve_plot, line_legend
from plait.reporting.summaries import number, spec_of, started_text, summary, time_text
from plait.reporting.view_train import LOSS_AXIS, curve_of
from plait.reporting.views import Context, svg_element

MOST_ROWS = 120
SHOWN = 90  # characters


def side_by_side(records: Sequence[Record], context: Context) -> list[Child]:
    names = [f"{record.key[:6]} {summary(record).name}"[:60] for record in records]
    heads = [f">{record.key[:8]}" for record in records]
    top: list[list[Child]] = [
        ["kind", *(record.kind for record in records)],
        ["of", *(summary(record).name for record in records)],
        ["found", *(summary(record).words for record in records)],
        ["started", *map(started_text, records)],
        ["compute time", *(time_text(record.provenance.get("seconds")) for record in records)],
        ["", *(context.linked(record.key, "the record") for record in records)],
    ]
    same, rows = _differences([flat(record.config) for record in records])
    words = f"{same} identical settings are left out." if same else "No settings are identical."
    parts: list[Child] = [
        section("In short", table(["", *heads], top, fixed=True)),
        *_curves(records, names),
        section("Config", note(words), table(["setting", *heads], rows, name="settings")),
        section("Results", table(["number", *heads], _numbers(records), name="results")),
    ]
    drawn = [(name, drawing_of(spec_of(r), 1024)) for name, r in zip(names, records, strict=True) if spec_of(r)]
    cards = [
        card(tag("div", svg_element(document), class_="drawing"), title=name) for name, document in drawn if document
    ]
    return [*parts, section("Architectures", grid(*cards))] if cards else parts


def _curves(records: Sequence[Record], names: Sequence[str]) -> list[Child]:
    lines = [
        Line(name, points, place, key=record.key[:8])
        for place, (name, record) in enumerate(zip(names, records, strict=True))
        if (points := curve_of(record))
    ]
    if len(lines) < 2:
        return []
    drawn = curve_plot(lines, title="Loss", x_label="tokens", y_label=LOSS_AXIS, unit="token")
    return [section("Curves", card(drawn, line_legend(lines)))]


def _differences(configs: Sequence[dict[str, Any]]) -> tuple[int, list[list[Child]]]:
    """The number of fields that are equal in all configs, and a row for each other field."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    rows: list[list[Child]] = []
    for name in names:
        texts = [_text(config[name]) if name in config else "–" for config in configs]
        if len(set(texts)) > 1:
            rows.append([name, *texts])
    return len(names) - len(rows), rows[:MOST_ROWS]


def _numbers(records: Sequence[Record]) -> list[list[Child]]:
    """A row for each number of the results, those that most records have first."""
    per_record = [
        {name: value for name, value in flat(record.result).items() if number(value) is not None} for record in records
    ]
    names = list(dict.fromkeys(name for numbers in per_record for name in numbers))
    names.sort(key=lambda name: -sum(name in numbers for numbers in per_record))
    return [
        [name.replace("_", " "), *(_text(numbers[name]) if name in numbers else "–" for numbers in per_record)]
        for name in names[:MOST_ROWS]
    ]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return short(value) if abs(value) >= 1e6 else f"{value:.6g}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"
