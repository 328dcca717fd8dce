"""`plait verify [ID …]`: every checkable fact of the papers against what plait computes."""

from __future__ import annotations

from typing import Annotated

import typer

from plait.cli.options import AsJson
from plait.cli.output import console, plain, print_json, table


def command(
    ids: Annotated[list[str] | None, typer.Argument(help="Facts to check, such as L03 or F06; all by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the papers' own numbers; exit code 1 if any fails."""
    from rich.progress import track

    from plait.papers.verify import select

    chosen = select(ids or [])
    out = console()
    steps = track(chosen, "checking", transient=True, console=out, disable=as_json or not out.is_terminal)
    results = [fact.result() for fact in steps]
    if as_json:
        print_json({"facts": [result.as_dict() for result in results]})
    else:
        style = {"pass": "green", "fail": "bold red", "erratum": "yellow", "not yet": "dim", "not here": "dim"}
        made = table(id="left", what="left", expected="left", ours="left", status="left")
        for r in results:
            cells = (plain(str(cell)) for cell in (r.id, r.what, r.expected, r.ours))
            made.add_row(*cells, f"[{style[r.status]}]{r.status}[/]")
        out.print(made)
        tally = {status: sum(r.status == status for r in results) for status in style}
        out.print(", ".join(f"[{style[s]}]{n} {s}[/]" for s, n in tally.items() if n))
    if any(result.status == "fail" for result in results):
        raise typer.Exit(1)
