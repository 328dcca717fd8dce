"""`plait`: every verb, and the one place where a user error becomes a message and exit code 2.

Help pages fit a terminal of 80 columns, and command-line errors are plain one-line messages.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import rich.table
import typer
from rich.text import Text
from typer.core import TyperGroup

from plait import __version__
from plait.cli import (
    analyse,
    bench,
    check,
    compare,
    data,
    design,
    eval,
    experiment,
    export,
    front,
    generate,
    list_things,
    measure,
    probe,
    profile,
    runs,
    scale,
    search,
    serve,
    show,
    study,
    task,
    train,
)
from plait.cli.output import guard_streams
from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Declared, Table
from plait.core.user_files import users_fault

NAMES = 30  # width of an option's names with its type; longer ones take two lines
FLAG = "<bool>"  # typer's name for the type of an option without a value


class OptionsTable(rich.table.Table):
    """typer gives names, short names, their opposites and types a column each: at 80 columns it truncates names
    and leaves few characters for the explanation. Here they share one column."""

    def add_row(self, *cells: Any, **others: Any) -> None:
        if len(cells) > 3:
            if not self.columns:
                self.add_column(max_width=NAMES, overflow="fold")
                self.add_column(ratio=1)
            *names, explanation = cells
            shown = [name if isinstance(name, Text) else Text(str(name)) for name in names]
            cells = Text(" ").join(name for name in shown if name.plain and name.plain != FLAG), explanation
        super().add_row(*cells, **others)


def fit_help() -> None:
    """Patch typer so that help has two columns."""
    from typer import rich_utils

    vars(rich_utils)["Table"] = OptionsTable


#: Messages of the library that checks numbers, as they are and as a reader needs them.
PLAINER = {
    "Input should be a valid integer, unable to parse string as an integer": "write a whole number, such as 4096",
    "Input should be a valid number, unable to parse string as a number": "write a number, such as 0.5",
    "Input should be": "must be",
}
EXTRA = "got unexpected extra argument(s)"


def _unexpected(extra: str, command: Any) -> str:
    """The message for arguments too many: a forgotten option name, or a value with spaces and without quotes."""
    takes = [parameter.name for parameter in command.params if parameter.param_type_name == "argument"]
    whole = " ".join(takes) if takes else "options only"
    return f"unexpected argument '{extra}': `{command.name}` takes {whole}. Put a value that has spaces in quotes."


def message_of(wrong: Any) -> str:
    """The error that typer would print in a box, as one line that says where to look."""
    text: str = wrong.format_message().replace("\n", " ").rstrip(". ")
    text = text[:1].lower() + text[1:] + ("" if text.endswith("?") else ".")
    for theirs, ours in PLAINER.items():
        text = text.replace(theirs, ours)
    if wrong.ctx is None:
        return text
    if text.startswith(EXTRA):
        text = _unexpected(text.removeprefix(EXTRA).strip(" ()."), wrong.ctx.command)
    if text.startswith("no such command") and "?" not in text:
        known = wrong.ctx.command.list_commands(wrong.ctx)  # including verbs of packages, which typer does not suggest
        text += did_you_mean(text.split("'")[1], known) or f" Known: {', '.join(known)}."
    return f"{text} See: {wrong.ctx.command_path} --help"


# Read when torch is first imported. OpenMP's threads spin while they wait by default, which makes a training 15 times
# slower as soon as another process uses one of the cores; sleeping costs next to nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

#: Error numbers for which nothing can be written.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def _as_command(verb: Any, declared: Declared) -> Any:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(declared.name)(verb)
    try:
        return typer.main.get_command(alone)
    except Exception as wrong:
        raise UserError(f"{declared} cannot be a command: {type(wrong).__name__}: {wrong}") from wrong


#: Verbs of installed packages, as functions whose arguments are the options.
VERBS: Table[Any] = Table("verb", {}, group="plait.verbs", accept=_as_command)


@cache
def _say(fault: str) -> None:
    """Once, however often the help asks for the verbs."""
    print(f"plait: {fault}", file=sys.stderr)


UsageError: Any = typer.BadParameter.__base__  # click's own, or that of the copy inside typer


def _as_message(wrong: Any) -> Exception:
    """A command-line error as a plain message; a group without a command shows its help."""
    return wrong if type(wrong).__name__ == "NoArgsIsHelpError" else UserError(message_of(wrong))


class Verbs(TyperGroup):
    """plait's own verbs, then those of installed packages, which are looked up only for the help or an unknown verb."""

    def list_commands(self, ctx: Any) -> list[str]:
        for fault in VERBS.discover():
            _say(fault)
        own = super().list_commands(ctx)
        return [*own, *(name for name in VERBS if name not in own)]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Replace an experiment file among the arguments by the options it holds."""
        if len(args) < 2 or {"-h", "--help"} & set(args):
            fit_help()
        if any(argument.endswith(experiment.ENDINGS) for argument in args):
            args = experiment.expanded(self, ctx, args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as wrong:
            raise _as_message(wrong) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as wrong:
            raise _as_message(wrong) from None

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is None:
            VERBS.discover(cmd_name)
        return own if own is not None or cmd_name not in VERBS else VERBS.load(cmd_name)


app = typer.Typer(
    name="plait",
    cls=Verbs,
    help="Design language-model architectures by measurement.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: The verbs by purpose, in the order of the help: a function is a command, a group has several commands.
PANELS: dict[str, dict[str, Callable[..., Any] | typer.Typer]] = {
    "Describe": {
        "show": show.command,
        "list": list_things.command,
        "check": check.command,
        "new": check.new_command,
        "task": task.group,
        "data": data.group,
        experiment.GROUP: experiment.group,
    },
    "Decide": {
        "design": design.command,
        "compare": compare.command,
        "probe": probe.command,
        "search": search.command,
        "front": front.group,
        "scale": scale.group,
        "study": study.group,
    },
    "This machine": {
        "measure": measure.command,
        "profile": profile.group,
        "predict": measure.predict_command,
        "bench": bench.group,
        "doctor": check.doctor_command,
    },
    "Train and use": {
        "train": train.command,
        "eval": eval.command,
        "generate": generate.command,
        "finetune": eval.finetune_command,
        "harness": eval.harness_command,
        "export": export.command,
        "import": export.import_command,
    },
    "Results": {
        "report": serve.report_command,
        "serve": serve.command,
        "runs": runs.group,
        "analyse": analyse.group,
        "verify": check.verify_command,
    },
}
for panel, verbs in PANELS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(verb)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Design language-model architectures by measurement."""


def _raised_by_plait(left: SystemExit) -> bool:
    """Whether plait or its command line ended the program, and not a user's file that it ran."""
    frame = left.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    name = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("plait", "click", "typer", "rich")  # rich exits when the reader of a pipe has


def main() -> None:
    guard_streams()
    try:
        app(prog_name="plait")
    except UserError as wrong:
        print(f"plait: {wrong}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as left:
        # typer exits silently on Ctrl-C; commands with a message for it print it and exit themselves.
        if isinstance(getattr(left.__context__, "__cause__", None), KeyboardInterrupt):
            print("plait: interrupted", file=sys.stderr)
        if _raised_by_plait(left):
            raise
        print("plait: code in a user's file ended the program (SystemExit).", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of the pipe (head, less) has exited.
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print("plait: interrupted", file=sys.stderr)
        sys.exit(130)
    except OSError as wrong:
        if wrong.errno not in NO_ROOM:
            raise
        where = wrong.filename or "what was asked for"
        print(f"plait: cannot write {where}: {wrong.strerror}.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python would try again to flush the rest
        sys.exit(2)
    except Exception as wrong:
        if not (fault := users_fault(wrong)):
            raise
        print(f"plait: {fault}", file=sys.stderr)
        sys.exit(2)
