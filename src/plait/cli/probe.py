"""`plait probe ARCHITECTURE…`: what can it do, against which baselines, and how sure is that?"""

from __future__ import annotations

from typing import Annotated

import typer

from plait.api.probe import DEFAULT_TIME, ProbePlan, plan_probe, probe
from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, count, plain, print_json, table
from plait.core.units import duration


def command(
    architectures: Annotated[
        list[str] | None,
        typer.Argument(help="Mixers (gla, gla\\[heads=8]), files (my_mixer.py), presets or specs.", show_default=False),
    ] = None,
    suite: Annotated[str, typer.Option(help="A set of architectures: mad21.")] = "",
    full: Annotated[bool, typer.Option("--full", help="The paper's protocol: 396 runs per architecture.")] = False,
    budget: Annotated[
        str, typer.Option("--time", help=f"How long it may take: 90s, 10m, 2h.  \\[default: {DEFAULT_TIME}]")
    ] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be run, and how long it takes here.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds. \\[default: with --time as many as fit, else 1]")
    ] = None,
    tasks: Annotated[str, typer.Option(help="Only these, separated by commas; or your files.")] = "",
    variant: Annotated[
        str, typer.Option(help="The tasks as the paper (paper) or its code (mad-lab) has them.")
    ] = "paper",
    baselines: Annotated[bool, typer.Option(help="Run attn, gla, mamba and hyena beside a single candidate.")] = True,
    match: Annotated[bool, typer.Option(help="Give all the same state and parameters where possible.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. \\[default: one per core]")] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Probe what architectures can do, on synthetic tasks, with intervals and a verdict."""
    from plait.cli.probe_display import Display, print_report

    named = [name.strip() for name in tasks.split(",") if name.strip()]
    with Display(quiet=as_json) as display:
        try:
            found = (plan_probe if plan else probe)(
                architectures or [], suite=suite, full=full, time=budget, seeds=seeds, tasks=named, variant=variant,
                baselines=baselines, match=match, device=device, workers=workers, store=store,
                on_progress=display.update,
            )  # fmt: skip
        except KeyboardInterrupt:
            display.stop()
            console().print("interrupted; all of it is saved. The same command resumes from here.")
            raise typer.Exit(130) from None
    if as_json:
        print_json(found.as_dict())
    elif isinstance(found, ProbePlan):
        _print_plan(found)
    else:
        print_report(found)


def _print_plan(plan: ProbePlan) -> None:
    out = console()
    made = table(
        architecture="left", settings="right", runs="right", optimizer_steps="right", core_hours="right",
        time_here="right",
    )  # fmt: skip
    for row in [*plan.rows(), {"name": "all", **plan.total}]:
        made.add_row(
            plain(str(row["name"])), count(plan.settings), count(row["runs"]), count(row["steps"]),
            f"{row['core_hours']:,.2f}", duration(3600 * row["hours"]),
        )  # fmt: skip
    seeds, workers = _number(plan.seeds, "seed"), _number(plan.workers, "worker")
    out.print(f"[bold]{plan.protocol} protocol[/], {seeds}, {plan.device}, {workers}")
    out.print(made)
    out.print("At most: trainings that have solved their task stop early.", style="dim")
    if plan.budget_seconds is not None:
        out.print(f"A budget of {duration(plan.budget_seconds)} runs as many seeds of it as fit.", style="dim")


def _number(amount: int, of: str) -> str:
    return f"{amount} {of}" if amount == 1 else f"{amount} {of}s"
