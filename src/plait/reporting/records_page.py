"""A page of anything that a store holds: trainings with their curves, probes, measurements, evaluations and the rest,
each kind its section, then how it was made and what to cite."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from xml.etree.ElementTree import Element

from plait.records.record import Record, flat
from plait.reporting.page import Child, card, code, folded, note, page, section, table, tag, tiles
from plait.reporting.page_charts import Line, swatch
from plait.reporting.plots import curve_plot

DRAWN = 8  # learning curves: as many as there are colours
LISTED = 200  # rows of a table
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def records_page(records: Sequence[Record], source: str, references: Mapping[str, str]) -> str:
    """`references`: of the mixers that the records name, each where it was published."""
    kinds: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        kinds[record.kind].append(record)
    parts = [SECTIONS.get(kind, _others)(kind, some) for kind, some in kinds.items()]
    title = f"{len(records):,} records of {source}"
    return page(title, tag("h1", title), _summary(records, kinds), *parts, _methods(records, references))


def _summary(records: Sequence[Record], kinds: Mapping[str, Sequence[Record]]) -> Element:
    seconds = sum(float(record.provenance.get("seconds") or 0.0) for record in records)
    days = sorted(str(record.provenance.get("started", ""))[:10] for record in records)
    machines = _distinct(records, "gpu") or _distinct(records, "cpu")
    return tiles([
        ("records", f"{len(records):,}", ", ".join(f"{len(some)} {kind}" for kind, some in kinds.items())),
        ("computed for", _time(seconds), f"{days[0]} to {days[-1]}"),
        ("on", " · ".join(machines)[:60] or "unknown", f"plait {', '.join(_distinct(records, 'plait'))}"),
    ])  # fmt: skip


def _trainings(kind: str, records: Sequence[Record]) -> Element:
    drawn = [record for record in records if _curve(record)][:DRAWN]
    names = {record.key: f"{record.key[:6]} {_spec(record)[:48]}" for record in drawn}
    lines = [Line(names[record.key], _curve(record), series, key=record.key[:8]) for series, record in enumerate(drawn)]
    rows: list[list[Child]] = [
        [
            code(_spec(record), record.key[:8]),
            str(record.result.get("data", "")),
            _number(record.result.get("loss")),
            _whole(record.result.get("tokens")),
            _whole(record.result.get("params")),
            _time(record.result.get("seconds")),
        ]
        for record in records[:LISTED]
    ]
    columns = ("model", "text", ">validation loss, nats per token", ">tokens", ">parameters", ">time")
    keys = [record.key[:8] for record in records[:LISTED]]
    made: list[Child] = [table(columns, rows, keys=keys, name="trainings")]
    if lines:
        chart = curve_plot(lines, title="validation loss", x_label="tokens", y_label="nats per token", unit="token")
        marks = [tag("li", swatch(line.series), line.name, data_series=line.name) for line in lines]
        shown = "" if len(drawn) == len(records) else f" The newest {len(drawn)} of {len(records)} are drawn."
        made.insert(0, card(chart, tag("ul", *marks, class_="legend"), note(f"On held-out text.{shown}")))
    return section("Trainings", *made)


def _tracks(kind: str, records: Sequence[Record]) -> Element:
    """Trainings of comparisons and races: the mean over seeds at the best rate, for every budget."""
    losses: dict[str, dict[float, dict[float, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for record in records:
        loss = record.result.get("loss", math.nan)
        if _is_number(loss) and math.isfinite(loss):
            rate = float(record.config.get("recipe", {}).get("lr", 0.0))
            losses[_spec(record)][float(record.result["tokens"])][rate].append(float(loss))
    best = {
        spec: [(tokens, min(sum(some) / len(some) for some in rates.values())) for tokens, rates in sorted(at.items())]
        for spec, at in losses.items()
    }
    order = sorted(best, key=lambda spec: (-best[spec][-1][0], best[spec][-1][1]))
    lines = [Line(spec.partition("|")[2].strip()[:60] or spec, best[spec], n, key=spec) for n, spec in enumerate(order)]
    chart = curve_plot(
        lines[:DRAWN], title="annealed loss at every budget", x_label="tokens", y_label="nats per token",
        log=True, unit="tokens",
    )  # fmt: skip
    marks = [tag("li", swatch(line.series), line.name, data_series=line.name) for line in lines[:DRAWN]]
    counts = Counter(_spec(record) for record in records)
    rows: list[list[Child]] = [
        [code(spec), _whole(best[spec][-1][0]), _number(best[spec][-1][1]), f"{counts[spec]}"] for spec in order
    ]
    columns = ("model", ">tokens", ">held-out loss, nats per token", ">trainings")
    words = "Annealed trainings of comparisons and races: the mean over seeds, at the rate that was best there."
    picture = card(chart, tag("ul", *marks, class_="legend"), note(words))
    return section("Comparisons and races", picture, table(columns, rows, keys=order, name="tracks"))


def _searches(kind: str, records: Sequence[Record]) -> Element:
    made: list[Child] = []
    for record in records[:DRAWN]:
        front = record.result.get("front") or []
        names = [name for name in ("total_params", "latency", "memory", "state", "flops") if front and name in front[0]]
        rows: list[list[Child]] = [
            [code(row["spec"]), *(_number(row.get(name)) for name in names)] for row in front[:50]
        ]
        words = f"{record.key[:8]}: {record.result.get('space')} by {record.result.get('method')}, "
        words += f"{len(front)} on the front of {_whole(record.result.get('evaluated'))} evaluated"
        columns = ["model", *(f">{name.replace('_', ' ')}" for name in names)]
        made += [note(words), table(columns, rows, name=f"front-{record.key[:8]}")]
    return section("Searches", *made)


def _probes(kind: str, records: Sequence[Record]) -> Element:
    """The mean test accuracy of every architecture on every task, over what was probed of it."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        accuracy = record.result.get("accuracy", record.result.get("test_accuracy"))
        if isinstance(accuracy, (int, float)):
            found[_spec(record)][str(record.config.get("task", {}).get("name"))].append(float(accuracy))
    tasks = sorted({task for by_task in found.values() for task in by_task})
    rows: list[list[Child]] = [
        [code(spec), *(_mean_of(by_task.get(task, [])) for task in tasks)] for spec, by_task in found.items()
    ]
    words = "Mean test accuracy over everything that was probed of an architecture; in brackets, of how many trainings."
    return section("Probes", note(words), table(["architecture", *(f">{task}" for task in tasks)], rows, name="probes"))


def _measurements(kind: str, records: Sequence[Record]) -> Element:
    flats = [flat(record.result) for record in records[:LISTED]]
    wanted = [name for name in ("latency.seconds", "seconds", "memory.peak", "peak", "energy.joules") if any(
        name in one for one in flats)]  # fmt: skip
    rows: list[list[Child]] = [
        [code(_spec(record)), *(_number(one.get(name)) for name in wanted)]
        for record, one in zip(records[:LISTED], flats, strict=True)
    ]
    return section("Measurements", table(["model", *(f">{name}" for name in wanted)], rows, name="measurements"))


def _others(kind: str, records: Sequence[Record]) -> Element:
    """What has no picture of its own: numbers of the results, side by side."""
    flats = [flat(record.result) for record in records[:LISTED]]
    common = Counter(name for one in flats for name, value in one.items() if _is_number(value))
    wanted = [name for name, _ in common.most_common(6)]
    rows: list[list[Child]] = [
        [code(_spec(record) or record.key[:8], record.key[:8]), *(_number(one.get(name)) for name in wanted)]
        for record, one in zip(records[:LISTED], flats, strict=True)
    ]
    cut = [note(f"The newest {LISTED} of {len(records):,}.")] if len(records) > LISTED else []
    return section(f"{kind}", *cut, table(["record", *(f">{name}" for name in wanted)], rows, name=kind))


SECTIONS: dict[str, Callable[[str, Sequence[Record]], Element]] = {
    "train": _trainings,
    "track": _tracks,
    "search": _searches,
    "probe": _probes,
    "measure": _measurements,
}


def methods(records: Sequence[Record]) -> str:
    """A paragraph for a paper, of nothing but what the records say."""
    kinds = Counter(record.kind for record in records)
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    seconds = sum(float(record.provenance.get("seconds") or 0.0) for record in records)
    texts = sorted({str(record.result["data"]) for record in records if isinstance(record.result.get("data"), str)})
    seeds = {str(seed) for record in records if (seed := record.config.get("seed")) is not None}
    where = _distinct(records, "gpu") or _distinct(records, "cpu")
    code_hashes = _distinct(records, "code")
    return " ".join([
        f"All results are records of plait {', '.join(_distinct(records, 'plait'))} (source {', '.join(code_hashes)})"
        f" with torch {', '.join(_distinct(records, 'torch'))} on {', '.join(where) or 'an unknown machine'}:"
        f" {what}, {_time(seconds)} of computing in all.",
        f"Models were trained on {', '.join(texts)}." if texts else "",
        f"{len(seeds)} seeds were used." if len(seeds) > 1 else "One seed was used." if seeds else "",
    ]).strip()  # fmt: skip


def bibtex(references: Mapping[str, str]) -> str:
    """An entry per paper, found by its arXiv number."""
    papers: dict[str, list[str]] = defaultdict(list)
    authors: dict[str, str] = {}
    for mixer, text in references.items():
        for one in text.split(";"):
            if number := ARXIV.search(one):
                papers[number[1]].append(mixer)
                authors[number[1]] = one.partition(",")[0].strip()
    return "\n".join(
        f"@misc{{arxiv{number.replace('.', '')},\n  author = {{{re.sub(r' [0-9]{4}$', '', authors[number])}}},\n"
        f"  year = {{{_year(authors[number], number)}}},\n  eprint = {{{number}}},\n  archivePrefix = {{arXiv}},\n"
        f"  note = {{{', '.join(mixers)}}},\n}}"
        for number, mixers in papers.items()
    )


def _year(author: str, number: str) -> str:
    stated = re.search(r"\b(\d{4})$", author)
    return stated[1] if stated else f"20{number[:2]}"


def _methods(records: Sequence[Record], references: Mapping[str, str]) -> Element:
    entries = bibtex(references)
    cited = [folded("BibTeX of the mixers", tag("pre", entries, data_copy="the entries"))] if entries else []
    return section("How it was made", tag("p", methods(records), data_copy="the paragraph"), *cited)


def _curve(record: Record) -> list[tuple[float, float]]:
    points = record.result.get("held_out_curve") or record.result.get("curve") or []
    per_step = float(record.result.get("tokens") or 0) / max(1.0, float(record.result.get("steps") or 1))
    return [(per_step * float(p[0]), float(p[1])) for p in points if _is_number(p[1]) and math.isfinite(p[1])]


def _spec(record: Record) -> str:
    found = record.result.get("spec") or record.config.get("spec") or record.config.get("arch") or ""
    return found if isinstance(found, str) else str(flat(record.config).get("arch.spec", ""))


def _distinct(records: Sequence[Record], name: str) -> list[str]:
    return sorted({str(value) for record in records if (value := record.provenance.get(name))})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mean_of(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f} ({len(values)})" if values else ""


def _number(value: object) -> str:
    return f"{value:.4g}" if _is_number(value) else ""


def _whole(value: object) -> str:
    return f"{value:,.0f}" if _is_number(value) else ""


def _time(value: object) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:.3g} s" if value < 100 else f"{value / 60:.3g} min" if value < 6000 else f"{value / 3600:.3g} h"
