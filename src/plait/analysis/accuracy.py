"""Zero-shot accuracies of models: which number of a task counts, their average, and accuracy against latency.

The ten tasks and their metrics are those of the Forgetting Transformer (Lin et al. 2025, arXiv:2503.02130, Tables 1 and
8): length-normalised accuracy for HellaSwag, ARC-Challenge and OpenBookQA, plain accuracy for the others.
"""

from __future__ import annotations

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
