"""What do rules that stop runs of the probe's grid early change? Successive halving, as `plait probe --full` has it,
and `--patience`, replayed on the learning curves of trainings that went on.

    python benchmarks/grid_stops.py RECORDS.jsonl [RECORDS.jsonl …] [--with-patience RECORDS.jsonl]
        [--small RECORDS.jsonl [--train gla mamba …]] [--out PAGE.md]

RECORDS are settings of the full protocol (a line of JSON each, as `benchmarks/probe_sittings.py --records` writes
them); of a setting that several files have, the first counts. The rules are the product's own
(`plait.training.ensemble_plan.Plan.stops`). `--with-patience` adds what was measured: the scores of settings trained
with `--patience`. `--small` adds small settings of other mixers; `--train` trains them first, on this machine's CPU, in
half an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from plait.probing.plan import with_seeds
from plait.probing.protocol import EPOCHS, HALVING, candidates, quick
from plait.probing.run import Machine, run_all
from plait.records import open_store
from plait.spec import parse
from plait.training.ensemble_plan import RUNNING, Plan, Replica, ReplicaRecord
from plait.workers.pool import Place

Schedule = tuple[tuple[float, int], ...]
SCHEDULES: tuple[Schedule, ...] = (
    ((0.5, 3),), HALVING, ((0.5, 2),), ((0.4, 4), (0.6, 2), (0.8, 1)), ((0.4, 3),), ((0.4, 2),),
    ((0.3, 4), (0.5, 2), (0.75, 1)), ((0.3, 3), (0.45, 2), (0.6, 1)), ((0.3, 3), (0.5, 1)), ((0.2, 2), (0.25, 1)),
)  # fmt: skip
PATIENCES = (10, 20, 40, 60)  # epochs
QUICK_RATES = tuple((rate, decay) for rate in (6e-4, 3e-3, 6e-3) for decay in (0.0, 0.1))
Row = tuple[int, float, float]  # step, accuracy and loss on the validation split


class Outcome(NamedTuple):
    """Of a setting with a rule: accuracy of the best run and steps of all. None if that is not known: the rule stops
    the run that solved the setting and so ended the others; or, on the test split, the best run before its end."""

    validation: float | None
    test: float | None
    steps: int


@dataclass(frozen=True)
class Curves:
    """The learning curves of a setting's runs, and the number of steps of one that nothing stops."""

    architecture: str
    name: str
    planned: int
    runs: tuple[tuple[Row, ...], ...]
    tests: tuple[float | None, ...]  # accuracy of every run at its end
    score: float = 0.0  # that of the setting

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Curves:
        task, result = record["config"]["task"], record["result"]
        others = [f"{key} {value}" for key, value in task.items() if key not in ("task", "variant")]
        name = ", ".join([task["task"], *others])
        runs = tuple(
            tuple(tuple(math.nan if x is None else x for x in row) for row in replica["validation"])
            for replica in result["replicas"]
        )
        tests = tuple(replica["test"] and replica["test"][0] for replica in result["replicas"])
        steps = record["config"]["training"]["steps"]
        return cls(record["config"]["spec"], name, steps, runs, tests, result["accuracy"])

    def replayed(self, halving: Schedule = (), patience: int = 0) -> Outcome:
        """`patience` in epochs."""
        plan = Plan(self.planned, solved=math.inf, halving=halving, patience=self.planned * patience // EPOCHS)
        records = [ReplicaRecord(Replica(0.0, 0.0, i)) for i in range(len(self.runs))]
        curves = [{step: rest for step, *rest in run} for run in self.runs]
        for step in sorted(set().union(*curves)):
            for record, curve in zip(records, curves, strict=True):
                if record.stopped == RUNNING and step in curve:
                    record.add(step, 0.0, *curve[step])
                elif record.stopped == RUNNING:
                    record.stopped = "behind"  # as it did when it was trained
            if step < self.ended:
                for i, reason in plan.stops(records).items():
                    records[i].stopped = reason
        steps = sum(record.steps for record in records)
        ender = max(range(len(records)), key=lambda i: self.runs[i][-1][:2])
        if self.ended < self.planned and records[ender].stopped != RUNNING:
            return Outcome(None, None, steps)
        ahead = [i for i, record in enumerate(records) if record.stopped != "behind"] or range(len(records))
        chosen = max(ahead, key=lambda i: (records[i].accuracy, -records[i].validation[-1][2]))
        whole = records[chosen].steps == self.runs[chosen][-1][0]
        return Outcome(records[chosen].accuracy, self.tests[chosen] if whole else None, steps)

    @property
    def ended(self) -> int:
        return max(run[-1][0] for run in self.runs)


def table_row(name: str, settings: Sequence[Curves], halving: Schedule, patience: int = 0) -> str:
    """Of halving the change is that on the test split; patience stops runs where nobody scored them on it."""
    split = "validation" if patience else "test"
    outcomes = [(curves.replayed(), curves.replayed(halving, patience)) for curves in settings]
    judged = [pair for pair in outcomes if None not in (getattr(pair[0], split), getattr(pair[1], split))]
    changes = [getattr(ruled, split) - getattr(plain, split) for plain, ruled in judged]
    left = sum(ruled.steps for _, ruled in judged) / sum(plain.steps for plain, _ in judged)
    lower, higher = sum(x < -0.01 for x in changes), sum(x > 0.01 for x in changes)
    return (
        f"| {name} | {100 * left:.0f} % | {sum(changes) / len(changes):+.4f} | {min(changes):+.3f} | "
        f"{max(changes):+.3f} | {lower} and {higher} of {len(judged)} |"
    )


def small_table(settings: Sequence[Curves], head: str) -> list[str]:
    mixers = ", ".join(dict.fromkeys(parse(curves.architecture).layers[0].name for curves in settings))
    return [
        f"The same on {len(settings)} settings of the quick protocol, on a CPU: {mixers}; six runs each.",
        "",
        f"| runs {head}",
        "|-|-|-|-|-|-|",
        *(table_row(schedule_text(schedule), settings, schedule) for schedule in SCHEDULES),
        "",
    ]


def schedule_text(schedule: Schedule) -> str:
    text = ", ".join(f"{runs} from {100 * share:g} % on" for share, runs in schedule)
    return f"**{text}** (the protocol's)" if schedule == HALVING else text


def measured(without: Iterable[Curves], patient: Iterable[Curves]) -> list[str]:
    """What scores trained with patience are, beside those without."""
    before = {curves.name: curves for curves in without}
    pairs = [(before[curves.name], curves) for curves in patient if curves.name in before]
    pairs.sort(key=lambda pair: pair[1].score - pair[0].score)
    changes = [after.score - plain.score for plain, after in pairs]
    lines = [
        f"Measured, not replayed: {len(pairs)} settings trained with `--patience 20` and without, on the test split:",
        f"{sum(changes) / len(changes):+.3f} on average. Changes of more than 0.01:",
        "",
        "| setting | without | with | change |",
        "|-|-|-|-|",
    ]
    return [
        *lines,
        *(
            f"| {plain.name} | {plain.score:.3f} | {after.score:.3f} | {after.score - plain.score:+.3f} |"
            for plain, after in pairs
            if abs(after.score - plain.score) > 0.01
        ),
        "",
    ]


def page(settings: Sequence[Curves], patient: Sequence[Curves] = (), small: Sequence[Curves] = ()) -> str:
    head = "| steps left | change of the score: mean | lowest | highest | lower, higher by more than 0.01 |"
    lines = [
        "# Runs of the probe's grid that stop early, replayed on learning curves",
        "",
        f"{len(settings)} settings of the full MAD protocol, attention and SwiGLU, six runs each; a run that solves",
        "its setting ends the others. `python benchmarks/grid_stops.py RECORDS.jsonl …`. Left out is what a rule makes",
        "unknown: its solver would have been stopped.",
        "",
        "**Successive halving**: from a fraction of the steps on, only so many runs go on, the best by validation",
        "accuracy. The score is that of the best one on the test split.",
        "",
        f"| runs {head}",
        "|-|-|-|-|-|-|",
        *(table_row(schedule_text(schedule), settings, schedule) for schedule in SCHEDULES),
        "",
        *(small_table(small, head) if small else []),
        "**`--patience`**, without halving: a run also stops whose accuracy has not risen for so many epochs, an",
        "option of the authors' code (they evaluate after every epoch, this protocol after every tenth late), and not",
        "in the first 30 % of the steps. The score is that on the validation split.",
        "",
        f"| epochs {head}",
        "|-|-|-|-|-|-|",
        *(table_row(str(epochs), settings, (), epochs) for epochs in PATIENCES),
        "",
        "Scores rise where a run learns its examples by heart after it has learnt the task.",
        "",
    ]
    return "\n".join([*lines, *(measured(settings, patient) if patient else [])])


def train(mixers: Sequence[str], path: Path) -> None:
    """Small settings of all tasks, with a grid of six and twenty evaluations, and no rule but that a solver ends the
    others."""
    from probe_sittings import write_records

    protocol = quick()
    settings = []
    for setting in protocol.settings:
        steps = setting.training.steps
        settings.append(replace(setting, training=replace(
            setting.training, grid=QUICK_RATES, eval_every=steps // 20, solved=0.999, first_ends=True)))  # fmt: skip
    protocol = replace(protocol, settings=tuple(settings))
    work = with_seeds(candidates(mixers, protocol, baselines=False), protocol, [1] * len(settings), "cpu")
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/plait.db") as store:
        run_all(work, store, Machine(Place.of("", 1, "cpu", None)), lambda progress: None)
        write_records(work, store, path)


def read(paths: Iterable[Path]) -> list[Curves]:
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    found = [Curves.of(json.loads(line)) for line in lines]
    return list({(curves.architecture, curves.name): curves for curves in reversed(found)}.values())[::-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--with-patience", type=Path, nargs="*", default=[], help="settings trained with --patience")
    parser.add_argument("--out", type=Path, help="write the page to this file")
    parser.add_argument("--small", type=Path, nargs="*", default=[], help="small settings of other mixers")
    parser.add_argument("--train", nargs="+", default=[], help="train those of these mixers first")
    asked = parser.parse_args()
    if asked.train:
        train(asked.train, asked.small[0])
    text = page(read(asked.records), read(asked.with_patience), read(asked.small))
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
