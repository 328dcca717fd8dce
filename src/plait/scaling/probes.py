"""Scores of stored probes by architecture, to be compared with scaling runs of the same architectures.

Two models are of the same architecture if their mixers follow the same pattern, whatever their sizes: two blocks of
width 128 may be the small version of twenty-four blocks of width 1024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.records import Store
from plait.scaling.sizes import attention_share, pattern_of

KIND = "probe"


@dataclass(frozen=True)
class Probed:
    """One probed architecture, with its accuracy on each task: the mean over the task's settings and over seeds."""

    pattern: str
    spec: str
    state: int
    attention: float
    order: tuple[str, ...]  # names of its sequence mixers, first layer first
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.scores.values())))


def probed(store: Store) -> list[Probed]:
    """All probed architectures of a store; a `UserError` if there are none."""
    by_spec: dict[str, dict[str, list[float]]] = {}
    for record in store.find(KIND):
        spec, task = str(record.config["spec"]), str(record.config["task"]["task"])
        key = _core(spec)
        by_spec.setdefault(key, {}).setdefault(task, []).append(float(record.result["accuracy"]))
    if not by_spec:
        raise UserError(f"{store.name} has no probes: `plait probe --suite mad21` makes them.")
    return [_probed(spec, scores) for spec, scores in by_spec.items()]


def _core(spec: str) -> str:
    """The layers and the width of a probe's spec, without the vocabulary and the kind, which depend on the task."""
    arch = architecture(spec)
    return " ".join(layer.to_layer().text for layer in arch.layers) + f" @{arch.header.d}"


def _probed(core: str, scores: Mapping[str, list[float]]) -> Probed:
    layers, _, width = core.rpartition(" @")
    arch = architecture(f"d={width} vocab=16 | {layers}")
    order = tuple(options.name for options in arch.layers if options.kind == "sequence")
    means = {task: float(np.mean(values)) for task, values in scores.items()}
    state = model_cost(arch, seq=1).fixed_state
    return Probed(pattern_of(arch), arch.text, state, attention_share(arch), order, means)


def scores_by_pattern(models: list[Probed]) -> dict[str, dict[str, float]]:
    """Scores of each pattern; of patterns that were probed with several settings, those of the best one."""
    best: dict[str, Probed] = {}
    for model in sorted(models, key=lambda model: model.mean):
        best[model.pattern] = model
    return {pattern: model.scores for pattern, model in best.items()}


def order_pairs(models: list[Probed]) -> list[tuple[Probed, Probed]]:
    """Pairs of hybrids with the same mixers in opposite orders: attention last, then attention first."""
    by_order = {model.order: model for model in models}
    pairs = []
    for order, model in by_order.items():
        turned = tuple(reversed(order))
        if turned != order and turned in by_order and "attn" in order[-1] and "attn" not in order[0]:
            pairs.append((model, by_order[turned]))
    return pairs
