"""`plait new mixer|task FILE`: a working template; `plait check MIXER`: check a mixer against the contract;
`plait verify [ID …]`: check facts of the papers against what plait computes; `plait doctor`: check the installation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, count, plain, print_result, progress_bar, table

if TYPE_CHECKING:
    from plait.api.check import CheckResult, VerifyResult
    from plait.api.doctor import DoctorResult
    from plait.device.kernel_guard import Guarded


def new_command(
    kind: Annotated[str, typer.Argument(help="What to create: mixer, task, or plugin (a package with both).")],
    path: Annotated[Path, typer.Argument(help="The file to write, such as my_mixer.py; for a plugin its folder.")],
    as_json: AsJson = False,
) -> None:
    """Write a working template."""
    from plait.api.new import new_file, new_plugin

    if kind == "plugin":
        package = new_plugin(path)
        words = f"try: pip install -e {package.folder} && pytest {package.folder}"
        print_result(package, lambda _: print(words), package.folder, as_json=as_json)
    else:
        file = new_file(kind, path)
        words = f"the {file.kind} {file.name}; try: {file.next}"
        print_result(file, lambda _: print(words), file.file, as_json=as_json)


def command(
    mixer: Annotated[
        str,
        typer.Argument(
            help="A mixer (gla, or gla\\[heads=8]) or a file (my_mixer.py, my_mixer.py:Class, my_mixer.py\\[heads=8])."
        ),
    ],
    d: Annotated[
        int | None,
        typer.Option("--d", help="Model width for the checks. \\[default: 64, or the next that fits]", min=1),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cuda: also compare the kernels of its op with float64 on this GPU.")
    ] = "cpu",
    timing: Annotated[bool, typer.Option("--speed/--no-speed", help="Time it against attention.")] = True,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Check a mixer against the contract; exit code 1 if a check fails."""
    from plait.api.check import check

    with progress_bar(quiet=as_json) as on_progress:
        result = check(mixer, d=d, speed=timing, device=device, mixers=mixers or (), on_progress=on_progress)
    print_result(result, _print, as_json=as_json)
    if not result.passed:
        raise typer.Exit(1)


def _print(result: CheckResult) -> None:
    import torch

    out = console()
    out.print(f"[bold]{plain(result.layer)}[/] at width {result.d}, plait {result.plait}, torch {torch.__version__}")
    style = {"pass": "green", "fail": "bold red", "skip": "dim"}
    grid = table(check="left", status="left", detail="left")
    for v in result.checks:
        grid.add_row(v.check, f"[{style[v.status]}]{v.status}[/]", plain(v.detail))
    out.print(grid)
    if result.speed:
        timed = table(tokens="right", batch="right", forward_and_backward="right", attention="right", ratio="right")
        for t in result.speed:
            timed.add_row(
                str(t.tokens), str(t.batch), f"{t.ms:.1f} ms", f"{t.attention_ms:.1f} ms", f"{t.ratio:.2f}×"
            )  # fmt: skip
        out.print()
        out.print(timed)
    if result.kernels:
        out.print()
        _print_kernels(result)
    good = not result.failed and all(guarded.right for guarded in result.kernels)
    out.print(f"\n[{'green' if good else 'bold red'}]{result.headline()}[/]")


def _print_kernels(result: CheckResult) -> None:
    """One row per dtype and implementation: the number of settings, and the worst of them."""
    out = console()
    groups: dict[tuple[str, str], list[Guarded]] = {}
    for guarded in result.kernels:
        groups.setdefault((guarded.dtype, guarded.path), []).append(guarded)
    grid = table(dtype="left", path="left", settings="right", largest_error="right", of="left", same_bits="left")
    for (dtype, path), rows in groups.items():
        worst = max(rows, key=lambda guarded: guarded.error / guarded.limit)
        where = f"{worst.worst}, {worst.setting}"
        style = "green" if all(guarded.right for guarded in rows) else "bold red"
        same = "yes" if all(guarded.same for guarded in rows) else "no"
        grid.add_row(dtype, path, str(len(rows)), f"[{style}]{worst.error:.1e}[/] of {worst.limit:.0e}", where, same)
    out.print(grid)
    for guarded in result.kernels:
        if not guarded.right:
            text = f"{guarded.dtype}, {guarded.setting}: {guarded.worst} is off by {guarded.error:.1e}"
            out.print(text + ("" if guarded.same else ", other bits the second time"), style="red")


FACT_STYLE = {"pass": "green", "fail": "bold red", "erratum": "yellow", "not here": "dim"}


def verify_command(
    ids: Annotated[list[str] | None, typer.Argument(help="Facts to check, such as L03 or F06; all by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the papers' own numbers; exit code 1 if any fails."""
    from plait.api.check import verify

    with progress_bar(quiet=as_json) as on_progress:
        result = verify(*ids or [], on_progress=on_progress)
    print_result(result, _print_facts, as_json=as_json)
    if result.failed:
        raise typer.Exit(1)


def _print_facts(result: VerifyResult) -> None:
    out = console()
    grid = table(id="left", what="left", expected="left", ours="left", status="left")
    for fact in result.facts:
        cells = (plain(cell) for cell in (fact.id, fact.what, fact.expected, fact.ours))
        grid.add_row(*cells, f"[{FACT_STYLE[fact.status]}]{fact.status}[/]")
    out.print(grid)
    tally = {status: sum(fact.status == status for fact in result.facts) for status in FACT_STYLE}
    named = {status: "errata" if status == "erratum" and n > 1 else status for status, n in tally.items()}
    out.print(", ".join(f"[{FACT_STYLE[s]}]{n} {named[s]}[/]" for s, n in tally.items() if n))


HEALTH_STYLE = {"good": "green", "missing": "yellow", "bad": "bold red"}


def doctor_command(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Check versions, extras, memory, GPUs, kernels, the store and the speed here; exit code 1 on a problem."""
    from plait.api.doctor import doctor

    with progress_bar(quiet=as_json) as on_progress:
        result = doctor(store=store, on_progress=on_progress)
    print_result(result, _print_health, as_json=as_json)
    if not result.healthy:
        raise typer.Exit(1)


def _print_health(result: DoctorResult) -> None:
    out, speed = console(), result.speed
    out.print(f"plait {result.plait}")
    grid = table(what="left", status="left", found="left", fix="left")
    for finding in result.findings:
        status = f"[{HEALTH_STYLE[finding.status]}]{finding.status}[/]"
        grid.add_row(finding.what, status, plain(finding.found), plain(finding.fix))
    out.print(grid)
    out.print(f"speed: {count(speed['GFLOP/s'])} GFLOP/s of products, {count(speed['GB/s'])} GB/s of copies")
