"""A one-line summary of a record, for lists and headings: what it is about, and its most important number.

Records may be old or written by other programs, so missing and malformed fields are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.units import duration, short
from plait.records.record import Record, flat

LONGEST = 400  # characters of a name or spec in a line


@dataclass(frozen=True)
class Summary:
    """`name`: the subject of the record; `spec`: of its model, if it has one; `value` with its `unit`: the result;
    `words`: the same as text; `source`: the data or the task."""

    name: str
    spec: str = ""
    value: float | None = None
    unit: str = ""
    words: str = ""
    source: str = ""


def summary(record: Record) -> Summary:
    """The summary of any record; of a malformed one, whatever could be read."""
    full = SUMMARIES.get(record.kind, _other)(record)
    name = " ".join(full.name.split())[:LONGEST] or record.key[:10]
    return Summary(name, full.spec[:LONGEST], full.value, full.unit, full.words[:LONGEST], full.source[:LONGEST])


def spec_of(record: Record) -> str:
    """The spec of the record's model; empty if it has several or none."""
    for place in (record.result, record.config):
        for name in ("spec", "arch"):
            entry = place.get(name)
            if isinstance(entry, str):
                return entry
            if isinstance(entry, Mapping) and isinstance(entry.get("spec"), str):
                return str(entry["spec"])
    return ""


def pattern_of(spec: str) -> str:
    """The layers of a spec, without its header."""
    return spec.partition("|")[2].strip() or spec


def number(value: object) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 and math.isfinite(value) else None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def number_text(value: object, digits: int = 4) -> str:
    """With so many significant digits, or as a whole number with separators if as short: 0.003125, 189,200."""
    amount = number(value)
    if amount is None:
        return ""
    return f"{amount:,.0f}" if 10**digits <= abs(amount) < 1e9 else f"{amount:.{digits}g}"


def loss_text(value: object) -> str:
    """With four digits, including trailing zeros: 2.100 next to 2.092."""
    amount = number(value)
    return "" if amount is None else f"{amount:#.4g}"


def whole_text(value: object) -> str:
    amount = number(value)
    return "" if amount is None else f"{amount:,.0f}"


def time_text(value: object) -> str:
    seconds = number(value)
    if seconds is None:
        return ""
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def started_text(record: Record) -> str:
    return str(record.provenance.get("started", ""))[:16].replace("T", " ")


def _loss(record: Record) -> Summary:
    loss, spec = number(record.result.get("loss")), spec_of(record)
    data = record.result.get("data")
    tokens = number(record.result.get("tokens"))
    after = f" after {short(tokens)} tokens" if tokens else ""
    words = "" if loss is None else f"{loss_text(loss)} nats per token{after}"
    return Summary(pattern_of(spec), spec, loss, "nats per token", words, data if isinstance(data, str) else "")


def _probe(record: Record) -> Summary:
    spec, accuracy = spec_of(record), number(record.result.get("accuracy", record.result.get("test_accuracy")))
    task = task_of(record)
    words = "" if accuracy is None else f"accuracy {accuracy:.3f}"
    return Summary(pattern_of(spec), spec, accuracy, "accuracy", words, task)


def task_of(record: Record) -> str:
    task = mapping(record.config.get("task"))
    return str(task.get("task") or task.get("name") or "")


def _search(record: Record) -> Summary:
    result = record.result
    front = len(sequence(result.get("front")))
    words = f"{front} on the front of {whole_text(result.get('evaluated'))}"
    name = ", ".join([f"{result.get('space')} by {result.get('method')}", *constraints_of(record)])
    return Summary(name, "", float(front), "on the front", words)


def constraints_of(record: Record) -> list[str]:
    """The constraints of a search besides its limits, which tell it from others in the same space."""
    limited = tuple(mapping(record.result.get("limits")))
    texts = map(str, sequence(mapping(record.config.get("space")).get("rules")))
    return [text for text in texts if not text.startswith(limited)]


def _race_speed(record: Record) -> Summary:
    specs = [str(mapping(row).get("spec", "")) for row in sequence(record.config.get("architectures"))]
    names = ", ".join(map(pattern_of, specs))
    return Summary(names, "", float(len(specs)), "models", f"{len(specs)} models timed")


def _design_clock(record: Record) -> Summary:
    return Summary(f"the time of a design: {record.config.get('stage')}")


def _document(record: Record) -> Summary:
    """The summary of a document with a verdict in words: a comparison, a probe's verdict."""
    result = record.result
    rows = sequence(result.get("architectures"))
    source = result.get("data") or mapping(result.get("config")).get("data") or result.get("protocol") or ""
    names = ", ".join(str(mapping(row).get("name", "")) for row in rows)
    return Summary(names, "", float(len(rows)), "architectures", str(result.get("verdict", "")), str(source))


def _design(record: Record) -> Summary:
    result = record.result
    pick, trained = mapping(result.get("pick")), mapping(result.get("train"))
    points = sequence(result.get("points"))
    loss = number(trained.get("loss"))
    source = str(mapping(result.get("config")).get("data", ""))
    words = str(points[0]) if points else ""
    return Summary(str(pick.get("pattern", "")), str(pick.get("spec", "")), loss, "nats per token", words, source)


def _scale(record: Record) -> Summary:
    runs = [mapping(row) for row in sequence(record.config.get("runs"))]
    names = ", ".join(dict.fromkeys(str(row.get("architecture")) for row in runs))
    return Summary(names, "", float(len(runs)), "runs", f"{len(runs)} runs", str(record.result.get("text", "")))


#: Fields of an evaluation's result, most informative first, each with its template: the first that is present is used.
EVALUATED = {
    "mean.effective_length": "effective length {} tokens",
    "verdict": "{}",
    "perplexity": "perplexity {}",
    "loss": "{} nats per token",
    "standard.score": "{} exact answers",
    "easy.score": "{} exact answers",
    "maps": "maps of {} heads",
}


def _eval(record: Record) -> Summary:
    spec, fields = spec_of(record), flat(record.result)
    fields["maps"] = len(sequence(record.result.get("maps"))) or None
    value, unit, words = None, "", ""
    for name, template in EVALUATED.items():
        entry = fields.get(name)
        if isinstance(entry, str) or number(entry) is not None:
            value, unit = number(entry), " ".join(template.replace("{}", "").split())
            shown = whole_text if name in ("mean.effective_length", "maps") else number_text
            words = template.format(entry if isinstance(entry, str) else shown(entry))
            if words == EVALUATED["mean.effective_length"].format(0):
                words = "effective length below the shortest tested"
            break
    return Summary(pattern_of(spec), spec, value, unit, words, str(record.config.get("evaluation", "")))


def _measure(record: Record) -> Summary:
    spec, fields = spec_of(record), flat(record.result)
    seconds = next((number(fields[name]) for name in ("latency.seconds", "seconds", "median") if name in fields), None)
    words = "" if seconds is None else f"{1e3 * seconds:.3g} ms"
    return Summary(pattern_of(spec), spec, seconds, "seconds", words, str(record.config.get("device", "")))


def _other(record: Record) -> Summary:
    spec = spec_of(record)
    first = next(((k, v) for k, v in flat(record.result).items() if number(v) is not None), None)
    words = "" if first is None else f"{first[0]} {number_text(first[1])}"
    value, unit = (None, "") if first is None else (number(first[1]), first[0])
    of = record.config.get("proxy") or record.config.get("study") or ""
    return Summary(pattern_of(spec) or record.kind, spec, value, unit, words, str(of).replace("_", " "))


SUMMARIES: dict[str, Callable[[Record], Summary]] = {
    "train": _loss,
    "track": _loss,
    "lr-sweep": _loss,
    "probe": _probe,
    "search": _search,
    "race-speed": _race_speed,
    "design-clock": _design_clock,
    "compare": _document,
    "probe-verdict": _document,
    "design": _design,
    "scale": _scale,
    "eval": _eval,
    "measure": _measure,
}
