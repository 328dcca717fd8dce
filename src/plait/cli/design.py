"""`plait design`: the whole workflow in one command, from limits to a trained model, a recommendation and a report.

Progress: one bar per stage in a terminal; in a log some lines while a stage runs, and one at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from plait.cli.options import (
    Answer,
    AsJson,
    Batch,
    Cluster,
    Constraints,
    GpusPerTraining,
    Log,
    Mixers,
    Mode,
    StoreUrl,
    Tokenizer,
    TokensPerSecond,
    limit_options,
)
from plait.cli.output import NARROW, ProgressLines, console, passed, plain, print_json, table, within_time, wrote
from plait.core.units import probability, short
from plait.device.quantities import in_rows

if TYPE_CHECKING:
    from rich.console import Console

    from plait.api.design import DesignResult


WORDS = {
    "text": "text to train on",
    "profile": "profile this machine",
    "search": "search the space",
    "measure": "measure the best few",
    "probe": "probe what they can do",
    "race": "race on the text",
    "train": "train the pick",
}


class Display:
    """In a narrow terminal the description is truncated, not the progress."""

    def __init__(self, *, quiet: bool) -> None:
        self._out = console(stderr=True)
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("{task.description}", table_column=Column(min_width=max(map(len, WORDS.values())))),
            BarColumn(bar_width=10 if self._out.width < NARROW else 24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", style="dim", table_column=Column(ratio=1, no_wrap=True)),
            console=self._out,
            expand=True,
            disable=quiet or not self._out.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._done: set[str] = set()
        self._lines = None if self._out.is_terminal else ProgressLines(sys.stderr)

    def update(self, stage: str, share: float | None, now: str) -> None:
        """`share`: the fraction of a stage that is done; None if unknown."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(WORDS[stage], total=None, now="")
        words = " ".join(now.split())
        total = None if share is None else 1.0
        self._bar.update(self._tasks[stage], total=total, completed=share or 0.0, now=plain(words))
        if self._lines is not None and share != 1.0:
            self._lines.tell(WORDS[stage], share, words)
        if share == 1.0 and stage not in self._done:
            self._done.add(stage)
            self._bar.stop_task(self._tasks[stage])
            if not self._quiet and not self._out.is_terminal:
                self._out.print(f"{WORDS[stage]}: {plain(words)}", style="dim")

    def stop(self) -> None:
        self._bar.stop()

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@limit_options({"latency": "20ms", "memory": "100MB"})
def command(
    *,
    space: Annotated[str, typer.Option(help="Search space: a name or a file.")] = "small-hybrid",
    data: Annotated[str, typer.Option(help="Text to train on; `plait data list`.")] = "builtin:stdlib",
    tokenizer: Tokenizer = None,
    seq_len: Annotated[int, typer.Option("--seq-len", "--seq", min=2, help="Sequence length.")] = 256,
    constraints: Constraints = None,
    mode: Mode = "prefill",
    answer: Answer = None,
    tokens_per_second: TokensPerSecond = None,
    batch: Batch = 1,
    device: Annotated[str, typer.Option(help="Device to design for and train on: cpu, cuda …")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads for measurements.")] = 1,
    time: Annotated[str, typer.Option("--time", help="Total time: 90s, 5m, 1h.")] = "5m",
    train_for: Annotated[
        str,
        typer.Option(help="The winner's training: 2h, '20M tokens', '1e18 FLOPs'. \\[default: the rest of --time]"),
    ] = "",
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("report.html"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search, the weights and the data order.")] = 0,
    runs: Annotated[Path, typer.Option(help="Folder of the profile and the runs.")] = Path("runs"),
    cluster: Cluster = "",
    gpus_per_training: GpusPerTraining = None,
    log: Log = "",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **limits: str | None,
) -> None:
    """Design a model for this machine: profile it, search under limits, race the best few, train the winner, report."""
    arguments = dict(locals())
    from plait.api.design import design

    with within_time(time), Display(quiet=as_json) as display:
        try:
            result = design(**passed(arguments, "limits", "as_json", **limits), on_progress=display.update)
        except KeyboardInterrupt:
            display.stop()
            console(stderr=True).print("interrupted; everything is saved. The same command resumes.")
            raise typer.Exit(130) from None
    print_json(result.as_dict()) if as_json else _print(result)
    wrote(result.report, as_json=as_json)


def _print(result: DesignResult) -> None:
    """In the order of the page: the verdict, its reasons and what to do next; then the candidates, and where things
    are."""
    from plait.designing.advice import labelled

    out, document = console(), result.document
    verdict, *points = document["points"]
    out.print(f"\n{verdict}", markup=False, style="bold")
    out.print(document["pick"]["spec"], style="bold", markup=False, soft_wrap=True)
    out.print()
    reasons = Table.grid(padding=(0, 2))
    for label, text in map(labelled, points):
        reasons.add_row(plain(label), plain(text), style="")
    out.print(reasons)
    for step in document["next"]:
        out.print(f"\nTo {step['to']}:", markup=False)
        out.print(step["command"], markup=False, soft_wrap=True)
    out.print()
    _print_candidates(out, result)
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in document["stages"].items())
    out.print(f"\n{document['machine']['seconds']:.0f} s in total: {took}", style="dim")
    out.print(f"trained weights: {document['train']['folder']}", style="dim", markup=False)


def _print_candidates(out: Console, result: DesignResult) -> None:
    from plait.designing.advice import forecast_at

    document = result.document
    probed = {row["name"]: row["mean"] for row in document["probe"]["architectures"]}
    rows = {row["pattern"]: row for row in document["candidates"]}
    shown = list(in_rows(document["candidates"]).values())
    units = {quantity.heading: "right" for quantity in shown}
    grid = table(**{"": "left"}, pattern="left", params="right", **units, loss="right", **{"P(best)": "right"})
    if probed:
        grid.add_column("probe", justify="right")
    for raced in result.race.architectures:
        row, chosen = rows[raced.name], raced.name == document["pick"]["pattern"]
        ends = " ({:.3f}–{:.3f})".format(*raced.interval) if raced.interval else ""
        grid.add_row(
            "→" if chosen else "",
            raced.name,
            short(row[document["size"]]),
            *(f"{row[quantity.column]['measured']:.3g}" for quantity in shown),
            "diverged" if raced.loss is None else f"{raced.loss:.3f}{ends}",
            probability(raced.p_best),
            *([f"{probed[raced.name]['accuracy']:.2f}"] if probed else []),
            style="bold" if chosen else "",
        )
    out.print(grid)
    measured = " and ".join(quantity.name for quantity in shown)
    summary = f"measured {measured}; nats per token forecast at {forecast_at(document)}"
    known = any(raced.interval for raced in result.race.architectures)
    summary += ", with 90 % intervals" if known else ", without intervals after so few steps"
    accuracy = "; mean probe accuracy" if probed else ""
    noise = result.race.noise
    if noise is not None:
        accuracy += f"; noise between seeds about {noise:.3f}, no difference below it is called one"
    out.print(f"{summary}; P(best): the probability of being the best{accuracy}", style="dim")
