"""Records of a store as one page: a section per kind, the requested records in detail, then how everything was made and
what to cite. The sections and the views are those of the live dashboard (`plait.serving`).

`side_by_side` compares two or more records: the differences of their configs, their results, and their curves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

from plait.core.units import short
from plait.records.record import Record, flat
from plait.reporting.axes import Axis
from plait.reporting.charts import Panel, Series
from plait.reporting.citation import distinct, methods_section, seconds_of
from plait.reporting.models import ModelSheet, drawing_of, model_sheets
from plait.reporting.page import Child, card, code, grid, link, note, page, section, table, tag, tiles
from plait.reporting.plots import line_legend, panel_plot
from plait.reporting.summaries import (
    loss_text,
    number,
    number_text,
    pattern_of,
    spec_of,
    started_text,
    summary,
    time_text,
    whole_text,
)
from plait.reporting.view_model import LOSS_AXIS, curve_of
from plait.reporting.view_probe import probes_section
from plait.reporting.views import ALONE, Context, View, heading, svg_element, view_of, whole_view

DRAWN = 8  # learning curves, as many as colours
LISTED = 200  # rows of a table
MARKED = 60  # points of a curve that has marks
CLOSE = 12  # largest number of records requested by key that are shown in detail
#: Kinds that are final results; the newest of each is shown in detail on every page.
ANSWERS = ("design", "compare", "probe-verdict", "scale", "search")
#: Kinds of records that are parts of others.
PARTS = ("track", "probe", "probe-plan", "probe-replan", "race-speed", "compare-plan", "score", "design-clock")


def records_page(
    records: Sequence[Record], source: str, references: Mapping[str, str], *, named: bool = False,
    context: Context = ALONE,
) -> str:  # fmt: skip
    """`references` are the publications of the mixers that the records name; `named` records were asked for by their
    keys, so each is shown in detail."""
    title = f"{len(records):,} record{'s' * (len(records) != 1)} of {source}"
    close = close_records(records, named)
    inside = Context(context.get, lambda key: f"#{key}" if any(key == record.key for record in close) else "")
    kinds: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        kinds[record.kind].append(record)
    views = {record.key: view_of(record, inside) for record in close}
    shown = sorted((kind for kind, some in kinds.items() if not named or len(some) > 1), key=_place)
    groups = [kind_section(kind, kinds[kind], inside) for kind in shown]
    beside = side_by_side(records, inside) if named and len(records) == 2 else []
    return page(
        title,
        tag("h1", title),
        summary_tiles(records),
        *([section("Side by side", *beside)] if beside else []),
        *groups,
        *(_record_article(record, views[record.key], inside) for record in close),
        methods_section(records, references),
        tag("p", data_take="records.json"),
        *model_sheets(_sheets(views), {record.key: record.document() for record in close}),
    )


def _place(kind: str) -> int:
    """The order of the sections: what was asked for, other results, and last what they consist of."""
    return ANSWERS.index(kind) if kind in ANSWERS else len(ANSWERS) + (kind in PARTS)


def close_records(records: Sequence[Record], named: bool) -> list[Record]:
    if named and len(records) <= CLOSE:
        return list(records)
    newest: dict[str, Record] = {}
    for record in records:
        if record.kind in ANSWERS:
            newest.setdefault(record.kind, record)
    return [newest[kind] for kind in ANSWERS if kind in newest]


def _record_article(record: Record, view: View, context: Context) -> Element:
    parts = whole_view(record, view, context)
    article = tag("article", heading(record, view), *parts, id=record.key, data_scope=record.key)
    article.find("header/h1").tag = "h2"  # type: ignore[union-attr]
    return article


def _sheets(views: Mapping[str, View]) -> list[ModelSheet]:
    """The models whose details can be opened, each in the scope of its record."""
    return [replace(sheet, scope=key) for key, view in views.items() for sheet in view.sheets]


def summary_tiles(records: Sequence[Record]) -> Element:
    kinds = Counter(record.kind for record in records)
    days = sorted(str(record.provenance.get("started", ""))[:10] for record in records)
    machines = distinct(records, "gpu") or distinct(records, "cpu")
    return tiles([
        ("records", f"{len(records):,}", ", ".join(f"{count} {kind}" for kind, count in kinds.items())),
        ("compute time", time_text(seconds_of(records)), " to ".join(dict.fromkeys((days[0], days[-1])))),
        ("hardware", " · ".join(machines)[:60] or "unknown", f"plait {', '.join(distinct(records, 'plait'))}"),
    ])  # fmt: skip


def kind_section(kind: str, records: Sequence[Record], context: Context = ALONE) -> Element:
    """All records of a kind together."""
    return SECTIONS.get(kind, _others)(kind, records, context)


def _trainings(kind: str, records: Sequence[Record], context: Context) -> Element:
    drawn = [record for record in records if curve_of(record)][:DRAWN]
    names = {record.key: f"{record.key[:6]} {pattern_of(spec_of(record))[:48]}" for record in drawn}
    lines = [
        Series.of(
            names[record.key], curve_of(record), number=at, marks=len(curve_of(record)) <= MARKED, key=record.key[:8]
        )
        for at, record in enumerate(drawn)
    ]
    rows: list[list[Child]] = [
        [
            _named(record, context),
            str(record.result.get("data", "")),
            loss_text(record.result.get("loss")),
            whole_text(record.result.get("tokens")),
            whole_text(record.result.get("params")),
            time_text(record.result.get("seconds")),
        ]
        for record in records[:LISTED]
    ]
    columns = ("model", "text", ">validation loss, nats per token", ">tokens", ">parameters", ">time")
    keys = [record.key[:8] for record in records[:LISTED]]
    parts: list[Child] = [table(columns, rows, keys=keys, name="trainings")]
    if lines:
        panel = Panel(lines, Axis("tokens", low=0.0), Axis(LOSS_AXIS), "Validation loss", unit="token")
        shown = "" if len(drawn) == len(records) else f" The newest {len(drawn)} of {len(records)} are drawn."
        parts.insert(
            0,
            card(panel_plot(panel), line_legend(panel), note(f"On validation text.{shown}")),
        )
    return section("Trainings", *parts)


def _named(record: Record, context: Context) -> Element:
    """The key, linked to its record if that has an address, above the spec."""
    return code(spec_of(record) or summary(record).name, context.linked(record.key, record.key[:8]))


def _tracks(kind: str, records: Sequence[Record], context: Context) -> Element:
    """Trainings of comparisons and races, text by text, and screenings: losses of different texts do not compare."""
    texts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        what = "Screenings on the text" if record.config.get("screening") else "On the text"
        texts[f"{what} {str(record.config.get('data', ''))[:8]}…"].append(record)
    titled = len(texts) > 1
    parts = [part for title, some in texts.items() for part in _tracks_on(title if titled else "", some)]
    return section("Comparisons and races", *parts)


def _tracks_on(title: str, records: Sequence[Record]) -> list[Child]:
    """The mean over seeds at the best rate, for every budget."""
    losses: dict[str, dict[float, dict[float, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for record in records:
        loss, tokens = number(record.result.get("loss")), number(record.result.get("tokens"))
        if loss is not None and tokens is not None:
            recipe = record.config.get("recipe")
            rate = number(recipe.get("lr")) if isinstance(recipe, Mapping) else None
            losses[spec_of(record)][tokens][rate or 0.0].append(loss)
    best = {
        spec: [(tokens, min(sum(some) / len(some) for some in rates.values())) for tokens, rates in sorted(at.items())]
        for spec, at in losses.items()
    }
    order = sorted(best, key=lambda spec: (-best[spec][-1][0], best[spec][-1][1]))
    lines = [
        Series.of(pattern_of(spec)[:60], best[spec], number=n, marks=True, key=spec)
        for n, spec in enumerate(order[:DRAWN])
    ]
    axes = Axis("tokens", log=True), Axis(LOSS_AXIS)
    panel = Panel(lines, *axes, "loss after decay, at every budget", unit="tokens")
    counts = Counter(spec_of(record) for record in records)
    rows: list[list[Child]] = [
        [code(spec), whole_text(best[spec][-1][0]), number_text(best[spec][-1][1]), f"{counts[spec]}"]
        for spec in order[:LISTED]
    ]
    columns = ("model", ">tokens", ">validation loss, nats per token", ">trainings")
    words = (
        "Trainings of comparisons and races with the learning rate decayed to zero: mean over seeds, at the best rate."
    )
    picture = card(panel_plot(panel), line_legend(panel), note(words), title=title)
    return [picture, table(columns, rows, keys=order[:LISTED], name="tracks")]


def _probes(kind: str, records: Sequence[Record], context: Context) -> Element:
    return section("Probes", *probes_section(records))


def _measurements(kind: str, records: Sequence[Record], context: Context) -> Element:
    flats = [flat(record.result) for record in records[:LISTED]]
    wanted = {name: words for name, words in MEASURED.items() if any(name in fields for fields in flats)}
    rows: list[list[Child]] = [
        [
            _named(record, context),
            *(
                "" if (value := number(fields.get(name))) is None else number_text(factor * value)
                for name, (_, factor) in wanted.items()
            ),
        ]
        for record, fields in zip(records[:LISTED], flats, strict=True)
    ]
    return section("Measurements", table(["model", *(f">{words}" for words, _ in wanted.values())], rows, name=kind))


#: Fields of measurements: label, and the factor from base units to the unit shown.
MEASURED = {
    "latency.seconds": ("latency, ms", 1e3),
    "latency.low": ("95 % interval from, ms", 1e3),
    "latency.high": ("to, ms", 1e3),
    "seconds": ("latency, ms", 1e3),
    "memory.peak": ("peak memory, MB", 1e-6),
    "peak": ("peak memory, MB", 1e-6),
    "energy.joules": ("energy, mJ", 1e3),
}


def _evaluations(kind: str, records: Sequence[Record], context: Context) -> Element:
    rows: list[list[Child]] = [
        [_named(record, context), summary(record).source, summary(record).words, started_text(record)]
        for record in records[:LISTED]
    ]
    return section("Evaluations", table(("model", "evaluation", "result", "started"), rows, name=kind))


def _answers(kind: str, records: Sequence[Record], context: Context) -> Element:
    """Records with a verdict in words."""
    rows: list[list[Child]] = []
    for record in records[:LISTED]:
        fields, address = summary(record), context.address(record.key)
        words = fields.words or fields.name
        rows.append([link(address, words) if address else words, fields.name, fields.source, started_text(record)])
    title = TITLES.get(kind, kind)
    return section(title, table(("result", "what", "data", "started"), rows, name=kind))


MOST_DIFFERING = 3  # columns of a config
TITLES = {"compare": "Comparisons", "design": "Designs", "probe-verdict": "Probe results", "search": "Searches",
          "scale": "Scaling studies"}  # fmt: skip


def _others(kind: str, records: Sequence[Record], context: Context) -> Element:
    """Kinds without a section of their own: a table of the numbers in which their configs differ, and of the most
    common ones in their results."""
    flats = [flat(record.config) for record in records[:LISTED]]
    common = Counter(name for fields in flats for name, value in fields.items() if number(value) is not None)
    differing = [name for name in common if len({repr(fields.get(name)) for fields in flats}) > 1][:MOST_DIFFERING]
    flats = [{**flat(r.result), **{n: f.get(n) for n in differing}} for r, f in zip(records, flats, strict=False)]
    common = Counter(name for fields in flats for name, value in fields.items() if number(value) is not None)
    wanted = list(dict.fromkeys([*differing, *(name for name, _ in common.most_common(6 + len(differing)))]))
    rows: list[list[Child]] = [
        [_named(record, context), *(number_text(fields.get(name)) for name in wanted)]
        for record, fields in zip(records[:LISTED], flats, strict=True)
    ]
    cut = [note(f"The newest {LISTED} of {len(records):,}.")] if len(records) > LISTED else []
    return section(f"{kind}", *cut, table(["record", *(f">{name}" for name in wanted)], rows, name=kind))


SECTIONS: dict[str, Callable[[str, Sequence[Record], Context], Element]] = {
    "train": _trainings,
    "track": _tracks,
    "search": _answers,
    "probe": _probes,
    "measure": _measurements,
    "eval": _evaluations,
    "compare": _answers,
    "probe-verdict": _answers,
    "design": _answers,
    "scale": _answers,
}


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
        Series.of(name, points, number=place, marks=False, key=record.key[:8])
        for place, (name, record) in enumerate(zip(names, records, strict=True))
        if (points := curve_of(record))
    ]
    if len(lines) < 2:
        return []
    panel = Panel(lines, Axis("tokens", low=0.0), Axis(LOSS_AXIS), "Loss", unit="token")
    return [section("Curves", card(panel_plot(panel), line_legend(panel)))]


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
