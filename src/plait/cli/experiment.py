"""Experiment files: the options of one command as YAML or TOML, `plait train exp.yaml --lr 1e-3`; `plait config show`.

    command: train
    spec: d=256 | (gla swiglu fox swiglu)x2
    data: builtin:stdlib
    steps: 2000
    set: {clip: 0.5, dropout: 0.1}      # as --set clip=0.5 --set dropout=0.1

The keys are the command's arguments and options. The command line overrides the file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperGroup

from plait.cli.options import AsJson
from plait.cli.output import console, plain, print_json, table
from plait.core.errors import UserError, did_you_mean

ENDINGS = (".yaml", ".yml", ".toml")
COMMAND = "command"
GROUP = "config"  # its own command reads the file itself
TYPED = "COMMANDLINE"  # the parser's name for values from the command line

group = typer.Typer(help="Show the options of an experiment file.", no_args_is_help=True)


def read_experiment(path: Path) -> dict[str, Any] | None:
    """The contents of an experiment file; None if it is not one (such as a spec): it has no `command`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if COMMAND not in text:
        return None
    result = _toml(text, path) if path.suffix == ".toml" else _yaml(text, path)
    return result if isinstance(result, dict) and isinstance(result.get(COMMAND), str) else None


def _yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # values stay text, since the options know their types
    except yaml.YAMLError as wrong:
        raise UserError(f"{path} is not YAML: {wrong}") from None


def _toml(text: str, path: Path) -> Any:
    try:
        tomllib: Any = import_module("tomllib")
    except ImportError:
        raise UserError(f"{path}: reading TOML needs Python 3.11; write it as YAML.") from None
    try:
        return tomllib.loads(text)
    except ValueError as wrong:
        raise UserError(f"{path} is not TOML: {wrong}") from None


def expanded(root: TyperGroup, context: Any, arguments: Sequence[str]) -> list[str]:
    """The arguments, with an experiment file among them replaced by its options."""
    for place, argument in enumerate([] if list(arguments[:1]) == [GROUP] else arguments):
        if not argument.endswith(ENDINGS) or argument.startswith("-"):
            continue
        value_of_an_option = place > 0 and arguments[place - 1].startswith("-")
        if not Path(argument).exists() and not value_of_an_option:
            raise UserError(f"there is no file '{argument}'.")
        if (experiment := read_experiment(Path(argument))) is not None:
            words = str(experiment[COMMAND]).split()
            if list(arguments[: len(words)]) != words:
                typed = " ".join(arguments[:place])
                raise UserError(f"{argument} is for `plait {experiment[COMMAND]}`, not `plait {typed}`.")
            command = command_of(root, context, words, argument)
            rest = [*arguments[len(words) : place], *arguments[place + 1 :]]
            return [*words, *_options(command, experiment, argument), *rest]
    return list(arguments)


def command_of(root: TyperGroup, context: Any, words: Sequence[str], where: str) -> Any:
    result: Any = root
    for word in words:
        result = result.get_command(context, word) if isinstance(result, TyperGroup) else None
        if result is None:
            raise UserError(f"{where}: there is no command `plait {' '.join(words)}`.")
    return result


def _options(command: Any, experiment: Mapping[str, Any], where: str) -> list[str]:
    """The file's options as command-line arguments."""
    named = {name: parameter for parameter in command.params for name in _names(parameter)}
    arguments: list[str] = []
    for key, value in experiment.items():
        if key == COMMAND:
            continue
        name = key.replace("_", "-")
        if name not in named:
            raise UserError(f"{where}: {command.name} has no option '{key}'.{did_you_mean(name, named)}")
        arguments += _words(named[name], value)
    return arguments


def _names(parameter: Any) -> list[str]:
    own = [parameter.name or ""] if isinstance(parameter, TyperArgument) else []
    return [*own, *(option.lstrip("-") for option in (*parameter.opts, *parameter.secondary_opts))]


def _words(parameter: Any, value: Any) -> list[str]:
    values = [f"{k}={_text(v)}" for k, v in value.items()] if isinstance(value, Mapping) else value
    several = isinstance(values, list)
    if isinstance(parameter, TyperArgument):
        return [_text(item) for item in (values if several else [values])]
    flag = max(parameter.opts, key=len)
    if parameter.is_flag:
        on = _text(values).lower() in ("true", "yes", "on", "1")
        return [flag] if on else [max(parameter.secondary_opts, key=len)] if parameter.secondary_opts else []
    if several and parameter.multiple:
        return [word for item in values for word in (flag, _text(item))]
    return [flag, ",".join(map(_text, values)) if several else _text(values)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@group.command("show", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="An experiment file: .yaml, .yml or .toml, with the key `command`.")],
    as_json: AsJson = False,
) -> None:
    """Show the options a command would run with, and where each comes from: file, command line or default."""
    experiment = read_experiment(file)
    if experiment is None:
        if not file.is_file():
            why = "it is a folder" if file.is_dir() else "No such file or directory"
            raise UserError(f"cannot read {file}: {why}.")
        raise UserError(f"{file} is not an experiment file: it must state its `command`, as in command: train.")
    root = context.find_root().command
    assert isinstance(root, TyperGroup)
    words = str(experiment[COMMAND]).split()
    command = command_of(root, context, words, str(file))
    from_file, typed = _options(command, experiment, str(file)), list(context.args)
    whole = command.make_context(words[-1], [*from_file, *typed], resilient_parsing=True)
    asked = command.make_context(words[-1], typed, resilient_parsing=True)
    rows = []
    for parameter in command.params:
        sources = [parsed.get_parameter_source(parameter.name).name for parsed in (asked, whole)]
        origin = ("command line" if sources[0] == TYPED else "file") if TYPED in sources else "default"
        if origin == "default" and getattr(parameter, "hidden", False):  # a former name of another option
            continue
        name = max((option.lstrip("-") for option in parameter.opts), key=len)
        rows.append((name, whole.params.get(parameter.name), origin))
    if as_json:
        print_json({"command": words, "options": {n: {"value": _plain(v), "from": o} for n, v, o in rows}})
        return
    out = console()
    out.print(shlex.join(["plait", *words, *from_file, *typed]), markup=False, soft_wrap=True)
    grid = table(option="left", value="left", **{"from": "left"})
    for name, value, origin in rows:
        grid.add_row(name, plain("–" if value in (None, (), []) else str(_plain(value))), origin)
    out.print(grid)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
