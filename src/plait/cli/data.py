"""`plait data …`: known corpora and tokenizers, and the description of one corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson
from plait.cli.output import console, count, plain, print_json, print_result, progress_bar, table
from plait.core.registry import names

if TYPE_CHECKING:
    from plait.api.downstream import TaskFiles
    from plait.api.listing import CorpusResult

group = typer.Typer(no_args_is_help=True, help="Inspect corpora and tokenizers.")


@group.command("list")
def list_data(as_json: AsJson = False) -> None:
    """List the known corpora and tokenizers."""
    from plait.api.listing import listing

    document = {kind: listing(kind).rows() for kind in ("corpora", "tokenizers")}
    if as_json:
        print_json(document)
        return
    out = console()
    grid = table(corpus="left", tokenizer="left", what="left")
    for row in document["corpora"]:
        grid.add_row(row["name"], row["tokenizer"] or "[dim]tokens[/]", plain(row["what"]))
    out.print(grid)
    out.print()
    grid = table(tokenizer="left", options="left", what="left")
    for row in document["tokenizers"]:
        options = ",".join(f"{name}={value}" for name, value in row["options"].items())
        grid.add_row(row["name"], options, plain(row["what"]))
    out.print(grid)


@group.command("show")
def show(
    corpus: Annotated[str, typer.Argument(help="A name (`plait data list`), a file or a folder.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Such as bytes, words:min_count=3, bpe:size=16384, hf:PATH. \\[default: the corpus's own]"),
    ] = None,
    sample: Annotated[int, typer.Option(help="Tokens of the validation split to print.", min=0, max=10_000)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show a corpus; it is tokenized on first use."""
    from plait.api.listing import corpus as describe

    with progress_bar(quiet=as_json) as on_progress:
        result = describe(corpus, tokenizer=tokenizer, sample=sample, on_progress=on_progress)
    print_result(result, _print, as_json=as_json)


@group.command("tasks")
def tasks(
    folder: Annotated[Path, typer.Option("--from", help="A folder with one subfolder per published data set.")],
    out: Annotated[Path, typer.Option(help="Output folder of the task files TASK.jsonl.")],
    only: Annotated[str, typer.Option("--tasks", help="Only these, separated by commas.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write the local files of the ten short-context tasks and WikiText, for `plait harness --tasks FOLDER`."""
    from plait.api.downstream import prepare_tasks

    result = prepare_tasks(folder, out, tasks=names(only))
    print_result(result, _print_files, *(task.file for task in result.tasks), as_json=as_json)


def _print_files(result: TaskFiles) -> None:
    grid = table(task="left", items="right", source="left")
    for task in result.tasks:
        grid.add_row(task.task, count(task.items), plain(task.source))
    console().print(grid)
    if result.missing:
        console().print(f"not found: {', '.join(result.missing)}", markup=False)


def _print(shown: CorpusResult) -> None:
    from rich.text import Text

    out = console()
    out.print(Text(shown.name, style="bold"))
    grid = table(**{"": "left", " ": "left"})
    grid.show_header = False
    grid.add_row("tokenizer", f"{shown.tokenizer['tokenizer']}, vocabulary {count(shown.vocab)}")
    if shown.entropy is not None:
        grid.add_row("entropy", f"{shown.entropy:.4f} nats per token, exactly known")
    grid.add_row("fingerprint", shown.fingerprint)
    out.print(grid)
    out.print()
    grid = table(split="left", tokens="right", characters="right", characters_per_token="right")
    for split, tokens in shown.tokens.items():
        characters = shown.characters[split]
        grid.add_row(split, count(tokens), count(characters), f"{characters / tokens:.2f}" if tokens else "")
    out.print(grid)
    if shown.sample:
        out.print()
        out.print(Text(shown.sample), soft_wrap=True)  # a break at the console's width would seem to be in the text
