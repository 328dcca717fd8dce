"""`plait check MIXER`: the contract, run on a mixer of the table or on your file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, plain, print_json, table


def command(
    mixer: Annotated[
        str, typer.Argument(help="A mixer (gla, or gla\\[heads=8]) or a file (my_mixer.py, my_mixer.py:Class).")
    ],
    d: Annotated[int, typer.Option("--d", help="Model width to check at.", min=1)] = 64,
    timing: Annotated[bool, typer.Option("--speed/--no-speed", help="Time it against attention.")] = True,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Check a mixer against the contract; exit code 1 if a clause is broken."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from plait import __version__
    from plait.model.contract import CHECKS, run_clauses, speed
    from plait.model.user_mixers import load_mixer

    options = load_mixer(mixer)
    out = console()
    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:.0f}/{task.total}"), TimeElapsedColumn())
    rows: list[dict[str, Any]] = []
    with Progress(*columns, transient=True, console=out, disable=as_json or not out.is_terminal) as progress:
        bar = progress.add_task(f"checking {options.name}", total=len(CHECKS) + timing)
        verdicts = []
        for verdict in run_clauses(options, d=d):
            verdicts.append(verdict)
            progress.advance(bar)
        if timing:
            rows = speed(options)
    broken = [v for v in verdicts if v.status == "fail"]
    if as_json:
        print_json({
            "mixer": options.name,
            "layer": str(options.to_layer()),
            "d": d,
            "plait": __version__,
            "passed": not broken,
            "checks": [v.as_dict() for v in verdicts],
            "speed": rows,
        })  # fmt: skip
    else:
        _print(options, d, verdicts, rows)
    if broken:
        raise typer.Exit(1)


def _print(options: Any, d: int, verdicts: list[Any], rows: list[dict[str, Any]]) -> None:
    import torch

    from plait import __version__

    out = console()
    title = plain(str(options.to_layer()))
    out.print(f"[bold]{title}[/] at width {d}, plait {__version__}, torch {torch.__version__}")
    style = {"pass": "green", "fail": "bold red", "skip": "dim"}
    made = table(check="left", status="left", detail="left")
    for v in verdicts:
        made.add_row(v.check, f"[{style[v.status]}]{v.status}[/]", plain(v.detail))
    out.print(made)
    if rows:
        timed = table(tokens="right", batch="right", forward_and_backward="right", attention="right", ratio="right")
        for row in rows:
            timed.add_row(
                str(row["tokens"]), str(row["batch"]), f"{row['ms']:.1f} ms", f"{row['attention_ms']:.1f} ms",
                f"{row['ratio']:.2f}×",
            )  # fmt: skip
        out.print()
        out.print(timed)
    failed = sum(v.status == "fail" for v in verdicts)
    passed = sum(v.status == "pass" for v in verdicts)
    verdict = "the contract holds" if not failed else f"{failed} of {failed + passed} clauses broken"
    out.print(f"\n[{'bold red' if failed else 'green'}]{verdict}[/]")
