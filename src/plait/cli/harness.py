"""`plait harness RUN --tasks FILE`: lm-evaluation-harness on a trained model, from local task files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, print_json, table

PROTOCOL = 1  # raised when the same settings come to mean another evaluation


def command(
    run: Annotated[str, typer.Argument(help="A run: its folder, a key's beginning, or latest.", metavar="RUN")],
    tasks: Annotated[
        list[Path],
        typer.Option(help="A task file (YAML), a folder of them, or a LongBench file (JSONL); may be repeated."),
    ],
    shots: Annotated[int | None, typer.Option(min=0, help="Examples before each item. \\[default: the task's]")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first items of each task.")] = None,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Context in tokens. \\[default: the model's, else 2048]")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run tasks of lm-evaluation-harness on a trained model, without a network."""
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from plait.evals.harness import run_for_cli
    from plait.training.run import open_run

    # Bound to the terminal as it is now: what the harness prints is caught while it runs.
    errors = Console(file=sys.stderr)
    with Progress(console=errors, transient=True, disable=as_json or not errors.is_terminal) as bar:
        shown = bar.add_task("reading tasks", total=None)
        found = run_for_cli(
            open_run(run),
            tasks,
            shots=shots,
            limit=limit,
            device=device,
            max_length=max_length,
            progress=lambda what, done, total: bar.update(shown, description=what, completed=done, total=total),
        )
    _keep(found, open_run(run).arch.text, limit, store)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _keep(found: dict[str, Any], spec: str, limit: int | None, store: str | None) -> None:
    """As a record, in place of an earlier one of the same run and tasks."""
    from plait.records import Record, about, open_store

    settings = {name: found[name] for name in ("run", "shots", "max_length", "lm_eval")}
    config = {"protocol": PROTOCOL, "spec": spec, "tasks": sorted(found["results"]), "limit": limit, **settings}
    record = Record.of("harness", config, {"run": found["run"], "table": found["table"]}, about(time.time(), 0.0))
    with open_store(store) as opened:
        opened.delete([record.key])
        opened.put(record)


def _print(found: dict[str, Any]) -> None:
    from plait.analysis.accuracy import SHORT_CONTEXT, average, counted

    out = console()
    out.print(
        f"[bold]lm-evaluation-harness[/] {found['lm_eval']}  {found['run']}; context of {found['max_length']} tokens"
    )
    made = table(task="left", shots="right", items="right", metric="left", value="right", standard_error="right")
    for row in found["table"]:
        name = row["metric"] if row["filter"] == "none" else f"{row['metric']} ({row['filter']})"
        error = "–" if row["stderr"] is None else f"{row['stderr']:.3g}"
        shots = str(found["shots"].get(row["task"], 0))
        made.add_row(row["task"], shots, str(row["items"]), name, f"{row['value']:.4g}", error)
    out.print(made)
    accuracy = counted(found["table"])
    if accuracy.keys() >= SHORT_CONTEXT.keys():
        out.print(f"average of the ten short-context tasks: {average(accuracy):.2f} %")
