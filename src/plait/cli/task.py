"""`plait task show NAME`: a task's setting, and example sequences with their scored positions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson
from plait.cli.output import console, count, print_result, table
from plait.core.registry import pairs

if TYPE_CHECKING:
    from plait.api.task import Example, TaskResult
    from plait.tasks import Task

group = typer.Typer(no_args_is_help=True, help="Inspect the synthetic tasks.")


@group.command("show")
def show(
    task: Annotated[str, typer.Argument(help="A task (`plait list tasks`) or a file (my_task.py, my_task.py:Class).")],
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A variable's value, such as length=256; may be repeated.")
    ] = None,
    examples: Annotated[int, typer.Option("--count", help="Sequences to print.", min=0, max=100)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the data.", min=0)] = 0,
    variant: Annotated[str, typer.Option(help="paper (as in its text) or mad-lab (as in its code).")] = "",
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    tokens: Annotated[int, typer.Option(help="Maximum number of tokens to print per sequence.", min=1)] = 256,
    as_json: AsJson = False,
) -> None:
    """Print example sequences of a task, with scored positions marked."""
    from plait.api.task import task as describe

    result = describe(
        task, settings=pairs(change or [], "--set"), variant=variant, seed=seed, split=split, examples=examples
    )
    print_result(result, partial(_print, tokens), as_json=as_json)


def _print(tokens: int, shown: TaskResult) -> None:
    out = console()
    out.print(f"[bold]{shown.task}[/]  {shown.skill}")
    out.print(f"{shown.label}, hash {shown.key}, seed {shown.seed}", style="dim")
    out.print()
    grid = table(**{"": "left", " ": "left"})
    grid.show_header = False
    grid.add_row("setting", ", ".join(f"{name} {value}" for name, value in shown.settings.items()))
    grid.add_row("model", f"{shown.model}, {shown.model_vocab} token ids, {shown.input_length} input tokens")
    sizes = (f"{name} {count(size)}" for name, size in shown.sequences.items())
    grid.add_row("sequences", ", ".join(sizes))
    scored = (f"{name} {number:.4g}" for name, number in shown.scored_per_sequence.items())
    grid.add_row("scored in each", ", ".join(scored))
    grid.add_row("ceiling", f"{shown.ceiling:.3f}  the best possible accuracy on the test sequences")
    grid.add_row("grid", f"{len(shown.grid)} settings")
    out.print(grid)
    for number, example in enumerate(shown.examples):
        out.print(f"\n[bold]{shown.split} sequence {number}[/]")
        for line in _lines(shown.of, example, tokens, out.width):
            out.print(line, no_wrap=True)
        if len(example.inputs) > tokens:
            out.print(f"… {len(example.inputs) - tokens} more tokens (--tokens)", style="dim")
    out.print()
    out.print(_legend(shown.of))


_COLOURS = {
    "key": "cyan", "value": "green", "noise": "bright_black", "blank": "bright_black", "pad": "bright_black",
    "insert": "magenta", "copy": "magenta", "compress": "magenta", "token": "yellow",
}  # fmt: skip
#: Symbols for kinds with a single token; others are shown as their first letter and a number.
_SIGNS = {"blank": "·", "pad": "_", "insert": "?", "copy": "!", "compress": "c"}


def _label(task: Task, token: int) -> tuple[str, str]:
    kind = task.describe_token(token)
    sign = _SIGNS.get(kind) if task.layout[kind] == 1 else None
    return sign or f"{kind[0]}{token - task.ids(kind).start}", _COLOURS.get(kind, "white")


def _lines(task: Task, example: Example, tokens: int, width: int) -> list[Any]:
    """Pairs of lines with as many tokens as fit: inputs, and targets below."""
    from rich.text import Text

    from plait.tasks import IGNORE

    pairs = list(zip(example.inputs, example.targets, strict=True))[:tokens]
    labels = [(_label(task, token), _label(task, target) if target != IGNORE else None) for token, target in pairs]
    cell = 1 + max(len(text) for label in labels for text, _ in filter(None, label))
    fit = max(1, (width - 7) // cell)
    lines = []
    for start in range(0, len(labels), fit):
        read, asked = Text("input  ", style="dim"), Text("target ", style="dim")
        for (text, colour), target in labels[start : start + fit]:
            read.append(text, style=f"not dim {colour}{' bold underline' if target else ''}")
            read.append(" " * (cell - len(text)))
            asked.append(target[0] if target else "", style=f"not dim bold {target[1]}" if target else "")
            asked.append(" " * (cell - len(target[0]) if target else cell))
        lines += [read, asked] if asked.plain.strip() != "target" else [read]
    return lines


def _legend(task: Task) -> Any:
    from rich.text import Text

    text = Text()
    for kind in task.layout:
        ids = task.ids(kind)
        first, colour = _label(task, ids.start)
        text.append(first if len(ids) == 1 else f"{first}…{_label(task, ids.stop - 1)[0]}", style=colour)
        text.append(f" {kind}, id {ids.start}" if len(ids) == 1 else f" {kind}, ids {ids.start}–{ids.stop - 1}")
        text.append("   ")
    return text
