"""Zero-shot accuracies of models: which number of a task counts, their average, and accuracy against latency.

The ten tasks and their metrics are those of the Forgetting Transformer (Lin et al. 2025, arXiv:2503.02130, Tables 1 and
8): length-normalised accuracy for HellaSwag, ARC-Challenge and OpenBookQA, plain accuracy for the others.

Accuracy on a synthetic task as a function of each variable of its difficulty, from stored probes.

Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844, App. B and Figs. B.2 to B.7) changes one variable
at a time from a baseline: sequence length, vocabulary, noise, number of training examples and so on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.errors import UserError

#: Name in lm-evaluation-harness → the metric that counts.
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
    """The mean over the ten tasks, each counting alike; all ten must be there."""
    if missing := [task for task in SHORT_CONTEXT if task not in accuracies]:
        raise UserError(f"the average is over ten tasks; missing: {', '.join(missing)}.")
    return sum(accuracies[task] for task in SHORT_CONTEXT) / len(SHORT_CONTEXT)


def counted(table: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Task → its accuracy in per cent, of the rows of a harness result. A task that is none of the ten counts by its
    plain accuracy; one without any accuracy, such as a perplexity, is left out."""
    found: dict[str, float] = {}
    for row in table:
        if row["metric"] == SHORT_CONTEXT.get(row["task"], "acc"):
            found.setdefault(row["task"], 100 * row["value"])
    return found


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
    """The models that were both evaluated and measured, the fastest first. Both are documents of records; a model is
    known by its spec, and its newest evaluation of a task counts."""
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
    found = [
        ModelAccuracy(name, specs[name], latency[specs[name]], accuracy)
        for name, accuracy in models.items()
        if specs[name] in latency
    ]
    return sorted(found, key=lambda model: model.latency_ms)


#: What a probe sets in an architecture's header to fit the task; not part of what the architecture is.
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
    """A probed spec without what belongs to the task: the same text on every task."""
    header, bar, layers = spec.partition("|")
    return f"{OF_THE_TASK.sub('', header).strip()} {bar}{layers}".strip()


def difficulty_curves(
    probes: Iterable[Mapping[str, Any]], names: Mapping[str, str] | None = None
) -> list[DifficultyCurve]:
    """`probes` are documents of probe records (`config` and `result`); `names` are short names by `architecture_text`.

    The baseline of a task is the value that each variable has most often, since all variables but one are left alone.
    Probes with another training (batch, learning rates, weight decays) or variant are other experiments: of several,
    the one with the most settings is taken.
    """
    experiments: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for probe in probes:
        config = probe["config"]
        task = dict(config["task"])
        kind = repr((task.get("variant"), config["training"]["batch"], config["training"]["grid"]))
        experiments.setdefault(str(task["task"]), {}).setdefault(kind, []).append(probe)
    found = []
    for task_name, kinds in experiments.items():
        found += _of_task(task_name, max(kinds.values(), key=_settings), names or {})
    return found


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
    # Each setting once: a baseline that many architectures or seeds were probed at is no likelier for it.
    distinct = [dict(items) for items in {tuple(sorted(setting.items())) for setting in settings}]
    usual = {name: Counter(s[name] for s in distinct).most_common(1)[0][0] for name in settings[0]}
    found = []
    for variable in usual:
        accuracies: dict[str, dict[float, list[float]]] = {}
        for probe, setting in zip(probes, settings, strict=True):
            if all(setting[name] == usual[name] for name in usual if name != variable):
                text = architecture_text(probe["config"]["spec"])
                at = accuracies.setdefault(names.get(text, text), {})
                at.setdefault(setting[variable], []).extend(seed["accuracy"] for seed in probe["result"]["seeds"])
        if len({value for at in accuracies.values() for value in at}) > 1:
            found += [_curve(task, variable, name, at) for name, at in accuracies.items()]
    return found


def _curve(task: str, variable: str, architecture: str, at: dict[float, list[float]]) -> DifficultyCurve:
    values = tuple(sorted(at))
    seeds = [at[value] for value in values]
    mean = tuple(sum(some) / len(some) for some in seeds)
    low, high, number = (tuple(map(f, seeds)) for f in (min, max, len))
    return DifficultyCurve(task, variable, architecture, values, mean, low, high, number)
