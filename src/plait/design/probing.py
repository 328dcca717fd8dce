"""What the few can do: their mixes, at the probe's size, on its most telling tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.design.brief import NEARLY, Brief, Told
from plait.design.mixes import probe_candidate
from plait.probe.protocol import quick
from plait.probe.run import Machine, Outcome, Progress, run_budget
from plait.probe.verdict import Comparison
from plait.probe.verdict import document as scores
from plait.records import Store


def probe(brief: Brief, rows: Mapping[str, Mapping[str, Any]], store: Store, told: Told) -> Outcome:
    """`rows` by the name of their mix."""
    protocol = quick(brief.tasks)
    few = [probe_candidate(row["spec"], protocol) for row in rows.values()]

    def watch(progress: Progress) -> None:
        share = min(NEARLY, progress.share(progress.work.cells)) if progress.work else None
        cells = f"{len(progress.done)} of {len(progress.work.cells)} trainings" if progress.work else progress.phase
        told("probe", share, cells)

    return run_budget(few, protocol, brief.share("probe"), store, Machine(brief.device, brief.workers), watch)


def probe_document(outcome: Outcome, comparison: Comparison, pick: str) -> dict[str, Any]:
    """Every mix with its tasks, the best first, and its paired difference from the pick."""
    work = outcome.work
    by_name = {one.name: one for one in work.candidates}
    rows, signs = [], comparison.signs(pick, chosen=True)
    for row in scores(comparison):
        one, name = by_name[row["name"]], row["name"]
        from_pick = comparison.difference(pick, name)
        behind = {
            "value": from_pick.value,
            "interval": None if from_pick.interval is None else list(from_pick.interval),
            "sign": signs.overall.get(name, 0),
        }
        better = [task for task in comparison.tasks if signs.by_task[task].get(name, 0) < 0]
        described = {"spec": one.arch.text, "params": one.params, "note": one.note}
        rows.append({**row, **described, "pick_ahead_by": behind, "better_than_pick_on": better})
    return {
        "protocol": work.protocol.name,
        "tasks": work.protocol.task_names,
        "seeds": {task: len(comparison.seeds[task]) for task in comparison.tasks},
        "scale": work.scale,
        "runs": work.runs,
        "steps": work.steps,
        "trained_now": outcome.fresh,
        "architectures": rows,
    }
