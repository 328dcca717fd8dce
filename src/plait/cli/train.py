"""`plait train SPEC --data …`: train a model, with live progress; if interrupted, the same command resumes."""

from __future__ import annotations

import math
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from plait.cli.options import AsJson, FormerLength, Log, Mixers, StoreUrl, read_count
from plait.cli.output import NARROW, ProgressLines, console, count, passed, plain, print_json, table, within_time
from plait.core.errors import UserError
from plait.core.units import duration, parse_duration, percent, short

if TYPE_CHECKING:
    from plait.api.train import SweepResult, TrainResult
    from plait.training.fit import Progress as Now


class Display:
    def __init__(self, data: str, quiet: bool) -> None:
        out = console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10 if out.width < NARROW else 40),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left", table_column=Column(min_width=4)),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}", table_column=Column(ratio=1, no_wrap=True)),  # truncated if necessary
            console=out,
            expand=True,
            disable=quiet,
        )
        self._task = self._bar.add_task(plain(f"opening {data}"), total=None, now="")
        self._said = ""
        self._lines = None if self._bar.console.is_terminal else ProgressLines(sys.stderr)

    def __enter__(self) -> Display:
        if self._bar.console.is_terminal:  # otherwise nothing is printed before there is progress
            self._bar.start()
        return self

    def __exit__(self, wrong: type[BaseException] | None, *_: Any) -> None:
        # The bar is removed before an error message.
        self._bar.live.transient = wrong is not None and issubclass(wrong, UserError)
        if self._bar.live.is_started:
            self._bar.stop()

    def update(self, now: Now) -> None:
        if self._lines is None:
            self._bar.start()
        if now.note and now.note != self._said:
            self._bar.console.print(now.note, style="yellow")
            self._said = now.note
        validation = "" if math.isnan(now.validation) else f"  validation {now.validation:.3f}"
        loss = "" if math.isnan(now.loss) else f"loss {now.loss:.3f}"
        doing = "validation" if now.validating else f"step {now.step} of {now.steps}"
        words = f"{loss}{validation}  {short(now.tokens_per_second)} tokens/s{_mfu(now.mfu)}"
        if self._lines is not None:
            self._lines.tell(f"{now.run.name} {doing}", now.share, words)
        if now.validating:
            words = f"validating on {now.validation_tokens:,} tokens  {loss}"
        self._bar.update(self._task, description=now.run.name, total=1.0, completed=now.share, now=words)

    def begin(self, doing: str) -> None:
        """Show what is being done before the first step has ended; how much of it is done is not known."""
        if self._lines is not None:
            self._lines.tell(doing)
        self._bar.update(self._task, description=doing, total=None, completed=0)


def _mfu(share: float | None) -> str:
    return "" if share is None else f"  {percent(share)} MFU"


def command(
    spec: Annotated[
        str | None, typer.Argument(help="Spec, preset or spec file. Its vocabulary defaults to the data's.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Corpus, folder or file; `plait data list` shows them.")
    ] = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from", help="Initialise from a run or a Hugging Face folder; its spec and data are the defaults."
        ),
    ] = "",
    tokenizer: Annotated[
        str | None, typer.Option(help="bytes, chars, words, bpe:SIZE … \\[default: the corpus's]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Duration in optimizer steps.")] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Duration in tokens, such as 20M.", parser=read_count, metavar="<count>")
    ] = None,
    budget: Annotated[str, typer.Option("--time", help="Duration as total time, such as 150s, 10m, 2h.")] = "",
    flops: Annotated[
        float | None, typer.Option(help="Duration in FLOPs, such as 1e15.", parser=read_count, metavar="<count>")
    ] = None,
    validation_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of the validation text. \\[default: 131,072]")
    ] = None,
    recipe: Annotated[str, typer.Option(help="A published recipe to start from; `plait list recipes`.")] = "",
    batch: Annotated[int | None, typer.Option(help="Sequences per step, over all processes.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Sequence length.")] = None,
    length: FormerLength = None,
    lr: Annotated[str, typer.Option(help="Peak learning rate; several for a sweep, such as 1e-3,3e-3.")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other key of the recipe: key=value.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights, the data order and dropout.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to train and average, starting at --seed.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="fp32 or bf16. \\[default: bf16 on cuda]")] = "",
    sharding: Annotated[str, typer.Option(help="Several processes (torchrun): ddp or fsdp.")] = "ddp",
    tensor_parallel: Annotated[
        int, typer.Option(min=1, help="Processes (torchrun) that share every layer: each has some heads, some of d_ff.")
    ] = 1,
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Compile the blocks. \\[default: on cuda, if it pays off]"),
    ] = None,
    activation_checkpointing: Annotated[
        bool, typer.Option(help="Activation checkpointing: less memory, a third more compute.")
    ] = False,
    save_every: Annotated[str, typer.Option(help="Time between checkpoints.")] = "60s",
    save_steps: Annotated[int, typer.Option(help="Steps between checkpoints; 0: by time only.", min=0)] = 0,
    log: Log = "",
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train a model. If interrupted in any way, the same command resumes."""
    arguments = dict(locals())
    from plait.api.train import SweepResult, sweep, train
    from plait.core.registry import read_pairs
    from plait.training.fit import Interrupted
    from plait.training.recipe import Recipe

    rates = _rates(lr)
    first = os.environ.get("RANK", "0") == "0"  # the first process of torchrun
    try:
        quiet, allowed = as_json or not first, _allowed(budget, len(rates), seeds)
        with within_time(allowed), Display(data or from_, quiet=quiet) as display:
            options = passed(
                arguments, "spec", "from_", "budget", "length", "lr", "set_", "seed", "seeds", "as_json",
                from_run=from_, time=budget or None, seq_len=length or seq_len,
                recipe_values=read_pairs(set_ or [], "--set", Recipe), on_progress=display.update,
                on_start=display.begin,
            )  # fmt: skip
            swept = sweep(spec, lr=rates, seed=seed, seeds=seeds, **options) if len(rates) > 1 or seeds > 1 else None
            result = None if swept else train(spec, lr=rates[0] if rates else None, seed=seed, **options)
    except Interrupted as stopped:
        if first:
            console(stderr=True).print(f"interrupted; {stopped.saved}. The same command resumes from there.")
        raise typer.Exit(130) from None
    if first:
        outcome = swept or result
        assert outcome is not None
        if as_json:
            print_json(outcome.as_dict())
        else:
            _print_sweep(outcome) if isinstance(outcome, SweepResult) else _print(outcome)


def _allowed(budget: str, rates: int, seeds: int) -> str | None:
    """The time limit of all trainings together."""
    return f"{parse_duration(budget) * max(1, rates) * seeds:g}s" if budget else None


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")] if text else []
    except ValueError:
        raise UserError(f"--lr {text}: give a number, or several separated by commas.") from None


def _print_sweep(result: SweepResult) -> None:
    out = console()
    out.print(f"[bold]{plain(result.spec)}[/]")
    grid = table(lr="right", validation_loss="right", interval="left", seeds="right", diverged="right", runs="left")
    for row in result.rates:
        between = "{:.4f} to {:.4f}".format(*row.interval) if row.interval else "–"
        mean = "–" if row.mean is None else f"{row.mean:.4f}"
        cells = (mean, between, str(len(row.losses)), str(row.diverged or ""), ", ".join(row.runs))
        grid.add_row("recipe's" if row.lr is None else f"{row.lr:g}", *cells)
    out.print(grid)
    if result.best is not None:
        sure = {None: "one seed each is not enough to tell", True: "", False: "not distinguishable from all others"}
        said = sure[result.distinguishable] if len(result.rates) > 1 else ""
        out.print(
            f"best: lr {result.best:g}{f' ({said})' if said else ''}; intervals are 95 % of the mean over seeds",
            style="dim",
        )


def _bits(result: TrainResult) -> str:
    if not result.bits_per_character:
        return ""
    shown = f"{result.bits_per_character:.4f}"
    return shown if result.text_kept else f"≥ {shown}: the tokenizer drops characters"


def _print(result: TrainResult) -> None:
    out = console()
    grid = table(what="left", value="right")
    bound = ""
    if result.entropy is not None and result.above_entropy is not None:
        bound = f"{result.entropy:.4f} (loss {percent(result.above_entropy, 1)} above)"
    rows = {
        "validation loss": f"{result.loss:.4f} nats per token",
        "perplexity": f"{result.perplexity:.4g}",
        "true entropy": bound,
        "bits per character": _bits(result),
        "parameters": count(result.params),
        "steps": count(result.steps) + (f" ({result.skipped} skipped)" if result.skipped else ""),
        "tokens": count(result.tokens),
        "FLOPs": short(result.flops),
        "tokens per second": count(result.tokens_per_second),
        "MFU": "" if result.mfu is None else percent(result.mfu),
        "time": duration(result.seconds),
    }
    for what, value in rows.items():
        if value:
            grid.add_row(what, value)
    out.print(f"[bold]{result.run}[/]  {plain(result.spec)}  on {result.data}")
    out.print(grid)
    if not result.trained_now:
        out.print("already trained; nothing was computed", style="dim")
    folder = shlex.quote(result.folder)
    out.print(f"trained weights: {folder}", style="dim", markup=False, soft_wrap=True)
    out.print(f"next: plait eval {folder}; plait export {folder} --to hf", style="dim", markup=False, soft_wrap=True)
