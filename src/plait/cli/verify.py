"""`plait verify [ID …]`: every checkable fact of the papers against what plait computes."""

from __future__ import annotations

from typing import Annotated

import typer

from plait.cli.options import AsJson
from plait.cli.output import console, plain, print_json, progress_bar, table

STYLE = {"pass": "green", "fail": "bold red", "erratum": "yellow", "not yet": "dim", "not here": "dim"}


def command(
    ids: Annotated[list[str] | None, typer.Argument(help="Facts to check, such as L03 or F06; all by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the papers' own numbers; exit code 1 if any fails."""
    from plait.api.check import verify

    with progress_bar(quiet=as_json) as on_progress:
        found = verify(*ids or [], on_progress=on_progress)
    if as_json:
        print_json(found.as_dict())
    else:
        out = console()
        made = table(id="left", what="left", expected="left", ours="left", status="left")
        for fact in found.facts:
            cells = (plain(cell) for cell in (fact.id, fact.what, fact.expected, fact.ours))
            made.add_row(*cells, f"[{STYLE[fact.status]}]{fact.status}[/]")
        out.print(made)
        tally = {status: sum(fact.status == status for fact in found.facts) for status in STYLE}
        out.print(", ".join(f"[{STYLE[s]}]{n} {s}[/]" for s, n in tally.items() if n))
    if found.failed:
        raise typer.Exit(1)
