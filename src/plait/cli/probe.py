"""`plait probe ARCHITECTURE…`: accuracy on synthetic tasks, against baselines, with intervals.

The terminal shows a table with tasks as columns and architectures as rows: live during training, then with a verdict.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Cluster, GpusPerTraining, Mixers, StoreUrl
from plait.cli.output import (
    ProgressLines,
    console,
    count,
    fits,
    passed,
    plain,
    print_result,
    resumable,
    table,
    time_left,
    within_time,
)
from plait.core import defaults
from plait.core.registry import names
from plait.core.units import TimeLeft, duration

if TYPE_CHECKING:
    from rich.table import Table

    from plait.api.probe import ProbePlan
    from plait.probing.report import ProbeResult
    from plait.probing.run import Progress
    from plait.probing.verdict import Summary


def command(
    architectures: Annotated[
        list[str] | None,
        typer.Argument(help="Mixers (gla, gla\\[heads=8]), files (my_mixer.py), presets or specs.", show_default=False),
    ] = None,
    suite: Annotated[
        str, typer.Option(help="A set of architectures, mad21; or of tasks: tracking, recall, language, all.")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="The paper's protocol: 396 runs per architecture.")] = False,
    patience: Annotated[
        int | None,
        typer.Option(
            help="With --full: stop runs whose validation accuracy has not risen for so many epochs, from 30 % on."
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--time", help=f"Total time: 90s, 10m, 2h.  \\[default: {defaults.TIME}]")
    ] = "",
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what would run, and how long it would take here.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds. \\[default: as many as fit --time, else 1]")] = None,
    tasks: Annotated[str, typer.Option(help="Only these tasks or task files, separated by commas.")] = "",
    variant: Annotated[str, typer.Option(help="Tasks as in the paper (paper) or in its code (mad-lab).")] = "paper",
    baselines: Annotated[
        bool,
        typer.Option(
            help="Also run attn, gla, mamba and hyena with a single candidate; on a suite of tasks attn, mamba2, "
            "deltanet and deltanet\\[neg_eigval]."
        ),
    ] = True,
    match: Annotated[bool, typer.Option(help="Match state and parameters where possible.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes. \\[default: one per core]")] = None,
    cluster: Cluster = "",
    gpus_per_training: GpusPerTraining = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Probe architectures on synthetic tasks, with intervals and a verdict."""
    arguments = dict(locals())
    from plait.api.probe import ProbePlan, plan_probe, probe

    allowed = None if full or plan else budget or defaults.TIME
    with within_time(allowed), resumable("everything is saved"), Display(quiet=as_json) as display:
        changed = {"time": budget or None, "tasks": names(tasks), "on_progress": display.update}
        result = (plan_probe if plan else probe)(**passed(arguments, "budget", "plan", "as_json", **changed))
    if isinstance(result, ProbePlan):
        print_result(result, _print_plan, as_json=as_json)
    else:
        print_result(result, print_report, as_json=as_json)


def _print_plan(plan: ProbePlan) -> None:
    out = console()
    grid = table(
        architecture="left", settings="right", runs="right", optimizer_steps="right", core_hours="right",
        time_here="right",
    )  # fmt: skip
    for row in [*plan.rows(), {"name": "all", **plan.total}]:
        grid.add_row(
            plain(str(row["name"])), count(plan.settings), count(row["runs"]), count(row["steps"]),
            f"{row['core_hours']:,.2f}", duration(3600 * row["hours"]),
        )  # fmt: skip
    seeds, workers = _number(plan.seeds, "seed"), _number(plan.workers, "worker")
    out.print(f"[bold]{plan.protocol} protocol[/], {seeds}, {plan.device}, {workers}")
    out.print(grid)
    out.print("At most: trainings that have solved their task stop early.", style="dim")
    if plan.budget_seconds is not None:
        out.print(f"A budget of {duration(plan.budget_seconds)} runs as many seeds of it as fit.", style="dim")


def _number(amount: int, of: str) -> str:
    return f"{amount} {of}" if amount == 1 else f"{amount} {of}s"


REFRESH_SECONDS = 0.5
SHORT = {
    "in-context-recall": "recall",
    "fuzzy-in-context-recall": "fuzzy recall",
    "noisy-in-context-recall": "noisy recall",
    "selective-copying": "copying",
}


class Display:
    """A live table in a terminal; occasional lines in a log."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.live import Live

        out = console()
        self._live = None if quiet or not out.is_terminal else Live(console=out, transient=True, auto_refresh=False)
        self._shown = 0.0
        self._lines = None if console(stderr=True).is_terminal else ProgressLines(sys.stderr)
        self._left = TimeLeft()

    def update(self, progress: Progress) -> None:
        now = time.perf_counter()
        if self._lines is not None:
            trials = progress.work.trials if progress.work is not None else []
            of = f"{len(progress.done)} of {len({trial.key for trial in trials})} trials" if trials else ""
            self._lines.tell(progress.phase, progress.share(trials) if trials else None, of)
        if self._live is not None and now - self._shown >= REFRESH_SECONDS:
            self._shown = now
            self._live.update(self._drawn(progress), refresh=True)

    def _drawn(self, progress: Progress) -> Any:
        from rich.console import Group
        from rich.text import Text

        elapsed = time.perf_counter() - progress.started
        where = f"  {progress.where}" if progress.where else ""
        head = f"{progress.phase}{where}  {duration(elapsed)}"
        if progress.work is None:
            return Text(head)
        trials, tasks = progress.work.trials, progress.work.protocol.task_names
        self._left.update(progress.share(trials))
        head += f", {left}" if (left := time_left(self._left)) else ""
        alive = sum(running["alive"] for running in progress.running.values())
        head += f"  {len(progress.done)} of {len({trial.key for trial in trials})} trials, {alive} replicas training"
        grouped = defaultdict(list)
        for trial in trials:
            grouped[trial.candidate, trial.task.name].append(trial)
        grid = table(architecture="left", **{SHORT.get(task, task): "right" for task in tasks})
        for name in (candidate.name for candidate in progress.work.candidates):
            grid.add_row(
                plain(name),
                *(self._cell(progress, grouped[name, task]) for task in tasks),
            )
        return Group(Text(head), grid)

    def _cell(self, progress: Progress, trials: list[Any]) -> str:
        """Mean test accuracy of finished trainings; in brackets the validation accuracy of running ones."""
        done = [progress.done[trial.key] for trial in trials if trial.key in progress.done]
        text = f"{sum(done) / len(done):.2f}" if done else ""
        for trial in trials:
            running = progress.running.get(trial.key)
            if running is not None:
                accuracy = "…" if running["accuracy"] is None else f"{running['accuracy']:.2f}"
                text += f" [dim]{accuracy} {100 * running['step'] // trial.training.steps} %[/]"
        return text or "[dim]·[/]"

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


#: The numbers are in docs/howto/probe.md.
FORETELLS = (
    "This shows what an architecture can do in a small model, not which has the lower loss on a text: no task's "
    "accuracy ranks long trainings (plait compare does)"
)


def print_report(shown: ProbeResult) -> None:
    out = console()
    tasks = list(shown.architectures[0].tasks)
    grid, intervals = _table(shown, tasks, intervals=True), True
    if not fits(out, grid):
        grid, intervals = _table(shown, tasks, intervals=False), False
    out.print(grid)
    if any(shown.architectures[0].tasks[task].lengths for task in tasks):
        _print_lengths(shown, tasks)
    seeds = {task: shown.architectures[0].tasks[task].seeds for task in tasks}
    few, many = min(seeds.values()), max(seeds.values())
    number = str(few) if few == many else f"{few} to {many}"
    plural = "s" if many > 1 else ""
    what = "test accuracy with its 95 % interval" if many > 1 else "test accuracy, without an interval"
    out.print(f"{what}, {number} seed{plural} per task; the best in green; # L ranks by loss", style="dim")
    if many > 1 and not intervals:
        out.print("intervals of the tasks: in a wider terminal, or with --json", style="dim")
    for task in tasks:
        ceiling = min(row.tasks[task].ceiling for row in shown.architectures)
        if ceiling < 1:
            out.print(f"{task}: at most {ceiling:.3f}", style="dim")
    noise = {SHORT.get(name, name): value for name, value in shown.noise.items() if value is not None}
    if noise:
        parts = ", ".join(f"{name} {value:.3f}" for name, value in noise.items())
        out.print(f"standard deviation between seeds, all architectures: {parts}", style="dim")
    for note in shown.notes:
        out.print(note, style="dim", markup=False)
    if len(shown.architectures) > 1 and len(tasks) > 1:
        out.print(_by_task(shown))
    out.print(f"\n{shown.verdict}", markup=False)
    out.print(FORETELLS, style="dim")
    for i, finding in enumerate(shown.findings, start=1):
        ends = " ({:+.3f} to {:+.3f})".format(*finding.interval) if finding.interval else " (one seed)"
        out.print(f"Finding {i}, {finding.finding}: {finding.difference:+.3f}{ends}; "
                  f"the paper: {finding.paper:+.3f}", markup=False)  # fmt: skip
    cost = shown.cost
    out.print(
        f"\n{duration(cost.seconds)}, {duration(3600 * cost.core_hours)} of one core in total, {cost.runs:,} runs, "
        f"{cost.steps:,} optimizer steps; {cost.trained_now} of {cost.trials} trials trained now",
        style="dim",
    )


def _print_lengths(shown: ProbeResult, tasks: list[str]) -> None:
    """Accuracy on sequences longer than in training, and at the training length with chance and ceiling."""
    out = console()
    for task in (task for task in tasks if shown.architectures[0].tasks[task].lengths):
        first = shown.architectures[0].tasks[task]
        columns = ["1×", *(f"{factor}×" for factor in first.lengths), "scaled"]
        grid = table(**{f"{SHORT.get(task, task)} at": "left"}, **dict.fromkeys(columns, "right"))
        for row in shown.architectures:
            result = row.tasks[task]
            values = [result.accuracy, *result.lengths.values()]
            whole = [f" / {value:.2f}" for value in result.exact.values()] or [""] * len(values)
            cells = [f"{value:.2f}{exact}" for value, exact in zip(values, whole, strict=True)]
            grid.add_row(plain(row.name), *cells, "" if result.scaled is None else f"{result.scaled:.2f}")
        out.print(grid)
        exact = "; after / the fraction of sequences without a mistake" if first.exact else ""
        best = f" and 1 at {first.ceiling:.2f}, the best possible" if first.ceiling < 1 else ""
        out.print(f"times the training length; scaled: 0 at chance, {first.chance:.2f}{best}{exact}", style="dim")


def _table(shown: ProbeResult, tasks: list[str], *, intervals: bool) -> Table:
    """Architectures as rows, best first; tasks as columns, with intervals if there is room."""
    grid = table(**{"": "right", "architecture": "left", "params": "right", "state": "right"})
    for task in tasks:
        grid.add_column(SHORT.get(task, task), justify="right")
    grid.add_column("mean", justify="right", style="bold")
    grid.add_column("# L", justify="right")
    best = {task: min(row.tasks[task].rank for row in shown.architectures) for task in tasks}
    for row in shown.architectures:
        columns = []
        for task in tasks:
            result = row.tasks[task]
            text = "diverged" if result.diverged else _estimate(result, intervals)
            columns.append(f"[green]{text}[/]" if result.rank == best[task] and not result.diverged else text)
        name = plain(row.name)
        state = "grows" if row.state_grows and not row.fixed_state else f"{row.fixed_state:,}"
        grid.add_row(str(row.mean.rank), name, f"{row.params:,}", state, *columns, _estimate(row.mean),
                     str(row.mean.loss_rank))  # fmt: skip
    return grid


def _by_task(shown: ProbeResult) -> Table:
    """The best architecture of each task, by accuracy and by loss, and the best mixer over its architectures."""
    grid = table(task="left", best="left", accuracy="right", by_loss="left", best_mixer="left", mixer_mean="right")
    architectures = {architecture.name: architecture for architecture in shown.architectures}
    for row in shown.by_task:
        best = architectures[row.best].tasks[row.task]
        grid.add_row(
            SHORT.get(row.task, row.task), plain(row.best), _estimate(best), plain(row.best_by_loss),
            plain(row.best_mixer), f"{row.mixers[row.best_mixer]:.2f}",
        )  # fmt: skip
    return grid


def _estimate(result: Summary, interval: bool = True) -> str:
    ends = " ({:.2f}–{:.2f})".format(*result.interval) if interval and result.interval else ""
    return f"{result.accuracy:.2f}{ends}"
