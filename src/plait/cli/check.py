"""`plait check MIXER`: the contract, run on a mixer of the table or on your file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, plain, print_json, progress_bar, table

if TYPE_CHECKING:
    from plait.api.check import CheckResult


def command(
    mixer: Annotated[
        str, typer.Argument(help="A mixer (gla, or gla\\[heads=8]) or a file (my_mixer.py, my_mixer.py:Class).")
    ],
    d: Annotated[int, typer.Option("--d", help="Model width to check at.", min=1)] = 64,
    timing: Annotated[bool, typer.Option("--speed/--no-speed", help="Time it against attention.")] = True,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Check a mixer against the contract; exit code 1 if a check fails."""
    from plait.api.check import check

    with progress_bar(quiet=as_json) as on_progress:
        found = check(mixer, d=d, speed=timing, on_progress=on_progress)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
    if not found.passed:
        raise typer.Exit(1)


def _print(found: CheckResult) -> None:
    import torch

    out = console()
    out.print(f"[bold]{plain(found.layer)}[/] at width {found.d}, plait {found.plait}, torch {torch.__version__}")
    style = {"pass": "green", "fail": "bold red", "skip": "dim"}
    made = table(check="left", status="left", detail="left")
    for v in found.checks:
        made.add_row(v.check, f"[{style[v.status]}]{v.status}[/]", plain(v.detail))
    out.print(made)
    if found.speed:
        timed = table(tokens="right", batch="right", forward_and_backward="right", attention="right", ratio="right")
        for t in found.speed:
            timed.add_row(
                str(t.tokens), str(t.batch), f"{t.ms:.1f} ms", f"{t.attention_ms:.1f} ms", f"{t.ratio:.2f}×"
            )  # fmt: skip
        out.print()
        out.print(timed)
    failed, ran = len(found.failed), sum(v.status != "skip" for v in found.checks)
    verdict = "the contract holds" if not failed else f"{failed} of {ran} checks failed"
    out.print(f"\n[{'bold red' if failed else 'green'}]{verdict}[/]")
