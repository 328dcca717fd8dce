"""Options that many commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
StoreUrl = Annotated[str | None, typer.Option("--store", help="URL; else $PLAIT_STORE, else sqlite:///runs/plait.db.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where trained models are kept.")]
Text = Annotated[str, typer.Option("--data", help="Corpus, folder or file; `plait data list` shows them.")]
