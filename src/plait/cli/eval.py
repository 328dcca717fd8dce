"""`plait eval RUN…`: what can a trained model do?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, plain, print_json, progress_bar, table
from plait.core.settings import pairs
from plait.evals import evaluation as evaluations

if TYPE_CHECKING:
    from plait.api.evaluate import EvaluateResult


def command(
    runs: Annotated[
        list[str], typer.Argument(help="Runs: a folder, the beginning of a key, or latest.", metavar="RUN")
    ],
    on: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join(evaluations.names())}.")] = "perplexity",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens; as in training unless given.")] = None,
    data: Annotated[str, typer.Option(help="A corpus; the run's own unless given.", show_default=False)] = "",
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    stride: Annotated[int | None, typer.Option(min=1, help="perplexity: step of a sliding window.")] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="perplexity: tokens of Transformer-XL memory.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Another setting: name=value.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; RUN/evals unless given.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate trained models: tables, pictures, and records, so that nothing is measured twice."""
    from plait.api.evaluate import evaluate

    options = {"length": length, "stride": stride, "memory": memory}
    own = {name: value for name, value in options.items() if value is not None}
    with progress_bar(quiet=as_json) as on_progress:
        found = evaluate(
            runs, on=on, settings={**own, **pairs(settings or [], "--set")}, data=data, split=split, out=out,
            device=device, store=store, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)


def _print(found: EvaluateResult) -> None:
    out = console()
    for evaluation in found.chosen:
        by_run = found.of(evaluation.name)
        conditions = found.conditions(evaluation.name)
        first = next(iter(conditions.values()))
        shared = {name for name in first if len({each[name] for each in conditions.values()}) == 1}
        same = {name: text for name, text in first.items() if name in shared and text}
        said = "; ".join(filter(None, (same.pop("data", ""), ", ".join(same.values()))))
        out.print(f"[bold]{evaluation.name}[/]  {plain(said)}", markup=True)
        columns, rows = evaluation.table({name: one.result for name, one in by_run.items()})
        own = [name for name in first if name not in shared]  # each row says what it does not share with the others
        made = table(**columns, **({"evaluated on": "left"} if own else {}))
        for row in rows:
            where = ", ".join(conditions[row[0]][name] for name in own)
            made.add_row(*map(plain, [*row, where] if own else row))
        out.print(made)
        if own:
            said = "these runs were not evaluated under equal conditions; --data and --length make them so"
            out.print(said, style="yellow", markup=False)
        for path in next(iter(by_run.values())).pictures:
            out.print(f"picture {path}", markup=False, soft_wrap=True)
