"""`plait finetune RUN --task sst2 --data FOLDER`: GLUE and SQuAD on a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, print_json, progress_bar, table

if TYPE_CHECKING:
    from plait.api.downstream import FinetuneResult


def command(
    run: Annotated[str, typer.Argument(help="A run: its folder, a key's beginning, or latest.", metavar="RUN")],
    task: Annotated[str, typer.Option(help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or squad.")],
    data: Annotated[Path, typer.Option(help="Folder of the task's published files (TSV, or SQuAD's JSON).")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training file.")] = 3,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 3e-5,
    batch: Annotated[int, typer.Option(min=1, help="Examples per step.")] = 32,
    max_len: Annotated[int | None, typer.Option(help="Tokens per row. \\[default: 128, squad 384]", min=8)] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with seeds 0 to N - 1; the median, too.", metavar="N")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the predictions, as they are submitted.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a trained model on a task of GLUE or on SQuAD v1.1, and score it on the dev files."""
    from plait.api.downstream import finetune

    with progress_bar(quiet=as_json) as on_progress:
        found = finetune(
            run, task, data, epochs=epochs, lr=lr, batch=batch, max_len=max_len, seeds=seeds, out=out, device=device,
            on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found, asked=out is not None)


def _print(found: FinetuneResult, *, asked: bool) -> None:
    out = console()
    plan = found.plan
    out.print(
        f"[bold]{found.task}[/]  {found.run}; {plan['epochs']} epochs, lr {plan['lr']:g}, batch {plan['batch']}, "
        f"rows of {plan['max_len']} tokens"
    )
    made = table(seed="left", **dict.fromkeys(found.metrics, "right"))
    for row in found.seeds:
        made.add_row(str(row["seed"]), *(f"{row[name]:.4g}" for name in found.metrics))
    if len(found.seeds) > 1:
        spread = found.spread
        made.add_row("median", *(f"{value:.4g}" for value in found.median.values()))
        made.add_row("mean", *(f"{value:.4g} ± {spread[name]:.2g}" for name, value in found.metrics.items()))
    out.print(made)
    if len(found.seeds) > 1:
        out.print("± is the standard deviation from seed to seed, not an interval", style="dim")
    if asked and not found.written:
        out.print("no test file in the folder: nothing to submit")
    for path in found.written:
        out.print(f"written {path}", markup=False, soft_wrap=True)
