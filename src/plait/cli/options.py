"""Options that many commands have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from plait.core.errors import UserError
from plait.core.units import parse
from plait.device.quantities import Quantity, quantities


def read_count(text: str | float) -> float:
    """Parses an option's number of tokens or FLOPs, with or without a unit: 200000, 2e5, 200K, 20M."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse(str(text), "count", "count")
    except UserError as wrong:
        raise typer.BadParameter(str(wrong)) from None


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", help="URL of the store. \\[default: $PLAIT_STORE, else sqlite:///runs/plait.db]"),
]
Log = Annotated[
    str,
    typer.Option(
        help="Also log trainings for tensorboard, wandb (offline) or mlflow; separated by commas.", show_default=False
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        help="Train on a cluster: ray://HOST:PORT, auto (from one of its machines) or slurm.", show_default=False
    ),
]
GpusPerTraining = Annotated[
    float | None, typer.Option(min=0.01, help="With --device cuda: GPUs per training. \\[default: 1]")
]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the trained models.")]
Mixers = Annotated[
    list[str] | None,
    typer.Option(
        "--mixers",
        help="A file with your own mixer, such as my_mixer.py, to use in specs; may be repeated.",
        metavar="FILE",
        show_default=False,
    ),
]
#: The former name of `--seq-len`, for old scripts.
FormerLength = Annotated[int | None, typer.Option("--length", hidden=True, min=1)]
Text = Annotated[str, typer.Option("--data", help="Corpus, folder or file; `plait data list` shows them.")]
Tokenizer = Annotated[str | None, typer.Option(help="Tokenizer: bytes, chars, words, bpe:SIZE …")]
#: How a model is run where it is measured, predicted or searched for.
Mode = Annotated[
    str,
    typer.Option(help="prefill: all tokens at once; decode: one token after them; both: a prompt and its --answer."),
]
Answer = Annotated[int | None, typer.Option(min=1, help="Tokens of the answer in --mode both. \\[default: 64]")]
Batch = Annotated[int, typer.Option(min=1, help="Batch size.")]
ProfileFile = Annotated[
    Path | None, typer.Option(help="A file of `plait profile`. \\[default: this machine's, stored with the runs]")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
#: How models are trained in a comparison or a study.
TrainingDevice = Annotated[str, typer.Option(help="Where models are trained: cpu or cuda.")]
TrainingBatch = Annotated[int, typer.Option(min=1, help="Sequences per step.")]
PeakRate = Annotated[float, typer.Option(help="Peak learning rate.")]
Constraints = Annotated[
    list[str] | None, typer.Option("--constraint", "--rule", help="A further constraint, such as 'count(attn) >= 1'.")
]
TokensPerSecond = Annotated[
    float | None,
    typer.Option(min=0.001, help="Minimum generation speed in --mode both: a limit on the time per token."),
]


Command = Callable[..., None]


def limit_options(
    defaults: Mapping[str, str] | None = None, *, after: str = "", otherwise: str = ""
) -> Callable[[Command], Command]:
    """For a command that takes `**limits`: one option per quantity, `--latency 40ms`. In the help they follow the
    option `after`.

    `defaults`: limits if the user gives none; `otherwise`: the help's description of the default.
    """
    options = {
        quantity.name: (_limit_help(quantity, otherwise), (defaults or {}).get(quantity.name))
        for quantity in quantities()
    }
    return _in_place_of_keywords(options, str, after)


def needed_options(*, after: str) -> Callable[[Command], Command]:
    """For a command that takes `**needed`: one flag per quantity that not every machine can measure."""
    options = {
        quantity.name: (f"Stop if {quantity.name} cannot be read here; by default it is shown where it can.", False)
        for quantity in quantities()
        if quantity.optional and not quantity.mode
    }
    return _in_place_of_keywords(options, bool, after)


def _limit_help(quantity: Quantity, otherwise: str) -> str:
    of = f": {quantity.limit}" if quantity.limit else ""
    return f"Upper limit, such as {quantity.example}{of}." + (f" \\[default: {otherwise}]" if otherwise else "")


def _in_place_of_keywords(
    options: Mapping[str, tuple[str, Any]], kind: type, after: str
) -> Callable[[Command], Command]:
    """Replace a command's `**keywords` by one option per entry of `options` (name → help and default), in the signature
    that typer reads."""

    def option(name: str, words: str, default: Any) -> inspect.Parameter:
        flag = [f"--{name}"] if kind is bool else []
        of: Any = kind if default is not None else kind | None
        note: Any = Annotated[of, typer.Option(*flag, help=words)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=note)

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        at = [parameter.name for parameter in own].index(after) + 1 if after else 0
        added = [option(name, words, default) for name, (words, default) in options.items()]
        parameters = [*own[:at], *added, *own[at:]]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate
