"""`plait front candidates`: every architecture that a search compared, as a table for other programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import Mixers, StoreUrl
from plait.cli.output import console
from plait.cli.stored_search import LATEST, stored_search
from plait.core.errors import UserError
from plait.model.user_mixers import restore

if TYPE_CHECKING:
    from plait.algorithms.candidates import Candidates

ENDINGS = (".csv", ".jsonl")


def candidates(
    key: Annotated[str, typer.Argument(help="Of the search, or enough of its beginning.")] = LATEST,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A .csv or .jsonl file; else CSV is printed.")] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
) -> None:
    """Print every candidate that a search compared: its objectives, whether it is on the front, its spec."""
    from plait.records import open_store

    if out is not None and out.suffix not in ENDINGS:
        raise UserError(f"cannot write candidates to '{out.name}': known endings are {', '.join(ENDINGS)}.")
    with open_store(store) as opened:
        record = stored_search(opened, key)
    restore(record.result.get("mixers", []), f"the search {record.key[:10]}")
    from plait.algorithms.candidates import Candidates

    found = Candidates.of(record.config, record.result)
    rows = list(found.rows([row["spec"] for row in record.result["front"]]))
    text = _csv(rows) if out is None or out.suffix == ".csv" else "".join(json.dumps(row) + "\n" for row in rows)
    if out is None:
        print(text, end="")
    else:
        from plait.reporting.svg import save

        save(text, out)
    console(stderr=True).print(_told(found, record.key, out), style="dim", markup=False)


def _csv(rows: list[dict[str, Any]]) -> str:
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]) if rows else ["candidate"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: json.dumps(v) if isinstance(v, bool) else v for name, v in row.items()} for row in rows)
    return written.getvalue()


def _told(found: Candidates, key: str, out: Path | None) -> str:
    of = "" if len(found) == found.evaluated else f" of {found.evaluated:,}; a record keeps the first"
    return f"{len(found):,} candidates of search {key[:10]}{of}{f' in {out}' if out else ''}"
