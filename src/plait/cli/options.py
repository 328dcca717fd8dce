"""Options that many commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.core.errors import UserError
from plait.core.user_files import split_path
from plait.model.user_mixers import load_mixer


def _load_mixers(files: list[str] | None) -> list[str]:
    """Before the command itself: whatever it reads may name them."""
    for file in files or []:
        if split_path(file) is None:
            raise UserError(f"--mixers {file}: give a Python file, my_mixer.py or my_mixer.py:Class.")
        load_mixer(file)
    return files or []


def _former_length(context: typer.Context, value: int | None) -> int | None:
    """`--length` as it was called before, for commands written down long ago."""
    if value is not None:
        context.default_map = {**(context.default_map or {}), "seq_len": value}
    return value


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
StoreUrl = Annotated[str | None, typer.Option("--store", help="URL; else $PLAIT_STORE, else sqlite:///runs/plait.db.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where trained models are kept.")]
Mixers = Annotated[
    list[str] | None,
    typer.Option(
        "--mixers",
        help="A file with a mixer of your own, my_mixer.py; any number. Specs may then name it.",
        metavar="FILE",
        callback=_load_mixers,
        show_default=False,
    ),
]
#: Goes with an option `seq_len`, which it sets.
FormerLength = Annotated[int | None, typer.Option("--length", hidden=True, is_eager=True, callback=_former_length)]
Text = Annotated[str, typer.Option("--data", help="Corpus, folder or file; `plait data list` shows them.")]
