"""One live line while a model trains: loss, speed, share of the machine's peak, time left.

`plait train SPEC --data …`: train a model; interrupted, the same command goes on.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, count, plain, print_json, table
from plait.reporting.numbers import short
from plait.training.devices import precision_on

if TYPE_CHECKING:
    from plait.training.distributed import Processes
    from plait.training.fit import Interrupted
    from plait.training.fit import Progress as Now
    from plait.training.job import Job
    from plait.training.run import Run


class Display:
    def __init__(self, job: Job, quiet: bool) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console(stderr=True),
            disable=quiet,
        )
        self._task = self._bar.add_task(f"measuring {job.corpus.name}", total=None, now="")
        self._said = ""

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def update(self, now: Now) -> None:
        if now.note and now.note != self._said:
            self._bar.console.print(now.note, style="yellow")
            self._said = now.note
        validation = "" if math.isnan(now.validation) else f"  held out {now.validation:.3f}"
        words = (
            f"loss {now.loss:.3f}{validation}  {short(now.tokens_per_second)} tokens/s  "
            f"{100 * now.utilisation:.0f} % of peak"
        )
        self._bar.update(self._task, description=now.run.name, total=now.steps, completed=now.step, now=words)


#: The recipe whose learning rate follows the size and whose batch the budget.
SCALING = "mad-scaling"


def command(
    spec: Annotated[
        str | None, typer.Argument(help="Spec, preset or spec file; its vocabulary is the data's unless given.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Corpus, folder or file; `plait data list` shows them.")
    ] = None,
    from_: Annotated[
        str, typer.Option("--from", help="Begin with a finished run's weights; its spec and data unless given.")
    ] = "",
    tokenizer: Annotated[
        str | None, typer.Option(help="bytes, chars, words, bpe:SIZE … \\[default: the corpus's]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="How long: optimizer steps,")] = None,
    tokens: Annotated[float | None, typer.Option(help="or tokens,")] = None,
    budget: Annotated[str, typer.Option("--time", help="or time, as 150s, 10m, 2h, all included,")] = "",
    flops: Annotated[float | None, typer.Option(help="or floating-point operations, as 1e15.")] = None,
    recipe: Annotated[str, typer.Option(help="A published recipe to start from; `plait list recipes`.")] = "",
    batch: Annotated[int | None, typer.Option(help="Sequences a step, over all processes.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other key of the recipe: key=value.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights, the order of the data and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="fp32 or bf16. \\[default: bf16 on cuda]")] = "",
    sharding: Annotated[str, typer.Option(help="Several processes (torchrun): ddp or fsdp.")] = "ddp",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the model first.")] = False,
    activation_checkpointing: Annotated[
        bool, typer.Option(help="Keep no activations: less memory, a third more work.")
    ] = False,
    save_every: Annotated[str, typer.Option(help="Time between checkpoints.")] = "60s",
    save_steps: Annotated[int, typer.Option(help="Steps between checkpoints; 0: by time alone.", min=0)] = 0,
    tensorboard: Annotated[bool, typer.Option(help="Log for TensorBoard, too.")] = False,
    runs: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train a model. Interrupted by anything, the same command goes on where it was."""
    started = time.perf_counter()
    from plait.core.errors import UserError
    from plait.core.units import parse_duration
    from plait.records import open_store
    from plait.training.distributed import processes
    from plait.training.fit import Interrupted, Options, fit
    from plait.training.job import Budget, Job
    from plait.training.run import open_run
    from plait.training.start import require_same_tokens, start_of

    seconds = parse_duration(budget) if budget else None
    given = {"batch": batch, "length": length, "lr": lr}
    chosen, published = _recipe(recipe, given, set_ or [])
    if steps is None and published is not None and tokens is None and seconds is None and flops is None:
        steps = published
    length_of_run = Budget(steps, tokens, seconds, flops)
    with processes(device, sharding) as dist:
        source = open_run(from_, runs) if from_ else None
        start = start_of(source) if source else None
        corpus = _opened(lambda: _corpus(data, tokenizer, source), dist)
        if source is not None:
            require_same_tokens(source, corpus)
        arch = _architecture(spec, corpus, source)
        if recipe == SCALING:
            chosen = _scaled(arch, flops, given, set_ or [])
        job = Job(arch, corpus, chosen, length_of_run, seed, precision or precision_on(device), start=start)
        options = Options(runs, activation_checkpointing, compiled, parse_duration(save_every), save_steps, tensorboard)
        try:
            with open_store(store) as opened, Display(job, quiet=as_json or not dist.first) as display:
                result = fit(job, dist, opened, options, tokenizer=tokenizer, report=display.update, started=started)
        except Interrupted as stopped:
            _interrupted(stopped, dist)
        except RuntimeError as wrong:
            if dist.world > 1 and _lost_process(wrong):
                raise UserError(
                    "another process of this training has ended, so this one ends too. The last checkpoint is kept: "
                    "the same command goes on from it."
                ) from None
            raise
    if dist.first:
        print_json(result) if as_json else _print(result, job)


def _recipe(name: str, given: dict[str, Any], pairs: list[str]) -> tuple[Any, int | None]:
    """The recipe with what was asked for, and the published number of steps."""
    from plait.core.settings import read_pairs
    from plait.papers.recipes import recipe
    from plait.training.recipe import Recipe

    base, steps = (recipe(name).recipe, recipe(name).steps) if name else (Recipe(), None)
    values = {key: value for key, value in given.items() if value is not None}
    return base.with_values({**values, **read_pairs(pairs, "--set", Recipe)}), steps


def _scaled(arch: Any, flops: float | None, given: dict[str, Any], pairs: list[str]) -> Any:
    """MAD's recipe at this size and budget; what was asked for goes before it."""
    from plait.core.errors import UserError
    from plait.core.settings import read_pairs
    from plait.model import model_cost
    from plait.papers.recipes import mad_recipe
    from plait.training.recipe import Recipe

    if flops is None:
        raise UserError(f"--recipe {SCALING} takes its batch from the budget: give --flops, as 4e18.")
    values = {key: value for key, value in given.items() if value is not None}
    values |= read_pairs(pairs, "--set", Recipe)
    length = values.get("length", 8192)
    return mad_recipe(model_cost(arch, seq=length).total_params, flops, length).with_values(values)


def _corpus(data: str | None, tokenizer: str | None, source: Run | None) -> Any:
    from plait.core.errors import UserError
    from plait.data import open_corpus

    if data is None:
        if source is None:
            raise UserError("give the data by --data; `plait data list` shows what there is.")
        return source.corpus()
    return open_corpus(data, tokenizer or (source.about.get("tokenizer") if source else None))


def _architecture(spec: str | None, corpus: Any, source: Run | None) -> Any:
    from plait.core.errors import UserError
    from plait.training.job import fitted

    if spec is not None:
        return fitted(spec, corpus)
    if source is None:
        raise UserError("give a spec, a preset or a spec file; or --from a run, to train its model further.")
    return source.arch


def _opened(make: Any, dist: Processes) -> Any:
    """Data are prepared by the first process; the others find them ready."""
    if dist.first:
        found = make()
        dist.barrier()
        return found
    dist.barrier()
    return make()


def _interrupted(stopped: Interrupted, dist: Processes) -> None:
    if dist.first:
        console(stderr=True).print(
            f"interrupted; {stopped.run.name} is saved at step {stopped.step}. The same command goes on from there."
        )
    raise typer.Exit(130)


def _lost_process(wrong: RuntimeError) -> bool:
    text = str(wrong).lower()
    return any(sign in text for sign in ("connection", "gloo", "nccl", "peer", "process group", "timed out"))


def _print(result: dict[str, Any], job: Job) -> None:
    out = console()
    made = table(what="left", value="right")
    gap = f"{result['entropy']:.4f} ({100 * result['above_entropy']:+.1f} %)" if "entropy" in result else ""
    rows = {
        "held-out loss": f"{result['loss']:.4f} nats a token",
        "perplexity": f"{result['perplexity']:.4g}",
        "true entropy": gap,
        "bits per character": f"{result['bits_per_character']:.4f}" if result["bits_per_character"] else "",
        "parameters": count(result["params"]),
        "steps": count(result["steps"]) + (f" ({result['skipped']} skipped)" if result["skipped"] else ""),
        "tokens": count(result["tokens"]),
        "FLOPs": short(result["flops"]),
        "tokens a second": count(result["tokens_per_second"]),
        "of the machine's peak": f"{100 * result['flop_utilisation']:.0f} %",
        "time": f"{result['seconds']:.0f} s",
    }
    for what, value in rows.items():
        if value:
            made.add_row(what, value)
    out.print(f"[bold]{result['run']}[/]  {plain(job.arch.text)}  on {job.corpus.name}")
    out.print(made)
    if not result["trained_now"]:
        out.print("trained before; nothing was computed again", style="dim")
