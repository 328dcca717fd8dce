"""`plait train SPEC --data …`: train a model; interrupted, the same command goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.devices import precision_on
from plait.cli.options import AsJson, Mixers, StoreUrl, Text
from plait.cli.output import console, count, plain, print_json, table
from plait.report.numbers import short

if TYPE_CHECKING:
    from plait.train.fit import Interrupted
    from plait.train.job import Job
    from plait.train.processes import Processes


def command(
    spec: Annotated[str, typer.Argument(help="Spec, preset or spec file; its vocabulary is the data's unless given.")],
    data: Text,
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
    recompute: Annotated[bool, typer.Option(help="Keep no activations: less memory, a third more work.")] = False,
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
    from plait.cli.train_display import Display
    from plait.core.errors import UserError
    from plait.core.units import parse_duration
    from plait.data import open_corpus
    from plait.records import open_store
    from plait.train.fit import Interrupted, Options, fit
    from plait.train.job import Budget, Job, fitted
    from plait.train.processes import processes

    seconds = parse_duration(budget) if budget else None
    chosen, published = _recipe(recipe, {"batch": batch, "length": length, "lr": lr}, set_ or [])
    if steps is None and published is not None and tokens is None and seconds is None and flops is None:
        steps = published
    length_of_run = Budget(steps, tokens, seconds, flops)
    with processes(device, sharding) as among:
        corpus = _opened(lambda: open_corpus(data, tokenizer), among)
        job = Job(fitted(spec, corpus), corpus, chosen, length_of_run, seed,
                  precision or precision_on(device))  # fmt: skip
        options = Options(runs, recompute, compiled, parse_duration(save_every), save_steps, tensorboard)
        try:
            with open_store(store) as opened, Display(job, quiet=as_json or not among.first) as display:
                result = fit(job, among, opened, options, tokenizer=tokenizer, report=display.update, started=started)
        except Interrupted as stopped:
            _interrupted(stopped, among)
        except RuntimeError as wrong:
            if among.world > 1 and _lost_process(wrong):
                raise UserError(
                    "another process of this training has ended, so this one ends too. The last checkpoint is kept: "
                    "the same command goes on from it."
                ) from None
            raise
    if among.first:
        print_json(result) if as_json else _print(result, job)


def _recipe(name: str, given: dict[str, Any], pairs: list[str]) -> tuple[Any, int | None]:
    """The recipe with what was asked for, and the published number of steps."""
    from plait.core.settings import read_pairs
    from plait.train.recipe import Recipe
    from plait.train.recipes import recipe

    base, steps = (recipe(name).recipe, recipe(name).steps) if name else (Recipe(), None)
    values = {key: value for key, value in given.items() if value is not None}
    return base.with_values({**values, **read_pairs(pairs, "--set", Recipe)}), steps


def _opened(make: Any, among: Processes) -> Any:
    """Data are prepared by the first process; the others find them ready."""
    if among.first:
        found = make()
        among.wait()
        return found
    among.wait()
    return make()


def _interrupted(stopped: Interrupted, among: Processes) -> None:
    if among.first:
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
