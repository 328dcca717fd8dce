"""Accuracies of models: the zero-shot average over ten tasks, accuracy against latency, and accuracy on synthetic tasks
against difficulty.

The ten zero-shot tasks and their metrics are those of the Forgetting Transformer (Lin et al. 2025, arXiv:2503.02130,
Tables 1 and 8): length-normalised accuracy for HellaSwag, ARC-Challenge and OpenBookQA, plain accuracy for the others.

Difficulty curves follow Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844, App. B and Figs. B.2 to
B.7), which varies one variable at a time from a baseline: sequence length, vocabulary, noise, number of training
examples and so on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.errors import UserError

#: Task name in lm-evaluation-harness → its metric.
SHORT_CONTEXT = {
    "lambada_openai": "acc",
    "piqa": "acc",
    "hellaswag": "acc_norm",
    "winogrande": "acc",
    "arc_easy": "acc",
    "arc_challenge": "acc_norm",
    "copa": "acc",
    "openbookqa": "acc_norm",
    "sciq": "acc",
    "boolq": "acc",
}


def average(accuracies: Mapping[str, float]) -> float:
    """The unweighted mean over the ten tasks, all of which are required."""
    if missing := [task for task in SHORT_CONTEXT if task not in accuracies]:
        raise UserError(f"the average is over ten tasks; missing: {', '.join(missing)}.")
    return sum(accuracies[task] for task in SHORT_CONTEXT) / len(SHORT_CONTEXT)


def counted(table: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Task → accuracy in per cent, from the rows of a harness result. Tasks other than the ten use plain accuracy;
    tasks without an accuracy, such as perplexities, are skipped."""
    accuracy: dict[str, float] = {}
    for row in table:
        if row["metric"] == SHORT_CONTEXT.get(row["task"], "acc"):
            accuracy.setdefault(row["task"], 100 * row["value"])
    return accuracy


@dataclass(frozen=True)
class ModelAccuracy:
    """One model: latency in milliseconds and the accuracy of each task in per cent."""

    model: str
    spec: str
    latency_ms: float
    accuracy: dict[str, float]

    @property
    def average(self) -> float | None:
        return average(self.accuracy) if self.accuracy.keys() >= SHORT_CONTEXT.keys() else None


def against_latency(
    harness: Sequence[Mapping[str, Any]], measurements: Sequence[Mapping[str, Any]]
) -> list[ModelAccuracy]:
    """The models that were both evaluated and measured, fastest first. Both arguments are documents of records; models
    are matched by spec, and the newest evaluation of a task is used."""
    latency: dict[str, float] = {}
    settings: set[str] = set()
    for measured in measurements:
        config = measured["config"]
        latency[config["spec"]] = 1e3 * measured["result"]["latency"]["seconds"]
        names = ("mode", "seq", "batch", "device", "dtype", "threads")
        settings.add(" ".join(f"{name}={config[name]}" for name in names if name in config))
    if len(settings) > 1:
        raise UserError(
            f"the latencies were measured in {len(settings)} settings; choose one, such as --where seq=2048. "
            f"There are: {'; '.join(sorted(settings))}."
        )
    models: dict[str, dict[str, float]] = {}
    specs: dict[str, str] = {}
    for evaluated in sorted(harness, key=lambda document: str(document["about"].get("started", ""))):
        name = str(evaluated["result"]["run"])
        specs[name] = evaluated["config"]["spec"]
        models.setdefault(name, {}).update(counted(evaluated["result"]["table"]))
    both = [
        ModelAccuracy(name, specs[name], latency[specs[name]], accuracy)
        for name, accuracy in models.items()
        if specs[name] in latency
    ]
    return sorted(both, key=lambda model: model.latency_ms)


#: Header keys that a probe sets to fit the task; they do not identify the architecture.
OF_THE_TASK = re.compile(r"\b(?:vocab|kind)=\S+\s*")


@dataclass(frozen=True)
class DifficultyCurve:
    """One architecture on one task: mean accuracy at each value of one variable, and the lowest and highest seed."""

    task: str
    variable: str
    architecture: str
    values: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: tuple[int, ...]

    def rows(self) -> list[dict[str, Any]]:
        names = {"task": self.task, "variable": self.variable, "architecture": self.architecture}
        columns = zip(self.values, self.accuracy, self.low, self.high, self.seeds, strict=True)
        return [
            {**names, "value": value, "accuracy": mean, "low": low, "high": high, "seeds": seeds}
            for value, mean, low, high, seeds in columns
        ]


def architecture_text(spec: str) -> str:
    """A probed spec without the keys that depend on the task: the same text on every task."""
    header, bar, layers = spec.partition("|")
    return f"{OF_THE_TASK.sub('', header).strip()} {bar}{layers}".strip()


def difficulty_curves(
    probes: Iterable[Mapping[str, Any]], names: Mapping[str, str] | None = None
) -> list[DifficultyCurve]:
    """Accuracy against each variable of each task's difficulty.

    `probes` are documents of probe records (`config` and `result`); `names` maps `architecture_text` to short names.
    The baseline of a task is the most frequent value of each variable, since only one varies at a time. Probes with a
    different training (batch, learning rates, weight decays) or variant are different experiments; the one with the
    most settings is used.
    """
    experiments: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for probe in probes:
        config = probe["config"]
        task = dict(config["task"])
        kind = repr((task.get("variant"), config["training"]["batch"], config["training"]["grid"]))
        experiments.setdefault(str(task["task"]), {}).setdefault(kind, []).append(probe)
    curves = []
    for task_name, kinds in experiments.items():
        curves += _of_task(task_name, max(kinds.values(), key=_settings), names or {})
    return curves


def _settings(probes: list[Mapping[str, Any]]) -> int:
    return len({repr(sorted(probe["config"]["task"].items())) for probe in probes})


def _of_task(task: str, probes: list[Mapping[str, Any]], names: Mapping[str, str]) -> list[DifficultyCurve]:
    settings = [
        {
            name: value
            for name, value in probe["config"]["task"].items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        for probe in probes
    ]
    # Each setting is counted once, however many architectures and seeds were probed with it.
    distinct = [dict(items) for items in {tuple(sorted(setting.items())) for setting in settings}]
    baseline = {name: Counter(s[name] for s in distinct).most_common(1)[0][0] for name in settings[0]}
    curves = []
    for variable in baseline:
        accuracies: dict[str, dict[float, list[float]]] = {}
        for probe, setting in zip(probes, settings, strict=True):
            if all(setting[name] == baseline[name] for name in baseline if name != variable):
                text = architecture_text(probe["config"]["spec"])
                by_value = accuracies.setdefault(names.get(text, text), {})
                by_value.setdefault(setting[variable], []).extend(seed["accuracy"] for seed in probe["result"]["seeds"])
        if len({value for by_value in accuracies.values() for value in by_value}) > 1:
            curves += [_curve(task, variable, name, by_value) for name, by_value in accuracies.items()]
    return curves


def _curve(task: str, variable: str, architecture: str, by_value: dict[float, list[float]]) -> DifficultyCurve:
    values = tuple(sorted(by_value))
    seeds = [by_value[value] for value in values]
    mean = tuple(sum(accuracies) / len(accuracies) for accuracies in seeds)
    low, high, number = (tuple(map(f, seeds)) for f in (min, max, len))
    return DifficultyCurve(task, variable, architecture, values, mean, low, high, number)
