"""Would a run of the probe's grid that is stopped for being behind have won in the end? And what does it change to stop
runs whose accuracy no longer rises (`plait probe --full --patience`)? Both rules, replayed on learning curves.

    python benchmarks/grid_stops.py RECORDS.jsonl [--cut RECORDS.jsonl] [--out PAGE.md] [--stopped STOPPED.jsonl]

RECORDS are the records of settings whose runs were not stopped by the rule (a line of JSON each, as
`benchmarks/probe_sittings.py --records` writes them); `--cut` adds settings trained with the protocol's own rule, on
which stricter ones can be replayed. For every fraction of the steps and every margin: in how many settings the run
that won would have been stopped, how much accuracy on the validation split that would have cost, and which part of the
optimizer steps the rule saves (of the complete settings). For every patience: how the scores of all settings change,
and how many steps are left. `--stopped` writes the records as the protocol's own rule leaves them, under the keys that
`plait probe --full` looks for; a stopped run then has no score on the test split, which nobody computed at that step.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.probing.protocol import BEHIND, EPOCHS
from plait.probing.trial import KIND
from plait.records import record_key

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)
MARGINS = (0.1, 0.2, 0.3)
PATIENCES = (10, 20, 40, 60)  # epochs


@dataclass(frozen=True)
class Curves:
    """Validation accuracies of all runs of a setting's grid, by step; −∞ where a run had stopped."""

    name: str
    planned: int  # steps
    accuracy: Mapping[int, Sequence[float]]
    chosen: int
    complete: bool = True  # no run was stopped for being behind

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Curves:
        task, replicas = record["config"]["task"], record["result"]["replicas"]
        curves = [{step: accuracy for step, accuracy, _ in replica["validation"]} for replica in replicas]
        accuracy = {step: [curve.get(step, -math.inf) for curve in curves] for step in max(curves, key=len)}
        name = f"{task['task']}, {task['length']} tokens, vocabulary {task['vocab']}, {task['train_size']:,} examples"
        complete = all(replica["stopped"] != "behind" for replica in replicas)
        planned, chosen = record["config"]["training"]["steps"], record["result"]["seeds"][0]["chosen"]
        return cls(name, planned, accuracy, chosen, complete)

    @property
    def ended(self) -> int:
        return max(self.accuracy)

    def stops(self, fraction: float, margin: float) -> dict[int, int]:
        """The runs that the rule stops, and at which step."""
        stopped: dict[int, int] = {}
        for step, accuracies in self.accuracy.items():
            running = [i for i in range(len(accuracies)) if i not in stopped]
            if step >= fraction * self.planned and step < self.ended:
                best = max(accuracies[i] for i in running)
                stopped |= {i: step for i in running if accuracies[i] < best - margin}
        return stopped

    def lost(self, stopped: Mapping[int, int]) -> float:
        """How much lower the final validation accuracy of the best run is without those that were stopped."""
        final = self.accuracy[self.ended]
        return max(final) - max(accuracy for i, accuracy in enumerate(final) if i not in stopped)

    def saved(self, stopped: Mapping[int, int]) -> int:
        return sum(self.ended - step for step in stopped.values())

    @property
    def trained(self) -> int:
        return self.ended * len(self.accuracy[self.ended])

    def runs(self) -> list[list[tuple[int, float]]]:
        """Steps and validation accuracies of every run, up to its stop."""
        count = len(self.accuracy[self.ended])
        return [[(step, row[i]) for step, row in self.accuracy.items() if row[i] > -math.inf] for i in range(count)]

    def with_patience(self, epochs: int) -> tuple[float, int] | None:
        """The best final accuracy, and the steps of all runs, if runs also stop whose accuracy has not risen for so
        many epochs; None if the run stops that solved the setting and ended the others, which would have gone on."""
        patience = self.planned * epochs // EPOCHS
        score, steps = -math.inf, 0
        for i, run in enumerate(self.runs()):
            best, last = max(run[:1]), run[-1]
            for step, accuracy in run:
                if accuracy > best[1]:
                    best = step, accuracy
                elif step - best[0] >= patience:
                    last = step, accuracy
                    break
            if last != run[-1] and i == self.chosen and self.ended < self.planned:
                return None
            score, steps = max(score, last[1]), steps + last[0]
        return score, steps


def patience_table(settings: Sequence[Curves]) -> list[str]:
    lines = [
        "",
        "`--patience`: a run also stops whose validation accuracy has not risen for so many epochs, an option of the",
        "authors' code, too (which evaluates after every epoch; this protocol after every tenth, late in a training).",
        f"What it changes on the validation split, in {len(settings)} settings as the protocol's own rule leaves them:",
        "",
        "| patience, epochs | steps left | change of the score: mean | lowest | highest | lower by more than 0.01 |",
        "|-|-|-|-|-|-|",
    ]
    for epochs in PATIENCES:
        judged = [(curves, outcome) for curves in settings if (outcome := curves.with_patience(epochs)) is not None]
        before = [sum(run[-1][0] for run in curves.runs()) for curves, _ in judged]
        changes = [outcome[0] - max(curves.accuracy[curves.ended]) for curves, outcome in judged]
        left = sum(outcome[1] for _, outcome in judged) / sum(before)
        lower = sum(change < -0.01 for change in changes)
        lines.append(
            f"| {epochs} | {100 * left:.0f} % | {sum(changes) / len(changes):+.3f} | {min(changes):+.3f} | "
            f"{max(changes):+.3f} | {lower} of {len(judged)} |"
        )
    return [*lines, "", "Scores rise where a run learns its examples by heart after it has learnt the task."]


def page(settings: Sequence[Curves]) -> str:
    complete = [curves for curves in settings if curves.complete]
    early = len([curves for curves in complete if curves.ended < min(FRACTIONS) * curves.planned])
    lines = [
        "# Runs of the probe's grid that are stopped because they are behind, replayed on complete curves",
        "",
        f"{len(complete)} settings of the full MAD protocol, attention and SwiGLU, six runs each, in which no run was",
        f"stopped for being behind ({early} were solved before a tenth of their steps, where no rule applies), and",
        f"{len(settings) - len(complete)} that were trained with the protocol's rule, on which rules at least as",
        "strict are replayed. `python benchmarks/grid_stops.py RECORDS.jsonl --cut RECORDS.jsonl --out PAGE.md`.",
        "The rule: from a fraction of the steps on, a run stops whose validation accuracy is lower by more than a",
        "margin than the best run's. A setting's score is that of its best run.",
        "",
        "| from this fraction on | margin | settings whose winner is stopped | accuracy lost at most | steps saved |",
        "|-|-|-|-|-|",
    ]
    trained = sum(curves.trained for curves in complete)
    for fraction in FRACTIONS:
        for margin in MARGINS:
            replayed = settings if fraction <= BEHIND[0] and margin <= BEHIND[1] else complete
            stopped = [curves.stops(fraction, margin) for curves in replayed]
            lost = [curves.lost(some) for curves, some in zip(replayed, stopped, strict=True)]
            saved = sum(curves.saved(curves.stops(fraction, margin)) for curves in complete)
            wrong = sum(curves.chosen in some for curves, some in zip(replayed, stopped, strict=True))
            rule = (
                f"| {fraction} | {margin} |" if (fraction, margin) != BEHIND else f"| **{fraction}** | **{margin}** |"
            )
            lines.append(f"{rule} {wrong} of {len(replayed)} | {max(lost):.3f} | {100 * saved / trained:.0f} % |")
    lines += ["", f"The protocol's rule is {BEHIND[1]} from {BEHIND[0]} on.", *patience_table(settings)]
    return "\n".join([*lines, ""])


def as_stopped(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record that the protocol's rule would have left."""
    training = {**record["config"]["training"], "behind": list(BEHIND)}
    config = {**record["config"], "training": training}
    stops = Curves.of(record).stops(*BEHIND)
    seeds, replicas = record["result"]["seeds"], record["result"]["replicas"]
    if seeds[0]["chosen"] in stops:
        raise SystemExit(f"the winner of {Curves.of(record).name} would have been stopped: train that setting again")
    cut = [_cut(replica, stops.get(i)) for i, replica in enumerate(replicas)]
    return {
        **record,
        "key": record_key(KIND, config),
        "config": config,
        "result": {**record["result"], "replicas": cut},
    }


def _cut(replica: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    if step is None:
        return dict(replica)
    short = {name: [row for row in replica[name] if row[0] <= step] for name in ("losses", "validation")}
    return {**replica, "steps": step, "stopped": "behind", **short, "test": None}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--cut", type=Path, help="records that were trained with the protocol's rule")
    parser.add_argument("--out", type=Path, help="write the table as a page")
    parser.add_argument("--stopped", type=Path, help="write the records as the protocol's rule would have left them")
    asked = parser.parse_args()
    records = _read(asked.records)
    known = [record["config"]["task"] for record in records]
    cut = _read(asked.cut) if asked.cut is not None else []
    text = page([Curves.of(x) for x in [*records, *(x for x in cut if x["config"]["task"] not in known)]])
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    if asked.stopped is not None:
        lines = [json.dumps(as_stopped(record)) for record in records]
        asked.stopped.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
