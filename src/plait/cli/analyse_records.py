"""`plait analyse difficulty | accuracy`: what stored probes, evaluations and measurements say together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.analyse_table import names, show
from plait.cli.options import AsJson, StoreUrl
from plait.core.errors import UserError

if TYPE_CHECKING:
    from plait.records import Record


def difficulty(
    tasks: Annotated[str, typer.Option(help="Only these, with commas between them.")] = "",
    suite: Annotated[str, typer.Option(help="Call architectures by their names in this set.")] = "mad21",
    svg: Annotated[Path | None, typer.Option(help="Draw a picture per task into this folder.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Tell how accuracy falls with each variable of a task's difficulty, from stored probes."""
    from plait.analysis.difficulty import difficulty_curves

    wanted = names(tasks)
    probes = [
        record.document()
        for record in _records(store, "probe", "plait probe --suite mad21 --full")
        if not wanted or record.config["task"]["task"] in wanted
    ]
    curves = difficulty_curves(probes, _called(suite) if suite else {})
    if not curves:
        raise UserError("no task was probed at more than one setting: `plait probe ARCHITECTURE --full` does it.")
    if svg is not None:
        from plait.reporting.studies import difficulty_figure
        from plait.reporting.svg import save

        for task in dict.fromkeys(curve.task for curve in curves):
            save(difficulty_figure(task, [curve for curve in curves if curve.task == task]), svg / f"{task}.svg")
    rows = [row for curve in curves for row in curve.rows()]
    notes = ["test accuracy: mean, lowest and highest seed", f"drawn: {svg}" if svg else ""]
    show({"curves": rows}, as_json, "curves", notes=notes)


def accuracy(
    where: Annotated[list[str] | None, typer.Option(help="Only measurements with this setting: seq=2048.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw accuracy over latency, a panel per task.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set the accuracy of models on tasks against their latency, from stored evaluations and measurements."""
    from plait.analysis.accuracy import against_latency

    conditions = dict(_condition(each) for each in where or [])
    measured = [
        record.document()
        for record in _records(store, "measure", "plait measure SPEC --seq 2048")
        if all(str(record.config.get(name)) == value for name, value in conditions.items())
    ]
    evaluated = [record.document() for record in _records(store, "harness", "plait harness RUN --tasks FOLDER")]
    models = against_latency(evaluated, measured)
    if not models:
        raise UserError(
            "no model was both evaluated by `plait harness` and measured by `plait measure` in this setting."
        )
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
        from plait.reporting.svg import save

        columns = [*tasks, *(["average"] if any(row["average"] is not None for row in rows) else [])]
        values = {name: [float("nan") if row[name] is None else row[name] for row in rows] for name in columns}
        save(accuracy_figure([m.model for m in models], [m.latency_ms for m in models], values), svg)
    notes = ["accuracy in per cent; average: over the ten short-context tasks", f"drawn: {svg}" if svg else ""]
    show({"models": rows}, as_json, "models", notes=notes)


def _records(store: str | None, kind: str, command: str) -> list[Record]:
    from plait.records import open_store

    with open_store(store) as opened:
        found = opened.find(kind)
        if not found:
            raise UserError(f"{opened.name} has no records of kind '{kind}': `{command}` makes them.")
    return found


def _called(suite: str) -> dict[str, str]:
    """The suite's names by the text of their architectures."""
    from plait.analysis.difficulty import architecture_text
    from plait.model.architecture import architecture
    from plait.spec import presets

    return {architecture_text(architecture(name).text): name for name in presets.suite(suite)}


def _condition(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UserError(f"--where {text}: should be field=value, such as seq=2048.")
    return name.strip(), value.strip()
