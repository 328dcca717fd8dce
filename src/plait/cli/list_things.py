"""`plait list [KIND]`: the available mixers, presets, tasks and so on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from plait.api.listing import KINDS, listing
from plait.cli.options import Mixers
from plait.cli.output import console, plain, print_json, table


def command(
    kind: Annotated[str | None, typer.Argument(help=f"{', '.join(KINDS)}, or one mixer.")] = None,
    match: Annotated[str, typer.Option(help="Only names that contain this text.")] = "",
    names: Annotated[bool, typer.Option("--names", help="Print names only, one per line.")] = False,
    own: Mixers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List everything of a kind, or the options of one mixer."""
    result = listing(kind, match=match, describe=not names, mixers=own or ())
    for fault in result.faults:
        print(f"plait: {fault}", file=sys.stderr)
    if as_json:
        print_json(result.names if names else result.rows())
    elif names:
        print("\n".join(result.names))
    else:
        _print(result.rows())
        if kind is None:
            console(stderr=True).print(
                "plait list KIND shows one of them, plait list MIXER a mixer's options", style="dim"
            )


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    if not rows:
        out.print("nothing matches")
        return
    # `option` repeats the name and `options` is long: both are only for --json, and so is `from` if all are plait's.
    hidden = {"option", "options"} | ({"from"} if all(row.get("from") == "plait" for row in rows) else set())
    columns = [key for key in rows[0] if key not in hidden]
    grid = table(**dict.fromkeys(columns, "left"))
    for row in rows:
        grid.add_row(*(_cell(row[key]) for key in columns))
    out.print(grid)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else plain(str(value))
