"""What a probe found: one document, and its table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.cli.output import console, plain, table
from plait.core.units import duration

if TYPE_CHECKING:
    from rich.table import Table

    from plait.probing.replan import Correction
    from plait.probing.run import Machine, Outcome


def document(
    outcome: Outcome, machine: Machine, seconds: float, suite: str = "", asked: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything `plait probe` knows, as plain data. `asked`: the seeds and the seconds asked for, if any."""
    from plait.probing.run import compare
    from plait.probing.verdict import by_task, findings, verdict
    from plait.probing.verdict import document as scores

    work, comparison = outcome.work, compare(outcome)
    seeds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in work.cells:
        seeds.setdefault((cell.candidate, cell.task.name), []).extend(outcome.records[cell.key].result["seeds"])
    described = {
        one.name: {
            "spec": one.arch.text,
            "params": one.params,
            "fixed_state": one.state,
            "state_grows": one.kv_cache(2) > one.kv_cache(1),
            "matching": one.note,
            "baseline": one.baseline,
        }
        for one in work.candidates
    }
    rows = [{"name": row["name"], **described[row["name"]], **row} for row in scores(comparison)]
    for row in rows:
        for task, found in row["tasks"].items():
            mine = seeds[row["name"], task]
            found["ceiling"] = sum(one["ceiling"] for one in mine) / len(mine)
            found["diverged"] = all(one["chosen"] is None for one in mine)
    subjects = [one.name for one in work.candidates if not one.baseline]
    chosen = len(subjects) > 1
    if chosen:
        subjects = [rows[0]["name"]]
    asked = asked or {"seeds": None, "seconds": None}
    ran = {"seeds": {task: len(found) for task, found in comparison.seeds.items()}, "steps_share": work.scale}
    core_seconds = sum(record.about["seconds"] for record in outcome.records.values())
    return {
        "protocol": work.protocol.name,
        "device": machine.device,
        "architectures": rows,
        "noise": {**{task: comparison.noise(task) for task in comparison.tasks}, "mean": comparison.noise()},
        "by_task": by_task(comparison, {one.name: one.arch for one in work.candidates}),
        "asked": dict(asked),
        "ran": ran,
        "verdict": verdict(comparison, subjects, chosen=chosen),
        "findings": findings(comparison) if suite == "mad21" else [],
        "notes": [*_shortfall(asked, ran), *_notes(outcome)],
        "cost": {
            "seconds": round(seconds, 1),
            "core_hours": core_seconds / 3600,
            "runs": work.runs,
            "steps": work.steps,
            "cells": len(outcome.records),
            "trained_now": outcome.fresh,
        },
    }


def _shortfall(asked: Mapping[str, Any], ran: Mapping[str, Any]) -> list[str]:
    """What was run of what was asked for, where that is less."""
    if not asked["seeds"]:
        return []
    fewer: dict[int, list[str]] = {}
    for task, seeds in ran["seeds"].items():
        if seeds < asked["seeds"]:
            fewer.setdefault(seeds, []).append(task)
    everywhere = len(fewer) == 1 and len(next(iter(fewer.values()))) == len(ran["seeds"])
    parts = [f"{seeds} on {'every task' if everywhere else ', '.join(tasks)}" for seeds, tasks in fewer.items()]
    room = f": {duration(asked['seconds'])} hold no more; give a longer --time" if asked["seconds"] else ""
    return [f"of {asked['seeds']} seeds asked for, ran {'; '.join(parts)}{room}"] if parts else []


def _notes(outcome: Outcome) -> list[str]:
    """What a reader of the table must know beside it."""
    same: dict[str, list[str]] = {}
    for one in outcome.work.candidates:
        if one.note:
            same.setdefault(one.note, []).append(one.name)
    notes = [
        f"{', '.join(names) if len(names) <= NAMED else f'{len(names)} architectures'}: {note}"
        for note, names in same.items()
    ]
    if outcome.work.scale < 1:
        notes.append(
            f"trainings were cut down to {outcome.work.scale:.0%} of their steps to fit the time: give it more"
        )
    if changed := changes(outcome.corrections):
        notes.append(changed)
    for cell in outcome.work.cells:
        seeds = outcome.records[cell.key].result["seeds"]
        diverged = [str(one["seed"]) for one in seeds if one["chosen"] is None]
        if diverged:
            notes.append(
                f"{cell.candidate} on {cell.task.name} diverged with seed {', '.join(diverged)}: at every learning "
                "rate its loss was no longer finite. It counts as accuracy 0."
            )
    return notes


def changes(corrections: Sequence[Correction]) -> str:
    """What became of the plan, such as

    'trainings took 1.40 times as long as measured at the start: 2 instead of 4 seeds for compression, memorization'
    """
    if not corrections:
        return ""
    before, after = corrections[0].before, corrections[-1].after
    tasks: dict[str, list[str]] = {}
    for i, setting in enumerate(before.protocol.settings):
        found = []
        if after.seeds[i] != before.seeds[i]:
            found.append(f"{after.seeds[i]} instead of {before.seeds[i]} seed{'s' if before.seeds[i] > 1 else ''}")
        new, old = f"{after.scales[i]:.0%}", f"{before.scales[i]:.0%}"
        if new != old:
            found.append(f"{new} instead of {old} of the steps")
        if found:
            tasks.setdefault(" and ".join(found), []).append(setting.task.name)
    if not tasks:
        return ""
    paces = [correction.pace for correction in corrections if correction.changed]
    least, most = f"{min(paces):.2f}", f"{max(paces):.2f}"
    took = least if least == most else f"{least} to {most}"
    changed = "; ".join(f"{change} for {', '.join(names)}" for change, names in tasks.items())
    return f"trainings took {took} times as long as measured at the start: {changed}"


NAMED = 4  # architectures that share a note; more are counted
_SHORT = {
    "in-context-recall": "recall",
    "fuzzy-in-context-recall": "fuzzy recall",
    "noisy-in-context-recall": "noisy recall",
    "selective-copying": "copying",
}


def print_report(shown: dict[str, Any]) -> None:

    out = console()
    tasks = list(shown["architectures"][0]["tasks"])
    made, intervals = _table(shown, tasks, intervals=True), True
    if out.measure(made).maximum > out.width:
        made, intervals = _table(shown, tasks, intervals=False), False
    out.print(made)
    seeds = {task: shown["architectures"][0]["tasks"][task]["seeds"] for task in tasks}
    few, many = min(seeds.values()), max(seeds.values())
    number = str(few) if few == many else f"{few} to {many}"
    plural = "s" if many > 1 else ""
    what = "test accuracy with its 95 % interval" if many > 1 else "test accuracy, without an interval"
    out.print(f"{what}, {number} seed{plural} per task; the best in green; # L ranks by loss", style="dim")
    if many > 1 and not intervals:
        out.print("intervals of the tasks: in a wider terminal, or with --json", style="dim")
    for task in tasks:
        ceiling = min(row["tasks"][task]["ceiling"] for row in shown["architectures"])
        if ceiling < 1:
            out.print(f"{task}: no model can expect more than {ceiling:.3f}", style="dim")
    noise = {_SHORT.get(name, name): value for name, value in shown["noise"].items() if value is not None}
    if noise:
        parts = ", ".join(f"{name} {value:.3f}" for name, value in noise.items())
        out.print(f"standard deviation from seed to seed, all architectures: {parts}", style="dim")
    for note in shown["notes"]:
        out.print(note, style="dim", markup=False)
    if len(shown["architectures"]) > 1 and len(tasks) > 1:
        out.print(_by_task(shown))
    out.print(f"\n{shown['verdict']}", markup=False)
    for i, finding in enumerate(shown["findings"], start=1):
        ends = " ({:+.3f} to {:+.3f})".format(*finding["interval"]) if finding["interval"] else " (one seed)"
        out.print(f"Finding {i}, {finding['finding']}: {finding['difference']:+.3f}{ends}; "
                  f"the paper: {finding['paper']:+.3f}", markup=False)  # fmt: skip
    cost = shown["cost"]
    out.print(
        f"\n{duration(cost['seconds'])}, {cost['core_hours']:.2f} core-hours in all, {cost['runs']:,} runs, "
        f"{cost['steps']:,} optimizer steps; {cost['trained_now']} of {cost['cells']} cells trained now",
        style="dim",
    )


def _table(shown: dict[str, Any], tasks: list[str], *, intervals: bool) -> Table:
    """Architectures down, the best first; tasks across, with their intervals where there is room for them."""
    made = table(**{"": "right", "architecture": "left", "params": "right", "state": "right"})
    for task in tasks:
        made.add_column(_SHORT.get(task, task), justify="right")
    made.add_column("mean", justify="right", style="bold")
    made.add_column("# L", justify="right")
    best = {task: min(row["tasks"][task]["rank"] for row in shown["architectures"]) for task in tasks}
    for row in shown["architectures"]:
        cells = []
        for task in tasks:
            found = row["tasks"][task]
            text = "diverged" if found["diverged"] else _estimate(found, intervals)
            cells.append(f"[green]{text}[/]" if found["rank"] == best[task] and not found["diverged"] else text)
        name = plain(row["name"])
        state = "grows" if row["state_grows"] and not row["fixed_state"] else f"{row['fixed_state']:,}"
        made.add_row(str(row["mean"]["rank"]), name, f"{row['params']:,}", state, *cells, _estimate(row["mean"]),
                     str(row["mean"]["loss_rank"]))  # fmt: skip
    return made


def _by_task(shown: dict[str, Any]) -> Table:
    """Who is best at which task, by accuracy and by loss, and which mixer is, over the architectures that hold it."""
    made = table(task="left", best="left", accuracy="right", by_loss="left", best_mixer="left", mixer_mean="right")
    for row in shown["by_task"]:
        best = next(one for one in shown["architectures"] if one["name"] == row["best"])["tasks"][row["task"]]
        made.add_row(
            _SHORT.get(row["task"], row["task"]), plain(row["best"]), _estimate(best), plain(row["best_by_loss"]),
            plain(row["best_mixer"]), f"{row['mixers'][row['best_mixer']]:.2f}",
        )  # fmt: skip
    return made


def _estimate(found: dict[str, Any], interval: bool = True) -> str:
    ends = " ({:.2f}–{:.2f})".format(*found["interval"]) if interval and found["interval"] else ""
    return f"{found['accuracy']:.2f}{ends}"
