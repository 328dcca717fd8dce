"""What a probe found: one document, and its table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait.cli.output import console, table

if TYPE_CHECKING:
    from plait.probe.run import Machine, Outcome


def document(outcome: Outcome, machine: Machine, seconds: float, suite: str = "") -> dict[str, Any]:
    """Everything `plait probe` knows, as plain data."""
    from plait.probe.findings import findings
    from plait.probe.run import compare
    from plait.probe.verdict import document as scores
    from plait.probe.verdict import verdict

    work, comparison = outcome.work, compare(outcome)
    ceilings: dict[tuple[str, str], list[float]] = {}
    for cell in work.cells:
        known = ceilings.setdefault((cell.candidate, cell.task.name), [])
        known += [one["ceiling"] for one in outcome.records[cell.key].result["seeds"]]
    described = {
        one.name: {
            "spec": one.arch.text,
            "params": one.params,
            "fixed_state": one.state,
            "matching": one.note,
            "baseline": one.baseline,
        }
        for one in work.candidates
    }
    rows = [{"name": row["name"], **described[row["name"]], **row} for row in scores(comparison)]
    for row in rows:
        for task, found in row["tasks"].items():
            mine = ceilings[row["name"], task]
            found["ceiling"] = sum(mine) / len(mine)
    subjects = [one.name for one in work.candidates if not one.baseline]
    if len(subjects) > 1:
        subjects = [rows[0]["name"]]
    core_seconds = sum(record.about["seconds"] for record in outcome.records.values())
    return {
        "protocol": work.protocol.name,
        "device": machine.device,
        "architectures": rows,
        "verdict": verdict(comparison, subjects),
        "findings": findings(comparison) if suite == "mad21" else [],
        "notes": _notes(outcome),
        "cost": {
            "seconds": round(seconds, 1),
            "core_hours": core_seconds / 3600,
            "runs": work.runs,
            "steps": work.steps,
            "cells": len(outcome.records),
            "trained_now": outcome.fresh,
        },
    }


def _notes(outcome: Outcome) -> list[str]:
    """What a reader of the table must know beside it."""
    notes = [f"{one.name}: {one.note}" for one in outcome.work.candidates if one.note]
    for cell in outcome.work.cells:
        seeds = outcome.records[cell.key].result["seeds"]
        where = f"{cell.candidate} on {cell.task.name}"
        notes += [f"{where}, seed {one['seed']}: {one['note']}" for one in seeds if "note" in one]
    return notes


_SHORT = {
    "in-context-recall": "recall",
    "fuzzy-in-context-recall": "fuzzy recall",
    "noisy-in-context-recall": "noisy recall",
    "selective-copying": "copying",
}


def print_report(shown: dict[str, Any], outcome: Outcome) -> None:
    from plait.cli.probe import duration

    out = console()
    tasks = list(shown["architectures"][0]["tasks"])
    made = table(**{"": "right", "architecture": "left", "params": "right", "state": "right"})
    for task in tasks:
        made.add_column(_SHORT.get(task, task), justify="right")
    made.add_column("mean", justify="right", style="bold")
    best = {task: min(row["tasks"][task]["rank"] for row in shown["architectures"]) for task in tasks}
    for row in shown["architectures"]:
        cells = []
        for task in tasks:
            text = _estimate(row["tasks"][task])
            cells.append(f"[green]{text}[/]" if row["tasks"][task]["rank"] == best[task] else text)
        name = row["name"].replace("[", r"\[")
        state = f"{row['fixed_state']:,}" if row["fixed_state"] else "grows"
        made.add_row(str(row["mean"]["rank"]), name, f"{row['params']:,}", state, *cells, _estimate(row["mean"]))
    out.print(made)
    seeds = {task: shown["architectures"][0]["tasks"][task]["seeds"] for task in tasks}
    few, many = min(seeds.values()), max(seeds.values())
    number = str(few) if few == many else f"{few} to {many}"
    plural = "s" if many > 1 else ""
    out.print(f"test accuracy with its 95 % interval, {number} seed{plural} a task; the best in green", style="dim")
    for task in tasks:
        ceiling = min(row["tasks"][task]["ceiling"] for row in shown["architectures"])
        if ceiling < 1:
            out.print(f"{task}: no model can expect more than {ceiling:.3f}", style="dim")
    for note in shown["notes"]:
        out.print(note, style="dim", markup=False)
    out.print(f"\n{shown['verdict']}", markup=False)
    for finding in shown["findings"]:
        out.print(f"{finding['finding']}: {finding['difference']:+.3f} ({finding['interval'][0]:+.3f} to "
                  f"{finding['interval'][1]:+.3f}); the paper: {finding['paper']:+.3f}", markup=False)  # fmt: skip
    cost = shown["cost"]
    out.print(
        f"\n{duration(cost['seconds'])}, {cost['core_hours']:.2f} core-hours in all, {cost['runs']:,} runs, "
        f"{cost['steps']:,} optimizer steps; {cost['trained_now']} of {cost['cells']} cells trained now",
        style="dim",
    )


def _estimate(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['accuracy']:.2f} ({low:.2f}–{high:.2f})"
