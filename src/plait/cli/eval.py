"""Evaluations of trained models: `plait eval RUN…` by plait's own evaluations, `plait finetune RUN --task sst2` on GLUE
and SQuAD, `plait harness RUN --tasks FILE` by lm-evaluation-harness from local task files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Device, Mixers, PeakRate, Runs, StoreUrl
from plait.cli.output import console, passed, plain, print_result, progress_bar, resumable, table
from plait.core.registry import pairs
from plait.evals import evaluation as evaluations

if TYPE_CHECKING:
    from plait.api.downstream import FinetuneResult, HarnessResult
    from plait.api.evaluate import EvaluateResult, EvaluationResult


def command(
    runs: Annotated[list[str], typer.Argument(help="Runs: a folder, a prefix of the key, or latest.", metavar="RUN")],
    on: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join(evaluations.names())}.")] = "perplexity",
    length: Annotated[int | None, typer.Option(min=1, help="Sequence length. \\[default: as in training]")] = None,
    data: Annotated[str, typer.Option(help="A corpus. \\[default: the run's]", show_default=False)] = "",
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    stride: Annotated[int | None, typer.Option(min=1, help="perplexity: step of a sliding window.")] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="perplexity: tokens of Transformer-XL memory.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Another setting: name=value; tokens=100000 reads less of the text, samples=10 asks fewer questions.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the figures. \\[default: RUN/evals]")] = None,
    device: Device = "cpu",
    mixers: Mixers = None,
    root: Runs = Path("runs"),
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate trained models: tables and figures. Results are stored, so nothing is computed twice."""
    arguments = dict(locals())
    from plait.api.evaluate import evaluate

    options = {"length": length, "stride": stride, "memory": memory}
    own = {name: value for name, value in options.items() if value is not None}
    with progress_bar(quiet=as_json) as on_progress:
        changed = {"settings": {**own, **pairs(settings or [], "--set")}, "on_progress": on_progress}
        result = evaluate(**passed(arguments, "length", "stride", "memory", "as_json", **changed))
    figures = dict.fromkeys(figure for evaluated in result.evaluations for figure in evaluated.figures)
    print_result(result, _print, *figures, as_json=as_json)


def _print(result: EvaluateResult) -> None:
    out = console()
    for evaluation in result.chosen:
        by_run = result.of(evaluation.name)
        conditions = result.conditions(evaluation.name)
        first = next(iter(conditions.values()))
        shared = {name for name in first if len({condition[name] for condition in conditions.values()}) == 1}
        same = {name: text for name, text in first.items() if name in shared and text}
        said = "; ".join(filter(None, (same.pop("data", ""), ", ".join(same.values()))))
        out.print(f"[bold]{evaluation.name}[/]  {plain(said)}", markup=True)
        columns, rows = evaluation.table({name: evaluated.result for name, evaluated in by_run.items()})
        own = [name for name in first if name not in shared]  # each row shows the conditions that differ
        grid = table(**columns, **({"evaluated on": "left"} if own else {}))
        for row in rows:
            where = ", ".join(conditions[row[0]][name] for name in own)
            grid.add_row(*map(plain, [*row, where] if own else row))
        out.print(grid)
        if own:
            said = "these runs were not evaluated under equal conditions; set --data and --length to make them equal"
            out.print(said, style="yellow", markup=False)
        for note in _text_notes(by_run):
            out.print(note, style="yellow", markup=False, soft_wrap=not out.is_terminal)


def _text_notes(by_run: Mapping[str, EvaluationResult]) -> Iterator[str]:
    """What limits results on a text that has changed, or that the runs read with several tokenizers."""
    for run, evaluated in by_run.items():
        text = evaluated.data
        if text.changed:
            yield (
                f"{text.name} has changed since {run} was trained on it: its {text.split} split may hold text that was "
                "trained on"
            )
    texts = {evaluated.data.fingerprint: evaluated.data for evaluated in by_run.values() if evaluated.data.name}
    for name in dict.fromkeys(text.name for text in texts.values()):
        if sum(text.name == name for text in texts.values()) > 1:
            yield f"the runs read {name} with different tokenizers: compare bits per byte, not losses per token"


def finetune_command(
    run: Annotated[str, typer.Argument(help="A run: its folder, a prefix of its key, or latest.", metavar="RUN")],
    task: Annotated[str, typer.Option(help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or squad.")],
    data: Annotated[Path, typer.Option(help="Folder of the task's published files (TSV, or SQuAD's JSON).")],
    epochs: Annotated[int, typer.Option(min=1, help="Epochs.")] = 3,
    lr: PeakRate = 3e-5,
    batch: Annotated[int, typer.Option(min=1, help="Examples per step.")] = 32,
    max_len: Annotated[int | None, typer.Option(help="Tokens per row. \\[default: 128, squad 384]", min=8)] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Repeat with seeds 0 to N - 1, and report the median.", metavar="N")
    ] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the predictions, in submission format.")] = None,
    device: Device = "cpu",
    mixers: Mixers = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Fine-tune a trained model on a GLUE task or on SQuAD v1.1, and score it on the dev files. If interrupted in any
    way, the same command resumes."""
    arguments = dict(locals())
    from plait.api.downstream import finetune

    with resumable(), progress_bar(quiet=as_json) as on_progress:
        result = finetune(**passed(arguments, "as_json"), on_progress=on_progress)
    print_result(result, partial(_print_finetune, asked=out is not None), *result.written, as_json=as_json)


def _print_finetune(result: FinetuneResult, *, asked: bool) -> None:
    out = console()
    plan = result.plan
    out.print(
        f"[bold]{result.task}[/]  {result.run}; {plan['epochs']} epoch{'s' * (plan['epochs'] != 1)}, "
        f"lr {plan['lr']:g}, batch {plan['batch']}, rows of {plan['max_len']} tokens"
    )
    grid = table(seed="left", **dict.fromkeys(result.metrics, "right"))
    for row in result.seeds:
        grid.add_row(str(row["seed"]), *(f"{row[name]:.4g}" for name in result.metrics))
    if len(result.seeds) > 1:
        spread = result.spread
        grid.add_row("median", *(f"{value:.4g}" for value in result.median.values()))
        grid.add_row("mean", *(f"{value:.4g} ± {spread[name]:.2g}" for name, value in result.metrics.items()))
    out.print(grid)
    if len(result.seeds) > 1:
        out.print("± is the standard deviation between seeds, not an interval", style="dim")
    if asked and not result.written:
        out.print("no test file in the folder, so no predictions to submit")


def harness_command(
    run: Annotated[str, typer.Argument(help="A run: its folder, a prefix of its key, or latest.", metavar="RUN")],
    tasks: Annotated[
        list[Path],
        typer.Option(help="A task file (YAML), a folder of them, or a LongBench file (JSONL); may be repeated."),
    ],
    shots: Annotated[int | None, typer.Option(min=0, help="Few-shot examples. \\[default: the task's]")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first items of each task.")] = None,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Context in tokens. \\[default: the model's, else 2048]")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Allow task files to run their own code (!function).")] = False,
    device: Device = "cpu",
    mixers: Mixers = None,
    runs: Runs = Path("runs"),
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run tasks of lm-evaluation-harness on a trained model, without a network."""
    arguments = dict(locals())
    from plait.api.downstream import harness

    with progress_bar(quiet=as_json) as on_progress:
        on_progress("reading tasks", 0, None)
        result = harness(**passed(arguments, "as_json"), on_progress=on_progress)
    print_result(result, _print_harness, as_json=as_json)


def _print_harness(result: HarnessResult) -> None:
    from plait.analysis.accuracy import SHORT_CONTEXT, average, counted

    out = console()
    out.print(f"[bold]lm-evaluation-harness[/] {result.lm_eval}  {result.run}; context of {result.max_length} tokens")
    grid = table(task="left", shots="right", items="right", metric="left", value="right", standard_error="right")
    for row in result.table:
        name = row["metric"] if row["filter"] == "none" else f"{row['metric']} ({row['filter']})"
        error = "–" if row["stderr"] is None else f"{row['stderr']:.3g}"
        shots = str(result.shots.get(row["task"], 0))
        grid.add_row(row["task"], shots, str(row["items"]), name, f"{row['value']:.4g}", error)
    out.print(grid)
    accuracy = counted(result.table)
    if accuracy.keys() >= SHORT_CONTEXT.keys():
        out.print(f"average of the ten short-context tasks: {average(accuracy):.2f} %")
