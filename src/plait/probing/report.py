"""The result of a probe: every architecture with its accuracy per task, the best at each task, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.result import Result
from plait.core.units import duration, percent
from plait.probing.plan import Replan
from plait.probing.run import Machine, Outcome, compare
from plait.probing.trial import SeedResult
from plait.probing.verdict import BestAtTask, Comparison, Finding, Summary, by_task, findings, summary, verdict

NAMED = 4  # architectures that share a note; more are counted


@dataclass(frozen=True)
class TaskEstimate(Summary):
    seeds: int
    ceiling: float  # the best possible accuracy
    diverged: bool  # at every seed and learning rate
    chance: float | None  # the accuracy of the most frequent answer, if longer sequences were scored
    scaled: float | None  # (accuracy - chance) / (ceiling - chance)
    lengths: dict[str, float]  # accuracy on longer sequences, by how many times as long
    exact: dict[str, float]  # fraction of sequences without a mistake, by how many times as long; 1: the task's length


@dataclass(frozen=True)
class ProbedArchitecture:
    name: str
    spec: str
    params: int
    fixed_state: int
    state_grows: bool
    matching: str  # what was, or could not be, matched
    baseline: bool
    tasks: dict[str, TaskEstimate]
    mean: Summary


@dataclass(frozen=True)
class Asked:
    seeds: int | None  # None: as many as fit
    seconds: float | None


@dataclass(frozen=True)
class Ran:
    seeds: dict[str, int]  # by task
    steps_share: float  # of the protocol's steps


@dataclass(frozen=True)
class ProbeCost:
    seconds: float
    core_hours: float
    runs: int
    steps: int
    trials: int
    trained_now: int


@dataclass(frozen=True)
class ProbeResult(Result):
    protocol: str
    device: str
    architectures: tuple[ProbedArchitecture, ...]  # the best first
    noise: dict[str, float | None]  # standard deviation between seeds, by task, and of the mean
    by_task: tuple[BestAtTask, ...]
    asked: Asked
    ran: Ran
    verdict: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    cost: ProbeCost

    def headline(self) -> str:
        return self.verdict

    def rows(self) -> list[dict[str, Any]]:
        """A row per architecture: accuracy by task and on average."""
        return [
            {
                "architecture": architecture.name,
                "params": architecture.params,
                "fixed_state": architecture.fixed_state,
                **{task: estimate.accuracy for task, estimate in architecture.tasks.items()},
                "mean": architecture.mean.accuracy,
                "rank": architecture.mean.rank,
            }
            for architecture in self.architectures
        ]


def report(outcome: Outcome, machine: Machine, seconds: float, asked: Asked, suite: str = "") -> ProbeResult:
    """The result of a probe, from its records alone."""
    work, comparison = outcome.work, compare(outcome)
    architectures = _architectures(outcome, comparison)
    subjects = [candidate.name for candidate in work.candidates if not candidate.baseline]
    chosen = len(subjects) > 1
    if chosen:
        subjects = [architectures[0].name]
    ran = Ran({task: len(seeds) for task, seeds in comparison.seeds.items()}, work.scale)
    core_seconds = sum(record.provenance["seconds"] for record in outcome.records.values())
    return ProbeResult(
        protocol=work.protocol.name,
        device=machine.device,
        architectures=architectures,
        noise={**{task: comparison.noise(task) for task in comparison.tasks}, "mean": comparison.noise()},
        by_task=tuple(by_task(comparison, {candidate.name: candidate.arch for candidate in work.candidates})),
        asked=asked,
        ran=ran,
        verdict=verdict(comparison, subjects, chosen=chosen),
        findings=tuple(findings(comparison)) if suite == "mad21" else (),
        notes=(*_shortfall(asked, ran), *_notes(outcome)),
        cost=ProbeCost(
            seconds=round(seconds, 1),
            core_hours=core_seconds / 3600,
            runs=work.runs,
            steps=work.steps,
            trials=len(outcome.records),
            trained_now=outcome.fresh,
        ),
    )


def _architectures(outcome: Outcome, comparison: Comparison) -> tuple[ProbedArchitecture, ...]:
    """The best first."""
    candidates = {candidate.name: candidate for candidate in outcome.work.candidates}
    seeds: dict[tuple[str, str], list[SeedResult]] = {}
    for trial in outcome.work.trials:
        seeds.setdefault((trial.candidate, trial.task.name), []).extend(outcome.records[trial.key].result["seeds"])
    return tuple(
        ProbedArchitecture(
            name=name,
            spec=candidates[name].arch.text,
            params=candidates[name].params,
            fixed_state=candidates[name].state,
            state_grows=candidates[name].kv_cache(2) > candidates[name].kv_cache(1),
            matching=candidates[name].note,
            baseline=candidates[name].baseline,
            tasks={task: _on_task(comparison, name, task, seeds[name, task]) for task in comparison.tasks},
            mean=summary(comparison, name),
        )
        for name in sorted(comparison.names, key=comparison.rank)
    )


def _on_task(comparison: Comparison, name: str, task: str, seeds: Sequence[SeedResult]) -> TaskEstimate:
    estimate = summary(comparison, name, task)
    # Recorded only if longer sequences were scored; exact matches are missing from older records.
    chance = _mean([seed["chance"] for seed in seeds]) if "lengths" in seeds[0] else None
    ceiling = _mean([seed["ceiling"] for seed in seeds])
    return TaskEstimate(
        **vars(estimate),
        seeds=len(comparison.seeds[task]),
        ceiling=ceiling,
        diverged=all(seed["chosen"] is None for seed in seeds),
        chance=chance,
        scaled=None if chance is None else (estimate.accuracy - chance) / (ceiling - chance),
        lengths=_mean_by_length([seed.get("lengths") for seed in seeds]),
        exact=_mean_by_length([seed.get("exact") for seed in seeds]),
    )


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _mean_by_length(per_seed: Sequence[dict[str, float] | None]) -> dict[str, float]:
    """The mean over seeds by relative sequence length; empty unless all seeds have it."""
    known = [scores for scores in per_seed if scores is not None]
    return {f: _mean([scores[f] for scores in known]) for f in known[0]} if len(known) == len(per_seed) else {}


def _shortfall(asked: Asked, ran: Ran) -> list[str]:
    """A note where fewer seeds were run than were requested."""
    if not asked.seeds:
        return []
    fewer: dict[int, list[str]] = {}
    for task, seeds in ran.seeds.items():
        if seeds < asked.seeds:
            fewer.setdefault(seeds, []).append(task)
    everywhere = len(fewer) == 1 and len(next(iter(fewer.values()))) == len(ran.seeds)
    parts = [f"{seeds} on {'every task' if everywhere else ', '.join(tasks)}" for seeds, tasks in fewer.items()]
    room = f": {duration(asked.seconds)} are not enough for more; give a longer --time" if asked.seconds else ""
    return [f"of {asked.seeds} seeds asked for, ran {'; '.join(parts)}{room}"] if parts else []


def _notes(outcome: Outcome) -> list[str]:
    """Notes for the table: sizes that could not be matched, shortened trainings, changed plans, divergence."""
    same: dict[str, list[str]] = {}
    for candidate in outcome.work.candidates:
        if candidate.note:
            same.setdefault(candidate.note, []).append(candidate.name)
    notes = [
        f"{', '.join(names) if len(names) <= NAMED else f'{len(names)} architectures'}: {note}"
        for note, names in same.items()
    ]
    if outcome.work.scale < 1:
        notes.append(
            f"trainings were cut down to {percent(outcome.work.scale)} of their steps to fit the time: give it more"
        )
    if changed := changes(outcome.replans):
        notes.append(changed)
    for trial in outcome.work.trials:
        seeds = outcome.records[trial.key].result["seeds"]
        diverged = [str(seed["seed"]) for seed in seeds if seed["chosen"] is None]
        if diverged:
            notes.append(
                f"{trial.candidate} on {trial.task.name} diverged with seed {', '.join(diverged)}: at every learning "
                "rate its loss was no longer finite. It counts as accuracy 0."
            )
    return notes


def changes(replans: Sequence[Replan]) -> str:
    """How the plan was changed during the run, for example

    'trainings took 1.40 times as long as measured at the start: 2 instead of 4 seeds for compression, memorization'
    """
    if not replans:
        return ""
    before, after = replans[0].before, replans[-1].after
    tasks: dict[str, list[str]] = {}
    for i, setting in enumerate(before.protocol.settings):
        parts = []
        if after.seeds[i] != before.seeds[i]:
            parts.append(f"{after.seeds[i]} instead of {before.seeds[i]} seed{'s' if before.seeds[i] > 1 else ''}")
        new, old = percent(after.scales[i]), percent(before.scales[i])
        if new != old:
            parts.append(f"{new} instead of {old} of the steps")
        if parts:
            tasks.setdefault(" and ".join(parts), []).append(setting.task.name)
    if not tasks:
        return ""
    slowdowns = [replan.slowdown for replan in replans if replan.changed]
    least, most = f"{min(slowdowns):.2f}", f"{max(slowdowns):.2f}"
    took = least if least == most else f"{least} to {most}"
    changed = "; ".join(f"{change} for {', '.join(names)}" for change, names in tasks.items())
    return f"trainings took {took} times as long as measured at the start: {changed}"
