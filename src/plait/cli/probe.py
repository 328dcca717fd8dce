"""`plait probe ARCHITECTURE…`: what can it do, against which baselines, and how sure is that?"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, count, plain, print_json, table
from plait.core.units import duration, parse_duration

if TYPE_CHECKING:
    from plait.probing.candidates import Candidate
    from plait.probing.protocol import Protocol
    from plait.probing.run import Machine, Outcome
    from plait.records import Store

DEFAULT_BUDGET = "10m"


def command(
    architectures: Annotated[
        list[str] | None,
        typer.Argument(help="Mixers (gla, gla\\[heads=8]), files (my_mixer.py), presets or specs.", show_default=False),
    ] = None,
    suite: Annotated[str, typer.Option(help="A set of architectures: mad21.")] = "",
    full: Annotated[bool, typer.Option("--full", help="The paper's protocol: 396 runs an architecture.")] = False,
    budget: Annotated[
        str, typer.Option("--time", help=f"How long it may take: 90s, 10m, 2h.  \\[default: {DEFAULT_BUDGET}]")
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
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. \\[default: one a core]")] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Probe what architectures can do, on synthetic tasks, with intervals and a verdict."""
    started = time.perf_counter()
    from plait.core.errors import UserError
    from plait.probing import protocol as protocols
    from plait.probing.candidates import candidates
    from plait.probing.run import Machine
    from plait.records import open_store
    from plait.spec import presets

    given = [*(architectures or []), *(presets.suite(suite) if suite else [])]
    if not given:
        raise UserError("nothing to probe: give a mixer, a spec, a file, or --suite mad21.")
    if full and budget:
        raise UserError("--full has no budget; give --full or --time, not both.")
    seconds = parse_duration(budget or DEFAULT_BUDGET)
    named = [name.strip() for name in tasks.split(",") if name.strip()]
    protocol = (protocols.full if full else protocols.quick)(named, variant)
    machine = Machine(_device(device), workers or _cores())
    found = candidates(given, protocol, baselines=baselines and not suite, matched=match)
    with open_store(store) as opened:
        if plan:
            _plan(found, protocol, machine, opened, None if full else seconds, seeds or 1, as_json)
            return
        outcome = _run(found, protocol, machine, opened, None if full else seconds, seeds, started, as_json)
    asked = {"seeds": seeds, "seconds": None if full else seconds}
    _report(outcome, machine, time.perf_counter() - started, as_json, suite, asked)


def _device(name: str) -> str:
    from plait.core.errors import UserError

    if name not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: known are cpu and cuda.")
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("--device cuda: this machine has no CUDA device that torch can use.")
    return name


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(
    found: list[Candidate],
    protocol: Protocol,
    machine: Machine,
    store: Store,
    budget: float | None,
    seeds: int | None,
    started: float,
    as_json: bool,
) -> Outcome:
    from plait.cli.probe_display import Display
    from plait.probing.plan import with_seeds
    from plait.probing.run import refuse_leaks, run_all, run_budget

    refuse_leaks(found)
    with Display(found, protocol, quiet=as_json) as display:
        try:
            if budget is None:
                work = with_seeds(found, protocol, [seeds or 1] * len(protocol.settings), machine.device)
                return run_all(work, store, machine, display.update)
            return run_budget(
                found, protocol, budget, store, machine, display.update, seeds=seeds, started=started, overrun=False
            )
        except KeyboardInterrupt:
            display.stop()
            console().print("interrupted; all of it is saved. The same command goes on from here.")
            raise typer.Exit(130) from None


def _plan(
    found: list[Candidate],
    protocol: Protocol,
    machine: Machine,
    store: Store,
    budget: float | None,
    seeds: int,
    as_json: bool,
) -> None:
    from plait.cli.probe_display import Display
    from plait.probing.run import expected

    with Display(found, protocol, quiet=as_json) as display:
        core_seconds = expected(found, protocol, store, machine, display.update, seeds)
    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "runs": protocol.runs * seeds,
            "steps": protocol.steps * seeds,
            "core_hours": core_seconds[one.name] / 3600,
            "hours": core_seconds[one.name] / 3600 / machine.hands,
        }
        for one in found
    ]
    total = {key: sum(row[key] for row in rows) for key in ("runs", "steps", "core_hours", "hours")}
    if as_json:
        print_json({"protocol": protocol.name, "budget_seconds": budget, "seeds": seeds, "device": machine.device,
                    "workers": machine.hands, "architectures": rows, "total": total})  # fmt: skip
        return
    out = console()
    made = table(
        architecture="left", settings="right", runs="right", optimizer_steps="right", core_hours="right",
        time_here="right",
    )  # fmt: skip
    for row in [*rows, {"name": "all", **total}]:
        made.add_row(
            plain(str(row["name"])), count(len(protocol.settings)), count(row["runs"]), count(row["steps"]),
            f"{row['core_hours']:,.2f}", duration(3600 * row["hours"]),
        )  # fmt: skip
    out.print(f"[bold]{protocol.name} protocol[/], {_number(seeds, 'seed')}, {machine.device}, "
              f"{_number(machine.hands, 'worker')}")  # fmt: skip
    out.print(made)
    out.print("At most: members that have solved their task stop early.", style="dim")
    if budget is not None:
        out.print(f"A budget of {duration(budget)} runs as many seeds of it as fit.", style="dim")


def _report(
    outcome: Outcome, machine: Machine, seconds: float, as_json: bool, suite: str, asked: dict[str, Any]
) -> None:
    from plait.cli.probe_report import document, print_report

    shown = document(outcome, machine, seconds, suite, asked)
    if as_json:
        print_json(shown)
    else:
        print_report(shown)


def _number(amount: int, of: str) -> str:
    return f"{amount} {of}" if amount == 1 else f"{amount} {of}s"
