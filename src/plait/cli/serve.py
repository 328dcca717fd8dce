"""`plait serve` and `plait report`: the records of a store, live in a browser or as one offline page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, passed, print_json, print_result

if TYPE_CHECKING:
    from plait.serving.server import Address


def command(
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free port.", min=0, max=65535)] = 8642,
    token: Annotated[
        str | None, typer.Option(help="Access token.  \\[default: generated and printed if needed]")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the trainings.  \\[default: next to the store's file]")
    ] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the store in a browser, live: running jobs, every record with its figures, comparisons. Read-only."""
    from plait.serving.server import serve

    def started(address: Address) -> None:
        if as_json:  # when the server answers, for programs that start it
            print_json({"url": address.url, "host": address.host, "port": address.port, "process": os.getpid()})
            sys.stdout.flush()
        else:
            console().print(f"{address.url}\nCtrl-C ends it.", markup=False, soft_wrap=True)
        if open_browser:
            import webbrowser

            webbrowser.open(address.url)

    serve(store=store, runs=runs, host=host, port=port, token=token, mixers=mixers or (), on_start=started)


def report_command(
    keys: Annotated[list[str] | None, typer.Argument(help="Prefixes of record keys; the newest by default.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only records of this kind, such as train or probe.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    svg: Annotated[Path | None, typer.Option(help="Folder for the figures as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Folder for the figures as PNG (with CairoSVG or Chromium).")] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder for the numbers as CSV.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number, newest first.", min=1)] = 1000,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write an offline HTML report of the store: curves, fronts, heat maps, tables, methods, BibTeX."""
    arguments = dict(locals())
    from plait.api.report import report

    result = report(**passed(arguments, "as_json"))
    counts = ", ".join(f"{count} {name}" for name, count in result.kinds.items())
    print_result(result, lambda _: console().print(counts, markup=False), result.page, *result.files, as_json=as_json)
