"""The results of `tracking.py` as a page: one table per set of trainings."""

from __future__ import annotations

from typing import Any

import numpy as np
from tracking_sets import SETS

from plait.analysis.intervals import estimate

INTRODUCTION = """\
A set is a task, its sizes and the mixers that run on it (`benchmarks/tracking_sets.py`); every mixer of a set has the
same training: AdamW without weight decay, the rate falling to 0 along a cosine; where every prefix of a sequence is one
of the task's, an eighth of the length comes first, then a quarter, then half (`plait.probing.protocol.CURRICULUM`).
Scored in the second half of new sequences 1, 2, 4 and 8 times as long as in training: at 2 and more every scored
position lies beyond it."""


def page(rows: list[dict[str, Any]]) -> str:
    """One table per set: the mean at every length, every seed and the interval at 4 times it, and at the longest the
    share of what is to be had beyond chance."""
    text = [
        "# State tracking and recall at equal state",
        "",
        INTRODUCTION,
        "",
        versions(rows),
        "",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = together([row for row in rows if row["set"] == name])
        first = mine[0]
        said = ", ".join(f"{key}={value}" for key, value in first["task"].items() if key != "task")
        spec = SETS[name].spec.replace("{vocab} ", "… ")
        text += [f"## {name}: {first['task']['task']}, {said}", "", f"`{spec}`, batch {first['batch']}.", ""]
        lengths = list(first["accuracy"])
        told = "4" if "4" in lengths and not name.startswith("learn-") else "1" if "4" in lengths else lengths[-1]
        heads = " | ".join(f"{n}×" for n in lengths)
        text += [
            f"| mixer | state | steps | lr | {heads} | {told}×, by seed | {told}×, 95 % | chance "
            f"| scaled, {lengths[-1]}× | CPU s | where |",
            "|" + "---|" * (10 + len(lengths)),
        ]
        for row in mine:
            ends = interval(np.array(row["accuracy"][told]))
            means = " | ".join(f"{np.mean(row['accuracy'][n]):.3f}" for n in lengths)
            by_seed = ", ".join(f"{value:.3f}" for value in row["accuracy"][told])
            known = row.get("ceiling", {}).get(lengths[-1], 1.0)
            scaled = (np.mean(row["accuracy"][lengths[-1]]) - row["chance"]) / (known - row["chance"])
            steps = (
                f"{row['steps']}" if row["steps"] == row.get("of", row["steps"]) else f"{row['steps']} of {row['of']}"
            )
            decay = f", decay {row['weight_decay']:g}" if row.get("weight_decay") else ""
            spent = f"{row['cpu_seconds']:.0f}" if row["where"].startswith("CPU") and "cpu_seconds" in row else ""
            text.append(
                f"| `{row['mixer']}` | {row['state']:,} | {steps} | {row['lr']:g}{decay} | {means} | {by_seed} "
                f"| {ends} | {row['chance']:.2f} | {scaled:.2f} | {spent} | {row['where']} |"
            )
        text += ["", *at_equal_steps(mine)]
    return "\n".join(text)


def at_equal_steps(rows: list[dict[str, Any]]) -> list[str]:
    """Where trainings of one set were cut short at different steps: validation accuracies when all had taken as many,
    the best first, and how far each is above the next, paired by seed."""
    curves = {row["mixer"]: [one for one in row["replicas"] if one.get("validation")] for row in rows}
    if len(rows) < 2 or len({row["steps"] for row in rows}) == 1 or not all(curves.values()):
        return []
    common = set.intersection(*({step for step, _ in one["validation"]} for some in curves.values() for one in some))
    if not common:
        return []
    step = max(common)
    best: dict[str, tuple[float, np.ndarray]] = {}
    for mixer, some in curves.items():
        by_rate: dict[float, list[float]] = {}
        for one in sorted(some, key=lambda one: one["seed"]):
            by_rate.setdefault(one["lr"], []).append(dict(one["validation"])[step])
        lr = max(by_rate, key=lambda lr: float(np.mean(by_rate[lr])))
        best[mixer] = lr, np.array(by_rate[lr])
    order = sorted(best, key=lambda mixer: -best[mixer][1].mean())
    text = [
        f"After {step} steps of all:",
        "",
        "| mixer | lr | validation | 95 % | by seed | above the next |",
        "|---|---|---|---|---|---|",
    ]
    for mixer, following in zip(order, [*order[1:], None], strict=True):
        lr, values = best[mixer]
        lead = "" if following is None else interval(values - best[following][1])
        by_seed = ", ".join(f"{value:.3f}" for value in values)
        text.append(f"| `{mixer}` | {lr:g} | {values.mean():.3f} | {interval(values)} | {by_seed} | {lead} |")
    return [*text, ""]


def interval(values: np.ndarray) -> str:
    ends = estimate(values).interval
    return "" if ends is None else "{:.2f} to {:.2f}".format(*ends)


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seeds that were trained in processes of their own as one row."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.get("seeds", [0])[0]):
        key = (
            row["mixer"],
            row["steps"],
            row["lr"],
            row["where"],
            row.get("seeds", [0])[0] if len(row["accuracy"]["1"]) > 1 else "",
        )
        if key not in merged:
            merged[key] = row
            continue
        held = merged[key]
        held["accuracy"] = {n: [*values, *row["accuracy"][n]] for n, values in held["accuracy"].items()}
        held["cpu_seconds"] = held.get("cpu_seconds", 0) + row.get("cpu_seconds", 0)
    return list(merged.values())


def versions(rows: list[dict[str, Any]]) -> str:
    found = {
        f"{one['gpu'] if row['where'] == 'H200' else one['cpu']}: plait {one['plait']}, torch {one['torch']}, Python "
        f"{one['python']}"
        for row in rows
        for one in [row["provenance"]]
    }
    return "; ".join(sorted(found)) + "."
