"""`plait data …`: the corpora and tokenizers there are, and what one corpus holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson
from plait.cli.output import console, count, plain, print_json, table

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.data.corpus import Progress

group = typer.Typer(no_args_is_help=True, help="Look at corpora and tokenizers.")


@group.command("list")
def list_data(as_json: AsJson = False) -> None:
    """List the corpora and tokenizers there are."""
    document = {"corpora": _corpora(), "tokenizers": _tokenizers()}
    if as_json:
        print_json(document)
        return
    out = console()
    made = table(corpus="left", tokenizer="left", what="left")
    for row in document["corpora"]:
        made.add_row(row["name"], row["tokenizer"] or "[dim]tokens[/]", plain(row["what"]))
    out.print(made)
    out.print()
    made = table(tokenizer="left", options="left", what="left")
    for row in document["tokenizers"]:
        options = ",".join(f"{name}={value}" for name, value in row["options"].items())
        made.add_row(row["name"], options, plain(row["what"]))
    out.print(made)


@group.command("show")
def show(
    corpus: Annotated[str, typer.Argument(help="A name (`plait data list`), a file or a folder.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Such as bytes, words:min_count=3, bpe:size=16384, hf:PATH; else the corpus's own."),
    ] = None,
    sample: Annotated[int, typer.Option(help="Tokens of the validation split to print.", min=0, max=10_000)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show what a corpus holds; text is tokenised where it has not been before."""
    from plait.data import open_corpus

    with _progress(quiet=as_json) as progress:
        opened = open_corpus(corpus, tokenizer, progress=progress)
    document = describe(opened, sample)
    if as_json:
        print_json(document)
    else:
        _print(document)


@group.command("tasks")
def tasks(
    folder: Annotated[Path, typer.Option("--from", help="A folder with the published data sets, one below it each.")],
    out: Annotated[Path, typer.Option(help="Where the task files go: TASK.jsonl each.")],
    only: Annotated[str, typer.Option("--tasks", help="Only these, with commas between them.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write the local files of the ten short-context tasks and WikiText, for `plait harness --tasks FOLDER`."""
    from plait.core.errors import UserError, did_you_mean
    from plait.evals.published import BY_NAME, prepare

    wanted = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := next((name for name in wanted if name not in BY_NAME), ""):
        raise UserError(f"no task '{unknown}'.{did_you_mean(unknown, BY_NAME)} Known: {', '.join(BY_NAME)}.")
    done, missing = prepare(folder, out, wanted)
    if not done:
        raise UserError(f"{folder} holds none of: {', '.join(missing)}. A data set is a folder of its name.")
    rows = [{"task": o.task, "items": o.items, "file": str(o.file), "source": str(o.source[0])} for o in done]
    if as_json:
        print_json({"tasks": rows, "missing": missing})
        return
    made = table(task="left", items="right", file="left", source="left")
    for one in done:
        made.add_row(one.task, count(one.items), plain(str(one.file)), plain(str(one.source[0])))
    console().print(made)
    if missing:
        console().print(f"not found: {', '.join(missing)}", markup=False)


def describe(corpus: Corpus, sample: int) -> dict[str, Any]:
    """Everything `show` knows, as plain data."""
    from plait.data import SPLITS

    return {
        "name": corpus.name,
        "vocab": corpus.vocab,
        "tokenizer": corpus.tokenizer.as_dict(),
        "entropy": corpus.entropy,
        "fingerprint": corpus.fingerprint,
        "tokens": {split: len(corpus.tokens(split)) for split in SPLITS},
        "characters": {split: corpus.characters(split) for split in SPLITS},
        "sample": corpus.tokenizer.decode(corpus.tokens("validation")[:sample]),
    }


def _print(shown: dict[str, Any]) -> None:
    from rich.text import Text

    out = console()
    out.print(Text(shown["name"], style="bold"))
    made = table(**{"": "left", " ": "left"})
    made.show_header = False
    made.add_row("tokenizer", f"{shown['tokenizer']['tokenizer']}, vocabulary {count(shown['vocab'])}")
    if shown["entropy"] is not None:
        made.add_row("entropy", f"{shown['entropy']:.4f} nats a token, exactly known")
    made.add_row("fingerprint", shown["fingerprint"])
    out.print(made)
    out.print()
    made = table(split="left", tokens="right", characters="right", characters_per_token="right")
    for split, tokens in shown["tokens"].items():
        characters = shown["characters"][split]
        made.add_row(split, count(tokens), count(characters), f"{characters / tokens:.2f}" if tokens else "")
    out.print(made)
    if shown["sample"]:
        out.print()
        out.print(Text(shown["sample"]))


def _corpora() -> list[dict[str, Any]]:
    from plait.data.corpora import corpus_listing

    return corpus_listing()


def _tokenizers() -> list[dict[str, Any]]:
    from plait.data.tokenizers import tokenizer_listing

    return tokenizer_listing()


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress | None]:
    """A bar on the terminal for what takes long."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    errors = Console(stderr=True)
    if quiet or not errors.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield tell
