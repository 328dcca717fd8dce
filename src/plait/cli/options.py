"""Options that many commands have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

import typer

from plait.core.errors import UserError
from plait.core.units import parse
from plait.device.quantities import Quantity, quantities


def read_count(given: str | float) -> float:
    """Parses an option's number of tokens or FLOPs, with or without a unit: 200000, 2e5, 200K, 20M."""
    try:
        return float(given)
    except ValueError:
        pass
    try:
        return parse(str(given), "count", "count")
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
        help="A file with your own mixer, my_mixer.py, for use in specs; any number.",
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
Constraints = Annotated[
    list[str] | None, typer.Option("--constraint", "--rule", help="A further constraint, such as 'count(attn) >= 1'.")
]
TokensPerSecond = Annotated[
    float | None, typer.Option(min=0.001, help="Least generation speed in --mode both: a limit on the time per token.")
]


def passed(given: Mapping[str, Any], *left_out: str, **changed: Any) -> dict[str, Any]:
    """The arguments of a verb that are `given` to its command (`dict(locals())` at its beginning): all but those left
    out and those that the user did not give (None), some of them changed."""
    kept = {name: value for name, value in given.items() if value is not None and name not in left_out}
    return {**kept, **changed}


Command = Callable[..., None]


def limit_options(defaults: Mapping[str, str] | None = None, *, otherwise: str = "") -> Callable[[Command], Command]:
    """For a command with an argument `limits`: one option per quantity stands for it, `--latency 40ms`.

    `defaults` are limits where the user gives none; `otherwise` says in the help what holds without the option.
    """
    options = {each.name: (_limit_help(each, otherwise), (defaults or {}).get(each.name)) for each in quantities()}

    def gathered(**given: str | None) -> object:
        from plait.space.constraints import Limits

        return Limits.read(**given)

    return _in_place_of("limits", options, str, gathered)


def needed_options() -> Callable[[Command], Command]:
    """For a command with an argument `needed`, a tuple of names: one flag per quantity that not every machine tells."""
    options = {
        each.name: (f"Stop where {each.name} cannot be read; without it, shown where it can.", False)
        for each in quantities()
        if each.optional and not each.mode
    }
    return _in_place_of("needed", options, bool, lambda **given: tuple(name for name, asked in given.items() if asked))


def _limit_help(each: Quantity, otherwise: str) -> str:
    of = f": {each.limit}" if each.limit else ""
    return f"At most, such as {each.example}{of}." + (f" \\[default: {otherwise}]" if otherwise else "")


def _in_place_of(
    argument: str, options: Mapping[str, tuple[str, Any]], kind: type, gather: Callable[..., object]
) -> Callable[[Command], Command]:
    """Replace a command's parameter `argument` by one option per entry of `options` (name → help and default); `gather`
    combines their values into the argument."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def made(**given: Any) -> None:
            command(**{argument: gather(**{name: given.pop(name) for name in options})}, **given)

        named = {name: note for name, note in command.__annotations__.items() if name != argument}
        hints = get_type_hints(SimpleNamespace(__annotations__=named), command.__globals__, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            if name != argument:
                parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            for option, (words, default) in options.items():
                flag = [f"--{option}"] if kind is bool else []
                of: Any = kind if default is not None else kind | None
                note: Any = Annotated[of, typer.Option(*flag, help=words)]
                parameters.append(
                    inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=note)
                )
        made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del made.__wrapped__
        return made

    return decorate
