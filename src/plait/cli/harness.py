"""`plait harness RUN --tasks FILE`: lm-evaluation-harness on a trained model, from local task files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, print_json, progress_bar, table

if TYPE_CHECKING:
    from plait.api.downstream import HarnessResult


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
    trust: Annotated[bool, typer.Option("--trust", help="Let task files run code of their own (!function).")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run tasks of lm-evaluation-harness on a trained model, without a network."""
    from plait.api.downstream import harness

    with progress_bar(quiet=as_json) as on_progress:
        on_progress("reading tasks", 0, None)
        found = harness(
            run, tasks, shots=shots, limit=limit, max_length=max_length, trust=trust, device=device, store=store,
            on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)


def _print(found: HarnessResult) -> None:
    from plait.analysis.accuracy import SHORT_CONTEXT, average, counted

    out = console()
    out.print(f"[bold]lm-evaluation-harness[/] {found.lm_eval}  {found.run}; context of {found.max_length} tokens")
    made = table(task="left", shots="right", items="right", metric="left", value="right", standard_error="right")
    for row in found.table:
        name = row["metric"] if row["filter"] == "none" else f"{row['metric']} ({row['filter']})"
        error = "–" if row["stderr"] is None else f"{row['stderr']:.3g}"
        shots = str(found.shots.get(row["task"], 0))
        made.add_row(row["task"], shots, str(row["items"]), name, f"{row['value']:.4g}", error)
    out.print(made)
    accuracy = counted(found.table)
    if accuracy.keys() >= SHORT_CONTEXT.keys():
        out.print(f"average of the ten short-context tasks: {average(accuracy):.2f} %")
