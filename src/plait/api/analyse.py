"""Analyses of a table of results from any source, and of what architectures found by searches have in common:
`plait.analyse`.

`plait.analyse.difficulty`, `accuracy` and `option` combine stored probes, trainings, evaluations and measurements;
`infer` recovers a missing column of a table from a printed parameter count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.analyse_fronts import dominated, front, front_distance, hypervolume, matched_pairs, savings
from plait.api.analyse_layers import layers
from plait.api.analyse_ranks import aspect, heatmap, lr, ranks
from plait.api.analyse_table import Analysis, Names, analysis, label_of, read
from plait.core.errors import UserError
from plait.core.files import write_text
from plait.core.registry import names, pairs
from plait.records import Store
from plait.records.store import opened_store

if TYPE_CHECKING:
    from plait.records import Record


__all__ = [
    "accuracy",
    "aspect",
    "difficulty",
    "dominated",
    "front",
    "front_distance",
    "heatmap",
    "hypervolume",
    "infer",
    "layers",
    "lr",
    "matched_pairs",
    "option",
    "ranks",
    "savings",
]


def difficulty(
    tasks: Names = "",
    *,
    suite: str = "mad21",
    svg: str | Path | None = None,
    store: str | Store | None = None,
) -> Analysis:
    """Show accuracy against each variable of a task's difficulty, from stored probes."""
    from plait.analysis.accuracy import difficulty_curves

    wanted = names(tasks)
    probes = [
        record.document()
        for record in _records(store, "probe", "plait probe --suite mad21 --full")
        if not wanted or record.config["task"]["task"] in wanted
    ]
    curves = difficulty_curves(probes, _called(suite) if suite else {})
    if not curves:
        raise UserError("no task was probed at more than one setting; run `plait probe ARCHITECTURE --full`.")
    if svg is not None:
        from plait.reporting.studies import difficulty_figure

        for task in dict.fromkeys(curve.task for curve in curves):
            write_text(
                Path(svg) / f"{task}.svg", difficulty_figure(task, [curve for curve in curves if curve.task == task])
            )
    rows = [row for curve in curves for row in curve.rows()]
    notes = ["test accuracy: mean, lowest and highest of the seeds"]
    return analysis({"curves": rows}, "curves", notes=notes)


def accuracy(
    where: Sequence[str] | None = None,
    *,
    svg: str | Path | None = None,
    store: str | Store | None = None,
) -> Analysis:
    """Show the accuracy of models on tasks against their latency, from stored evaluations and measurements."""
    from plait.analysis.accuracy import against_latency

    conditions = pairs(where or [], "--where", "seq=2048")
    measured = [
        record.document()
        for record in _records(store, "measure", "plait measure SPEC --seq 2048")
        if all(str(record.config.get(name)) == value for name, value in conditions.items())
    ]
    evaluated = [record.document() for record in _records(store, "harness", "plait harness RUN --tasks FOLDER")]
    models = against_latency(evaluated, measured)
    if not models:
        raise UserError("no model has records of both `plait harness` and `plait measure` in this setting.")
    tasks = list(dict.fromkeys(task for model in models for task in model.accuracy))
    rows: list[dict[str, Any]] = [
        {
            "model": model.model,
            "latency_ms": model.latency_ms,
            **{task: model.accuracy.get(task) for task in tasks},
            "average": model.average,
        }
        for model in models
    ]
    if svg is not None:
        from plait.reporting.studies import accuracy_figure

        columns = [*tasks, *(["average"] if any(row["average"] is not None for row in rows) else [])]
        values = {name: [float("nan") if row[name] is None else row[name] for row in rows] for name in columns}
        write_text(svg, accuracy_figure([m.model for m in models], [m.latency_ms for m in models], values))
    notes = ["accuracy in %; average: over the ten short-context tasks"]
    return analysis({"models": rows}, "models", notes=notes)


def option(
    name: str,
    *,
    kind: str = "train",
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
) -> Analysis:
    """Find the best value of a mixer's option, from stored trainings or probes that differ in nothing else.

    `name`: mixer and option, such as `mh-hyena.heads`. `kind`: `train`, by the loss, or `probe`, by the accuracy.
    `mixers`: files with mixers of your own."""
    from dataclasses import asdict

    from plait.model.architecture import load_mixers
    from plait.scaling.stored import QUALITY, option_values

    load_mixers(mixers)
    mixer, _, option = name.rpartition(".")
    if not mixer or kind not in QUALITY:
        raise UserError(f"{name}, --kind {kind}: give MIXER.OPTION, such as mh-hyena.heads, and train or probe.")
    command = "plait train SPEC" if kind == "train" else "plait probe SPEC"
    swept = option_values(_records(store, kind, command), mixer, option, kind)
    quality = QUALITY[kind][0]
    rows = [{**asdict(row), "quality": row.quality} for row in swept]
    settings = len({row.setting for row in swept})
    open_ = {row.setting for row in swept if row.tied}
    wins: Counter[str] = Counter(row.value for row in swept if row.best and row.setting not in open_)
    counts = ", ".join(f"{value} in {count}" for value, count in wins.most_common()) or "none"
    note = f"quality: mean {quality}; best {option}, distinguishable from all others: {counts} of {settings} settings"
    noise = [row.noise for row in swept if row.noise is not None]
    if noise:
        note += (
            f"; noise between seeds {min(noise):.4f} to {max(noise):.4f}; smaller differences are not distinguishable"
        )
    else:
        note += "; one seed each: the noise between seeds is unknown, so no value is significantly best"
    return analysis({"values": rows, "best": dict(wins)}, "values", notes=[note])


def _records(store: str | Store | None, kind: str, command: str) -> list[Record]:
    with opened_store(store) as opened:
        records = opened.find(kind)
        if not records:
            raise UserError(f"{opened.name} has no records of kind '{kind}': `{command}` makes them.")
    return records


def _called(suite: str) -> dict[str, str]:
    """Architecture text → name in the suite."""
    from plait.analysis.accuracy import architecture_text
    from plait.model.architecture import architecture
    from plait.spec import presets

    return {architecture_text(architecture(name).text): name for name in presets.suite(suite)}


def infer(
    file: str,
    *,
    field: str,
    values: str,
    spec: str,
    printed: str,
    unit: float = 1000000.0,
    count: str = "decoder_params",
    allowance: float = 0,
    where: Sequence[str] | None = None,
    label: str | None = None,
) -> Analysis:
    """Infer a missing column from a printed parameter count: unique, ambiguous or none, for each row."""
    from plait.searching.missing_field import AMBIGUOUS, NONE, UNIQUE, MissingField
    from plait.space.declaration import numbers_of

    table, missing = read(file, where, [printed])
    question = MissingField(table, spec, field, numbers_of(values), printed, unit, count, allowance)
    question.check()
    rows = [
        {
            "row": name,
            "verdict": inferred.verdict,
            field: inferred.values[0] if len(inferred.values) == 1 else None,
            "fitting": list(inferred.values),
            "counted": list(inferred.counts),
        }
        for name, inferred in zip(label_of(table, label), question.infer(), strict=True)
    ]
    tally = Counter(str(row["verdict"]) for row in rows)
    counts = ", ".join(f"{verdict} {tally[verdict]}" for verdict in (UNIQUE, AMBIGUOUS, NONE))
    note = f"{counts} of {len(rows)} rows; {count} within half a printed digit ({question.half_digit:,.0f})"
    note += f" and {allowance:,.0f}" if allowance else ""
    document = {"rows": rows, "tally": {verdict: tally[verdict] for verdict in (UNIQUE, AMBIGUOUS, NONE)}}
    without = f"left out: {missing} rows without a printed count" if missing else ""
    return analysis(document, "rows", notes=[note, without])
