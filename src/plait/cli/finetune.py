"""`plait finetune RUN --task sst2 --data FOLDER`: GLUE and SQuAD on a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, print_json, table


def command(
    run: Annotated[str, typer.Argument(help="A run: its folder, a key's beginning, or latest.", metavar="RUN")],
    task: Annotated[str, typer.Option(help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or squad.")],
    data: Annotated[Path, typer.Option(help="Folder of the task's published files (TSV, or SQuAD's JSON).")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training file.")] = 3,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 3e-5,
    batch: Annotated[int, typer.Option(min=1, help="Examples a step.")] = 32,
    max_len: Annotated[int | None, typer.Option(help="Tokens of a row. \\[default: 128, squad 384]", min=8)] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with seeds 0 to N - 1; the median, too.", metavar="N")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the predictions, as they are submitted.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a trained model on a task of GLUE or on SQuAD v1.1, and score it on the dev files."""
    from rich.console import Console
    from rich.progress import Progress

    from plait.evals.finetune import run_for_cli
    from plait.training.run import open_run

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=as_json or not errors.is_terminal) as bar:
        shown = bar.add_task(task, total=None)
        found = run_for_cli(
            open_run(run),
            task,
            data,
            epochs=epochs,
            lr=lr,
            batch=batch,
            max_len=max_len,
            seeds=seeds,
            device=device,
            progress=lambda what, done, total: bar.update(
                shown, description=f"{task}, {what}", completed=done, total=total
            ),
        )
    written = _write(found["files"], out) if out else None
    if as_json:
        print_json({**found, "written": written or []})
    else:
        _print(found, written)


def _write(files: dict[str, str], folder: Path) -> list[str]:
    from plait.core.errors import UserError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as wrong:
        raise UserError(f"cannot write to {folder}: {wrong.strerror}.") from wrong
    return [str(folder / name) for name in files]


def _print(found: dict[str, Any], written: list[str] | None) -> None:
    out = console()
    plan = found["plan"]
    out.print(
        f"[bold]{found['task']}[/]  {found['run']}; {plan['epochs']} epochs, lr {plan['lr']:g}, batch {plan['batch']}, "
        f"rows of {plan['max_len']} tokens"
    )
    made = table(seed="left", **dict.fromkeys(found["metrics"], "right"))
    for row in found["seeds"]:
        made.add_row(str(row["seed"]), *(f"{row[name]:.4g}" for name in found["metrics"]))
    if len(found["seeds"]) > 1:
        spread = found["spread"]
        made.add_row("median", *(f"{value:.4g}" for value in found["median"].values()))
        made.add_row("mean", *(f"{value:.4g} ± {spread[name]:.2g}" for name, value in found["metrics"].items()))
    out.print(made)
    if len(found["seeds"]) > 1:
        out.print("± is the standard deviation from seed to seed, not an interval", style="dim")
    if written == []:
        out.print("no test file in the folder: nothing to submit")
    for path in written or []:
        out.print(f"written {path}", markup=False, soft_wrap=True)
